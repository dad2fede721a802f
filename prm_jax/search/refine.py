"""Refine: write a chain again from its weakest step, keep the better one."""

import dataclasses

from prm_jax.runtime.errors import UserError
from prm_jax.search.method import Expand, Grow, SearchConfig
from prm_jax.search.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True)
class RefineConfig:
  """How many, how often.

  Attributes:
    samples: chains, written whole.
    rounds: of writing each of them again.
  """

  samples: int = 4
  rounds: int = 4

  def __post_init__(self) -> None:
    if self.samples < 1:
      raise UserError(f'refine.samples={self.samples}: expected >= 1')
    if self.rounds < 0:
      raise UserError(f'refine.rounds={self.rounds}: expected >= 0')


def refine(tree: Tree, config: RefineConfig, common: SearchConfig) -> Grow:
  """Of each chain the weakest step and all after it are written anew, by turns.

  The weakest step is the one with the lowest PRM score, the first of equals.
  The new chain takes the old one's place where its chain score is higher;
  where it is not, the next round tries the same place again. No round is lost
  on a chain that came to nothing: the old one stays.
  """
  del common
  [chains] = yield [Expand(ROOT, config.samples, 0)]
  for _ in range(config.rounds):
    if not chains:
      return
    before = [tree.nodes[weakest(tree, i)].parent for i in chains]
    written = yield [Expand(i, 1, 0) for i in before]
    chains = [
      max([old, *new], key=lambda i: tree.nodes[i].chain_score)
      for old, new in zip(chains, written, strict=True)
    ]


def weakest(tree: Tree, index: int) -> int:
  """The step with the lowest score of the chain that ends at a node."""
  return min(tree.path(index), key=lambda i: tree.nodes[i].score)
