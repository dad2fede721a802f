"""REBASE: every leaf gets its share of the budget, by its reward.

Wu et al. (2024), "Inference Scaling Laws", section 3.
"""

import dataclasses
import math
from collections.abc import Sequence

from prm_jax.runtime.errors import UserError
from prm_jax.search.method import Expand, Grow, SearchConfig, chain_value
from prm_jax.search.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True)
class RebaseConfig:
  """The balance.

  Attributes:
    samples: N, the chains that it is to end with.
    temperature: T; near 0 the best leaf gets all, at inf all get the same.
  """

  samples: int = 16
  temperature: float = 0.2

  def __post_init__(self) -> None:
    if self.samples < 1:
      raise UserError(f'rebase.samples={self.samples}: expected >= 1')
    if not self.temperature > 0:
      raise UserError(f'rebase.temperature={self.temperature}: expected > 0')


def rebase(tree: Tree, config: RebaseConfig, common: SearchConfig) -> Grow:
  """Splits at every depth what is left of N over the open leaves.

  B = N at first, and less by one with every chain that ends. Leaf j with the
  reward R_j is gone on with in

      W_j = round(B exp(R_j / T) / sum_k exp(R_k / T))

  ways. R is the chain score, which is the paper's reward of the last step where
  `aggregate` is 'last'. It ends when nothing is open or B is used up.

  The shares are rounded one by one, so that they need not add up to B. The
  paper leaves open what happens when all round to 0: here the best leaf then
  gets 1.
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
  """W of each leaf; halves are rounded to even.

  Args:
    rewards: R of each, one at least.
    budget: B, at least 1.
  """
  greatest = max(rewards)
  weights = [math.exp((r - greatest) / temperature) for r in rewards]
  total = sum(weights)
  shares = [round(budget * weight / total) for weight in weights]
  if not any(shares):
    shares[rewards.index(greatest)] = 1
  return shares
