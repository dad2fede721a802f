"""Step-level beam search: propose, keep the best beams, go on with each.

Snell et al. (2024), section 5.2; Beeching et al. (2024). With the two methods
that are beams otherwise arranged: DVTS and lookahead search.
"""

import dataclasses
from collections.abc import Generator, Mapping, Sequence

from prm_jax.runtime.errors import UserError
from prm_jax.search.method import Expand, Grow, SearchConfig
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

  def __post_init__(self) -> None:
    _check_beams('beam', self.samples, self.width)


@dataclasses.dataclass(frozen=True)
class DvtsConfig:
  """The trees.

  Attributes:
    samples: N, the steps that are proposed in a round.
    width: M, proposals in each tree; there are N / M trees.
  """

  samples: int = 16
  width: int = 4

  def __post_init__(self) -> None:
    _check_beams('dvts', self.samples, self.width)


@dataclasses.dataclass(frozen=True)
class LookaheadConfig:
  """The beam, and how far it looks.

  Attributes:
    samples, width: N and M, as `BeamConfig`'s.
    steps: k, that are rolled out of each proposal; 0: beam search.
  """

  samples: int = 16
  width: int = 4
  steps: int = 1

  def __post_init__(self) -> None:
    _check_beams('lookahead', self.samples, self.width)
    if self.steps < 0:
      raise UserError(f'lookahead.steps={self.steps}: expected >= 0')


def beam(tree: Tree, config: BeamConfig, common: SearchConfig) -> Grow:
  """Keeps the N / M open chains with the highest scores; M steps of each.

  A chain that ended leaves its place to the next. It ends when no chain is
  open.
  """
  look = LookaheadConfig(config.samples, config.width, steps=0)
  return lookahead(tree, look, common)


def lookahead(
  tree: Tree, config: LookaheadConfig, common: SearchConfig
) -> Grow:
  """Beam search that ranks a proposal by what comes of it k steps later.

  Lookahead search (Snell et al., 2024, section 5.2). A proposal has the chain
  score at the end of one rollout of k steps; one that ended, and one of whose
  rollout nothing came, its own. Rollouts are sampled as everything else and
  forgotten.
  """
  del common
  new = yield [Expand(ROOT, config.samples)]
  while True:
    leaves = [i for several in new for i in several]
    scores = yield from _look_ahead(tree, leaves, config.steps)
    kept = _kept(tree, leaves, scores, config.samples // config.width)
    if not kept:
      return
    new = yield [Expand(i, config.width) for i in kept]


def dvts(tree: Tree, config: DvtsConfig, common: SearchConfig) -> Grow:
  """N / M trees side by side, each of which goes on with its best step.

  Diverse verifier tree search (Beeching et al., 2024): beams of one beam each,
  so that none takes the places of all. A tree whose best step ends the chain
  is done, where a beam would go on with the next: its one place is taken.
  """
  del common
  new = yield [Expand(ROOT, config.width)] * (config.samples // config.width)
  while True:
    best = [
      max(leaves, key=lambda i: tree.nodes[i].chain_score)
      for leaves in new
      if leaves
    ]
    kept = [i for i in best if not tree.nodes[i].ended]
    if not kept:
      return
    new = yield [Expand(i, config.width) for i in kept]


def _check_beams(section: str, samples: int, width: int) -> None:
  if width < 1:
    raise UserError(f'{section}.width={width}: expected >= 1')
  if samples < 1 or samples % width:
    raise UserError(
      f'{section}.samples={samples}: expected a multiple of '
      f'{section}.width={width}'
    )


def _look_ahead(
  tree: Tree, leaves: Sequence[int], steps: int
) -> Generator[list[Expand], list[list[int]], dict[int, float]]:
  """The scores of leaves, `steps` later."""
  scores = {i: tree.nodes[i].chain_score for i in leaves}
  looking = [i for i in leaves if steps and not tree.nodes[i].ended]
  if looking:
    rolled = yield [Expand(i, 1, steps, scratch='ahead') for i in looking]
    for i, ends in zip(looking, rolled, strict=True):
      for end in ends:
        scores[i] = tree.nodes[end].chain_score
  return scores


def _kept(
  tree: Tree, leaves: Sequence[int], scores: Mapping[int, float], count: int
) -> list[int]:
  """The `count` best of the open ones, in the order in which they came."""
  still_open = [i for i in leaves if not tree.nodes[i].ended]
  return sorted(sorted(still_open, key=lambda i: -scores[i])[:count])
