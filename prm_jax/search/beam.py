"""Step-level beam search: propose, keep the best beams, go on with each.

Snell et al. (2024), section 5.2; Beeching et al. (2024).
"""

import dataclasses

from prm_jax.errors import UserError
from prm_jax.search.searching import Expand, Grow, SearchConfig
from prm_jax.search.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True)
class BeamConfig:
  """The size of the beam.

  Attributes:
    samples: N, the steps that are proposed in a round.
    width: M, proposals from each beam; N / M beams are kept.
  """

  samples: int = 16
  width: int = 4

  def __post_init__(self):
    if self.width < 1:
      raise UserError(f'beam.width={self.width}: expected >= 1')
    if self.samples < 1 or self.samples % self.width:
      raise UserError(
        f'beam.samples={self.samples}: expected a multiple of '
        f'beam.width={self.width}'
      )


def beam(tree: Tree, config: BeamConfig, common: SearchConfig) -> Grow:
  """Keeps the N / M open chains with the highest scores; M steps of each.

  A chain that ended leaves its place to the next. It ends when no chain is
  open.
  """
  del common
  new = yield [Expand(ROOT, config.samples)]
  while True:
    leaves = [i for several in new for i in several]
    ranked = sorted(leaves, key=lambda i: -tree.nodes[i].chain_score)
    # In the order in which they came, so that equals stay in theirs.
    kept = sorted(ranked[: config.samples // config.width])
    going_on = [i for i in kept if not tree.nodes[i].ended]
    if not going_on:
      return
    new = yield [Expand(i, config.width) for i in going_on]
