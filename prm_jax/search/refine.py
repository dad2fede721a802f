"""Rewrites chains from their weakest step and keeps the better version."""

import dataclasses
from typing import Annotated

from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least
from prm_jax.search.method import Expand, Grow, SearchConfig
from prm_jax.search.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True)
class RefineConfig:
  """Sets the number of chains and of rewrites.

  Attributes:
    samples: number of chains, which are first written whole.
    rounds: number of times that each of them is rewritten.
  """

  samples: Annotated[int, at_least(1)] = 4
  rounds: Annotated[int, at_least(0)] = 4

  def __post_init__(self) -> None:
    checks.check(self)


def refine(tree: Tree, config: RefineConfig, common: SearchConfig) -> Grow:
  """Rewrites the weakest step of each chain and all steps after it, in rounds.

  The weakest step is the one with the lowest PRM score, the first of equals.
  The new chain replaces the old one if its chain score is higher. Otherwise,
  and if the new chain is dead, the next round tries the same step again.
  """
  del common
  [chains] = yield [Expand(ROOT, config.samples, 0)]
  for _ in range(config.rounds):
    if not chains:
      return
    before = [tree.nodes[weakest_step(tree, i)].parent for i in chains]
    written = yield [Expand(i, 1, 0) for i in before]
    chains = [
      max([old, *new], key=lambda i: tree.nodes[i].chain_score)
      for old, new in zip(chains, written, strict=True)
    ]


def weakest_step(tree: Tree, index: int) -> int:
  """Returns the lowest-scoring node of the chain that ends at a node."""
  return min(tree.path(index), key=lambda i: tree.nodes[i].score)
