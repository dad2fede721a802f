"""Whole chains, one of which is chosen: by its score, or by vote."""

import dataclasses

from prm_jax.runtime.errors import UserError
from prm_jax.search.method import Expand, Grow, SearchConfig
from prm_jax.search.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True)
class BestOfNConfig:
  """How many chains.

  Attributes:
    samples: N.
    round_size: chains between two looks at a budget of tokens, FLOPs or
      seconds; 0: 4. Without such a budget it is all N at once.
  """

  samples: int = 16
  round_size: int = 0

  def __post_init__(self) -> None:
    if self.samples < 1:
      raise UserError(f'best_of_n.samples={self.samples}: expected >= 1')
    if self.round_size < 0:
      raise UserError(f'best_of_n.round_size={self.round_size}: expected >= 0')


def best_of_n(tree: Tree, config: BestOfNConfig, common: SearchConfig) -> Grow:
  """N chains from the problem, each written in one go."""
  del tree, common
  whole = Expand(ROOT, config.samples, 0)
  if config.round_size:
    whole = whole._replace(round_size=config.round_size)
  yield [whole]
