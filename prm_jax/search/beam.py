"""Searches with beams of steps: beam search, lookahead search and DVTS.

Beam search proposes steps, keeps the best chains and expands each of them
(Snell et al., 2024, section 5.2; Beeching et al., 2024). Lookahead search ranks
proposals by what follows them, and DVTS runs many narrow beams side by side.
"""

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Annotated

from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least
from prm_jax.search.method import Expand, Grow, SearchConfig
from prm_jax.search.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True)
class BeamConfig:
  """Sets the size of the beam, or of the trees of `dvts`.

  Attributes:
    samples: N, the number of steps proposed per round.
    width: M, the number of proposals per beam or tree; N / M beams are kept, or
      there are N / M trees.
  """

  samples: Annotated[int, at_least(1)] = 16
  width: Annotated[int, at_least(1)] = 4

  def __post_init__(self) -> None:
    checks.check(self)
    _check_beams(self.samples, self.width)


@dataclasses.dataclass(frozen=True)
class LookaheadConfig:
  """Sets the size of the beam and how far it looks ahead.

  Attributes:
    samples, width: N and M, as in `BeamConfig`.
    steps: k, the number of steps rolled out after each proposal; 0 is plain
      beam search.
  """

  samples: Annotated[int, at_least(1)] = 16
  width: Annotated[int, at_least(1)] = 4
  steps: Annotated[int, at_least(0)] = 1

  def __post_init__(self) -> None:
    checks.check(self)
    _check_beams(self.samples, self.width)


def beam(tree: Tree, config: BeamConfig, common: SearchConfig) -> Grow:
  """Keeps the N / M best open chains per round and proposes M steps of each.

  A chain that ends leaves its place to the next best one. The search ends when
  no chain is open.
  """
  look = LookaheadConfig(config.samples, config.width, steps=0)
  return lookahead(tree, look, common)


def lookahead(
  tree: Tree, config: LookaheadConfig, common: SearchConfig
) -> Grow:
  """Ranks proposals by their score k steps later, otherwise as beam search.

  This is lookahead search (Snell et al., 2024, section 5.2). A proposal is
  ranked by the chain score at the end of one rollout of k steps, or by its own
  score if it ended or the rollout failed. Rollouts use the policy's ordinary
  sampling and are discarded.
  """
  del common
  new = yield [Expand(ROOT, config.samples)]
  while True:
    leaves = [i for several in new for i in several]
    scores = yield from _look_ahead(tree, leaves, config.steps)
    kept = _keep_best(tree, leaves, scores, config.samples // config.width)
    if not kept:
      return
    new = yield [Expand(i, config.width) for i in kept]


def dvts(tree: Tree, config: BeamConfig, common: SearchConfig) -> Grow:
  """Grows N / M trees side by side, each from its best step only.

  This is diverse verifier tree search (Beeching et al., 2024). As each tree
  keeps one chain, no tree can crowd out the others. A tree whose best step ends
  the chain is done, whereas beam search would go on with the next best step.
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


def _check_beams(samples: int, width: int) -> None:
  """Raises Faults unless N is a multiple of M."""
  if samples % width:
    checks.fail('samples', samples, f'expected a multiple of width={width}')


def _look_ahead(
  tree: Tree, leaves: Sequence[int], steps: int
) -> Generator[list[Expand], list[list[int]], dict[int, float]]:
  """Returns the chain score of each leaf after a rollout of `steps` steps."""
  scores = {i: tree.nodes[i].chain_score for i in leaves}
  looking = [i for i in leaves if steps and not tree.nodes[i].ended]
  if looking:
    rolled = yield [Expand(i, 1, steps, scratch='ahead') for i in looking]
    for i, ends in zip(looking, rolled, strict=True):
      for end in ends:
        scores[i] = tree.nodes[end].chain_score
  return scores


def _keep_best(
  tree: Tree, leaves: Sequence[int], scores: Mapping[int, float], count: int
) -> list[int]:
  """Returns the `count` best open leaves, in the order of their indices."""
  still_open = [i for i in leaves if not tree.nodes[i].ended]
  return sorted(sorted(still_open, key=lambda i: -scores[i])[:count])
