"""Searches with REBASE, which shares the samples over leaves by their reward.

Follows Wu et al. (2024), "Inference Scaling Laws", section 3.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated

from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, at_least
from prm_jax.search.method import Expand, Grow, SearchConfig, chain_value
from prm_jax.search.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True)
class RebaseConfig:
  """Sets the number of samples and how unevenly they are shared.

  Attributes:
    samples: N, the number of chains that the search aims to end with.
    temperature: T; near 0 the best leaf gets everything, at inf all leaves get
      the same.
  """

  samples: Annotated[int, at_least(1)] = 16
  temperature: Annotated[float, above(0)] = 0.2

  def __post_init__(self) -> None:
    checks.check(self)


def rebase(tree: Tree, config: RebaseConfig, common: SearchConfig) -> Grow:
  """Shares the remaining samples over the open leaves at every depth.

  B is N at first, and falls by one with every chain that ends. Leaf j with the
  reward R_j gets

      W_j = round(B exp(R_j / T) / sum_k exp(R_k / T))

  continuations. R is the chain score; with the aggregate 'last' it is the
  paper's reward of the last step. The search ends when no chain is open or B is
  used up.

  The shares are rounded one by one and need not add up to B. The paper does not
  say what happens if all of them round to 0; here the best leaf then gets 1.
  """
  left = config.samples
  new = yield [Expand(ROOT, left)]
  while True:
    leaves = [i for several in new for i in several]
    going_on = [i for i in leaves if not tree.nodes[i].ended]
    left -= len(leaves) - len(going_on)
    if left < 1 or not going_on:
      return
    rewards = [chain_value(tree.nodes[i], common) for i in going_on]
    shares = allot(rewards, left, config.temperature)
    new = yield [
      Expand(i, share)
      for i, share in zip(going_on, shares, strict=True)
      if share
    ]


def allot(
  rewards: Sequence[float], budget: int, temperature: float
) -> list[int]:
  """Returns the number of continuations W of each leaf; halves round to even.

  Args:
    rewards: R of each leaf; there is at least one.
    budget: B, at least 1.
    temperature: T, above 0.
  """
  greatest = max(rewards)
  weights = [math.exp((r - greatest) / temperature) for r in rewards]
  total = sum(weights)
  shares = [round(budget * weight / total) for weight in weights]
  if not any(shares):
    shares[rewards.index(greatest)] = 1
  return shares
