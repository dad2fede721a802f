"""The chains on which two label sources agree (Zhang et al., 2025, section 3).

    chains with labels of one source + the same chains with another's
      -> consensus -> those with the same first error, and the kept share

"The Lessons of Developing Process Reward Models in Mathematical Reasoning"
keeps about 40% of its chains where Monte Carlo labels and a judge agree, and
learns more from them than from all.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prm_jax.data.chains import Chain, first_error
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class ConsensusConfig:
  """Who is compared, and how.

  Attributes:
    first: name of the source whose labels are kept, such as 'rollouts'.
    second: name of the source that has to agree, such as 'judge'.
    hard_above: a step is right where its label is above this number; 0 is the
      paper's "any rollout succeeded".
  """

  first: str = 'first'
  second: str = 'second'
  hard_above: float = 0.0

  def __post_init__(self) -> None:
    if self.first == self.second:
      raise UserError(
        f'consensus.second={self.second!r} is consensus.first too: expected '
        'two sources'
      )
    bound = self.hard_above
    if not isinstance(bound, int | float) or not 0 <= bound < 1:
      raise UserError(
        f'consensus.hard_above={bound!r}: expected a number in [0, 1)'
      )


class Kept(NamedTuple):
  """How many of some chains were kept."""

  chains: int
  kept: int

  @property
  def share(self) -> float:
    """In [0, 1]; 0 where there were no chains."""
    return self.kept / self.chains if self.chains else 0.0


class Report(NamedTuple):
  """What consensus kept.

  Attributes:
    all: chains that both sources have labelled.
    right: those of them with a right final answer.
    wrong: those with a wrong one.
    unpaired: chains that only one of the sources has labelled; left out.
  """

  all: Kept
  right: Kept
  wrong: Kept
  unpaired: int


def claimed_error(chain: Chain, hard_above: float) -> int | None:
  """The first error that a chain's labels claim.

  Returns:
    Its index; -1: no step is wrong; None: no claim, for the label of a step
    that would have to be right is unknown.
  """
  error = first_error(chain.labels, hard_above)
  before = chain.labels if error < 0 else chain.labels[:error]
  if not chain.labels or any(step.value is None for step in before):
    return None
  return error


def agree(first: Chain, second: Chain, config: ConsensusConfig) -> bool:
  """Do the labels of two sources claim the same first error of a chain?"""
  claims = [
    claimed_error(chain, config.hard_above) for chain in (first, second)
  ]
  return claims[0] is not None and claims[0] == claims[1]


def consensus(
  first: Sequence[Chain], second: Sequence[Chain], config: ConsensusConfig
) -> tuple[list[Chain], Report]:
  """Keeps the chains on which two sources agree.

  Args:
    first: chains with labels, known by `meta['id']`.
    second: the same chains in any order, with labels of another source. What
      one of the sources could not label may be missing.

  Returns:
    Chains of `first`, in its order and with its labels, `meta['consensus']`
    naming both sources; and the report.

  Raises:
    UserError: a chain without an id or two with one, another problem or other
      steps under one id, or no id in common.
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
  agreed = [agree(x, y, config) for x, y in pairs]

  def kept_of(*outcomes: bool | None) -> Kept:
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
  report = Report(
    all=kept_of(True, False, None),
    right=kept_of(True),
    wrong=kept_of(False),
    unpaired=len(firsts) + len(seconds) - 2 * len(pairs),
  )
  return kept, report


def _by_id(chains: Iterable[Chain], source: str) -> dict[str, Chain]:
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
