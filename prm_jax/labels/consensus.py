"""Keeps the chains on which two label sources agree on the first error.

    chains labelled by one source + the same chains labelled by another
      -> consensus -> chains with the same first error, and the kept share

Follows section 3 of "The Lessons of Developing Process Reward Models in
Mathematical Reasoning" (Zhang et al., 2025). Monte Carlo labels and a judge
agree there on about 40% of the chains, and a PRM trained on these is better
than one trained on all.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

from prm_jax.data.chains import Chain, first_error
from prm_jax.runtime import checks
from prm_jax.runtime.checks import from_to_below
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class ConsensusConfig:
  """Names the two sources and says when a label counts as right.

  Attributes:
    first: name of the source whose labels are kept, such as 'rollouts'.
    second: name of the source that has to agree, such as 'judge'.
    hard_above: a step is right if its label is above this number, in [0, 1);
      0 is the paper's "any rollout succeeded".
  """

  first: str = 'first'
  second: str = 'second'
  hard_above: Annotated[float, from_to_below(0, 1)] = 0.0

  def __post_init__(self) -> None:
    checks.check(self)
    if self.first == self.second:
      checks.fail('second', self.second, 'expected another source than first')


class Kept(NamedTuple):
  """Counts chains and how many of them were kept."""

  chains: int
  kept: int

  @property
  def share(self) -> float:
    """Returns the share of chains kept, in [0, 1]; 0 without chains."""
    return self.kept / self.chains if self.chains else 0.0


class ConsensusReport(NamedTuple):
  """Counts what consensus kept.

  Attributes:
    all: chains that both sources have labelled.
    right: those of them with a right final answer.
    wrong: those of them with a wrong final answer.
    unpaired: number of chains labelled by one source only, which are left out.
  """

  all: Kept
  right: Kept
  wrong: Kept
  unpaired: int


def claimed_error(chain: Chain, hard_above: float) -> int | None:
  """Returns the index of the first error that a chain's labels claim.

  Returns:
    The step's index, -1 if no step is wrong, or None if the labels make no
    claim: there are none, or one before the first error is unknown.
  """
  error = first_error(chain.labels, hard_above)
  before = chain.labels if error < 0 else chain.labels[:error]
  if not chain.labels or any(step.value is None for step in before):
    return None
  return error


def agree(first: Chain, second: Chain, config: ConsensusConfig) -> bool:
  """Says whether the labels of two sources claim the same first error."""
  claims = [
    claimed_error(chain, config.hard_above) for chain in (first, second)
  ]
  return claims[0] is not None and claims[0] == claims[1]


def consensus(
  first: Sequence[Chain], second: Sequence[Chain], config: ConsensusConfig
) -> tuple[list[Chain], ConsensusReport]:
  """Keeps the chains on which two sources agree.

  Args:
    first: chains with labels, identified by `meta['id']`.
    second: the same chains in any order, with the labels of another source.
      Chains that a source could not label may be missing from either.

  Returns:
    The chains of `first` that are kept, in its order and with its labels, both
    sources named in `meta['consensus']`; and the report.

  Raises:
    UserError: A chain has no id, two chains of a source have the same one, the
      chains with an id differ in problem or steps, no id is in both, a source
      has no labels, or the sources agree on no chain.
  """
  firsts = _by_id(first, config.first)
  seconds = _by_id(second, config.second)
  pairs = [(x, seconds[key]) for key, x in firsts.items() if key in seconds]
  for x, y in pairs:
    if (x.problem, x.steps) != (y.problem, y.steps):
      raise UserError(
        f'chain {x.meta["id"]!r} of {config.first} has another problem or '
        f'other steps in {config.second}: label the same chains twice'
      )
  if not pairs:
    raise UserError(
      f'none of the {len(firsts)} chains of {config.first} is among the '
      f'{len(seconds)} of {config.second}: label the same chains twice'
    )
  for source, chains in ((config.first, first), (config.second, second)):
    if not any(chain.labels for chain in chains):
      raise UserError(
        f'the {len(chains)} chains of {source} have no labels: name a '
        'labelling job'
      )
  agreed = [agree(x, y, config) for x, y in pairs]
  if not any(agreed):
    raise UserError(
      f'{config.first} and {config.second} agree on the first error of none of '
      f'{len(pairs)} chains with hard_above={config.hard_above}: set it as '
      'suits both, or label more chains'
    )

  def count_kept(*outcomes: bool | None) -> Kept:
    same = [
      agrees
      for (x, _), agrees in zip(pairs, agreed, strict=True)
      if x.outcome in outcomes
    ]
    return Kept(len(same), sum(same))

  names = {'consensus': [config.first, config.second]}
  kept = [
    dataclasses.replace(x, meta={**x.meta, **names})
    for (x, _), agrees in zip(pairs, agreed, strict=True)
    if agrees
  ]
  report = ConsensusReport(
    all=count_kept(True, False, None),
    right=count_kept(True),
    wrong=count_kept(False),
    unpaired=len(firsts) + len(seconds) - 2 * len(pairs),
  )
  return kept, report


def _by_id(chains: Iterable[Chain], source: str) -> dict[str, Chain]:
  """Maps ids to chains; raises UserError if one has none or two share one."""
  known: dict[str, Chain] = {}
  for i, chain in enumerate(chains):
    if 'id' not in chain.meta:
      raise UserError(f"chain {i} of {source} has no 'id' in meta: give it one")
    key = str(chain.meta['id'])
    if key in known:
      raise UserError(
        f'two chains of {source} have the id {key!r}: ids must be unique'
      )
    known[key] = chain
  return known
