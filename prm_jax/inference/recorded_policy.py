"""Recorded chains as a policy: a search over what was sampled before.

The chains of a sampling job -> RecordedPolicy.complete -> the same chains

Nothing is computed: sample i of a problem is the chain with this number in its
id, and its tokens are those that it took when it was sampled. A sampling job
leaves out what has no step: these samples are lost.
"""

from collections.abc import Mapping, Sequence

from prm_jax.data import builder, chain_sets
from prm_jax.data.chains import Chain
from prm_jax.inference.protocols import CannotAsk, Completion, Request
from prm_jax.runtime.errors import UserError


class RecordedPolicy:
  """A policy that replays: see `policy.Policy`.

  It goes on with the chains that it began, and with them only: a request with
  steps has the key and the number under which its chain was begun. What a chain
  took is told out step by step in proportion to its characters.

  Args:
    chains: of a sampling job; problem by problem in the order of the samples,
      whose numbers their ids end with ('... # 3'), or all are there.

  Raises:
    UserError: a chain does not say what it took, as those of sampling jobs do.
  """

  counts_flops = False

  def __init__(self, chains: Sequence[Chain]) -> None:
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
    """See `policy.Policy`.

    Raises:
      CannotAsk: chains of a problem are wanted after its last recorded one, or
        another way to go on with one.
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
    """Why a request cannot be answered; '' where it can."""
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
    there, wanted = self._chains[request.problem], request.first
    if wanted > max(there):
      return (
        f'{len(there)} chains of this problem are recorded and '
        f'{wanted + request.samples} were asked for; sample more, or search '
        'with fewer samples'
      )
    return ''

  def _replayed(self, chain: Chain, request: Request) -> Completion:
    begin, end = len(request.steps), len(chain.steps)
    # A limit stops a policy before it could write the chain's end.
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
  """Which of its problem's samples a chain is."""
  _, mark, number = str(chain.meta.get('id')).rpartition(' # ')
  n = int(number) if mark and number.isdecimal() else len(there)
  # A second problem may have the same text.
  return max(there) + 1 if n in there else n


def _tokens_until(chain: Chain, steps: int) -> int:
  """The part of a chain's tokens that its first steps took."""
  lengths = [len(step) for step in chain.steps]
  return chain.meta['tokens'] * sum(lengths[:steps]) // sum(lengths)


def open_recorded(workdir: str, flag: str) -> RecordedPolicy:
  """A sampling job's chains as a policy.

  Args:
    flag: what names the workdir, for what may be wrong with it.
  """
  return RecordedPolicy(list(chain_sets.read(workdir, flag)))
