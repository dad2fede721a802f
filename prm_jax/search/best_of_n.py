"""Samples whole chains, one of which is chosen by score or by vote."""

import dataclasses
from typing import Annotated

from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least
from prm_jax.search.method import Expand, Grow, SearchConfig
from prm_jax.search.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True)
class BestOfNConfig:
  """Sets the number of chains.

  Attributes:
    samples: N, the number of chains.
    round_size: number of chains written between two checks of a budget in
      tokens, FLOPs or seconds; 0 means 4. Without such a budget all N chains
      are written in one round.
  """

  samples: Annotated[int, at_least(1)] = 16
  round_size: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)


def best_of_n(tree: Tree, config: BestOfNConfig, common: SearchConfig) -> Grow:
  """Samples N whole chains from the problem."""
  del tree, common
  whole = Expand(ROOT, config.samples, 0)
  if config.round_size:
    whole = whole._replace(round_size=config.round_size)
  yield [whole]
