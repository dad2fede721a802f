"""Replays recorded chains as a policy, so that search needs no model.

    chains of a sampling job -> RecordedPolicy.complete -> the same chains

Sample i of a problem is the chain with this number in its id, and its tokens
are those that it took when it was sampled. A sampling job drops chains without
a step, so these samples are reported as lost.
"""

from collections.abc import Mapping, Sequence

from prm_jax.data import builder, chain_sets
from prm_jax.data.chains import Chain
from prm_jax.inference.protocols import CannotAsk, Completion, Request
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError


class RecordedPolicy:
  """Is a `protocols.Policy` that replays chains.

  It continues only chains that it began: a request with steps must have the key
  and number under which its chain was begun. The tokens of a chain are divided
  among its steps in proportion to their characters.

  Args:
    chains: chains of a sampling job. Their ids end with the number of the
      sample ('... # 3'); otherwise each problem's chains are numbered in order.
    samples: chains that the job sampled per problem, some of them dropped;
      requests for more are refused. With 0, missing ones count as dropped.

  Raises:
    UserError: a chain does not record its tokens, as sampling jobs do.
  """

  counts_flops = False

  def __init__(self, chains: Sequence[Chain], samples: int = 0) -> None:
    self.samples = samples
    self._chains: dict[str, dict[int, Chain]] = {}
    for chain in chains:
      if not {'tokens', 'finished'} <= chain.meta.keys():
        raise UserError(
          f'chain {chain.meta.get("id")!r} does not say its tokens and whether '
          'it is finished; replay the chains of a sampling job '
          '(configs/sample_math.py)'
        )
      there = self._chains.setdefault(chain.problem, {})
      there[_number(chain, there)] = chain
    self._begun: set[tuple[str, str]] = set()  # problem and key
    self.name = f'recorded chains {builder.fingerprint(chains)}'

  def complete(
    self, requests: Sequence[Request]
  ) -> list[list[Completion | None]]:
    """Returns recorded completions of each request; see `protocols.Policy`.

    Raises:
      CannotAsk: a request asks for more chains than were sampled of its
        problem, or for another continuation of one.
    """
    refused = {r: why for r in requests if (why := self._refusal(r))}
    if refused:
      raise CannotAsk(refused)
    for request in requests:
      if not request.steps:
        self._begun.add((request.problem, request.key))
    return [
      [
        chain and self._replayed(chain, request)
        for chain in self._wanted(request)
      ]
      for request in requests
    ]

  def _wanted(self, request: Request) -> list[Chain | None]:
    there = self._chains[request.problem]
    return [there.get(request.first + i) for i in range(request.samples)]

  def _refusal(self, request: Request) -> str:
    """Returns why a request cannot be answered, '' if it can."""
    if request.problem not in self._chains:
      return 'no chain of this problem is recorded'
    begun = (request.problem, request.key) in self._begun
    own = all(
      chain and chain.steps[: len(request.steps)] == request.steps
      for chain in self._wanted(request)
    )
    if request.steps and not (begun and own):
      return (
        'recorded chains go on in one way only, and another was asked for; '
        'search with a policy that writes'
      )
    there, end = self._chains[request.problem], request.first + request.samples
    # Two problems of one text have twice as many.
    sampled = max(self.samples, max(there) + 1)
    if request.first >= sampled or (self.samples and end > sampled):
      return (
        f'{len(there)} chains of this problem are recorded and {end} were '
        'asked for; sample more, or search with fewer samples'
      )
    return ''

  def _replayed(self, chain: Chain, request: Request) -> Completion:
    begin, end = len(request.steps), len(chain.steps)
    # max_steps stops a policy before it could end the chain.
    stopped = 0 < request.max_steps <= end - begin
    if stopped:
      end = begin + request.max_steps
    until = _tokens_until(chain, end) if stopped else chain.meta['tokens']
    return Completion(
      chain.steps[begin:end],
      chain.meta['finished'] and not stopped,
      until - _tokens_until(chain, begin),
      0,
      float('nan'),
    )


def _number(chain: Chain, there: Mapping[int, Chain]) -> int:
  """Returns the number of a chain among its problem's samples."""
  _, mark, number = str(chain.meta.get('id')).rpartition(' # ')
  n = int(number) if mark and number.isdecimal() else len(there)
  # Two problems may have the same text.
  return max(there) + 1 if n in there else n


def _tokens_until(chain: Chain, steps: int) -> int:
  """Returns the share of a chain's tokens that its first steps took."""
  lengths = [len(step) for step in chain.steps]
  return chain.meta['tokens'] * sum(lengths[:steps]) // sum(lengths)


def open_recorded(workdir: str, flag: str) -> RecordedPolicy:
  """Makes a policy of a sampling job's chains.

  Args:
    flag: the config's name for it, which errors mention.
  """
  chains = list(chain_sets.read(workdir, flag))
  path = paths.open_path(workdir) / 'config.json'
  sampled = paths.read_json(path, 'bring that job back')
  return RecordedPolicy(chains, sampled.get('samples', 0))
