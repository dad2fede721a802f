"""Early rejection: best-of-N that drops a chain once it cannot win any more.

Best-first search over N chains that do not branch (Hart et al., 1968): a
chain's score so far bounds what it can end with.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from prm_jax.runtime.errors import UserError
from prm_jax.search.method import Expand, Grow, SearchConfig, best
from prm_jax.search.tree import ROOT, Tree

REJECTED = 'rejected at step'  # why a chain is dead, with the number
# What float32 sums of logarithms, added up in another order, differ by at most.
ROUNDING = {'min': 0.0, 'prod': 1e-5}


@dataclasses.dataclass(frozen=True)
class EarlyRejectionConfig:
  """The chains.

  Attributes:
    samples: N.
    width: chains that grow in a round. 1 writes the fewest tokens, in the most
      rounds.
  """

  samples: int = 16
  width: int = 2

  def __post_init__(self) -> None:
    for name in ('samples', 'width'):
      if getattr(self, name) < 1:
        value = getattr(self, name)
        raise UserError(f'early_rejection.{name}={value}: expected >= 1')


def early_rejection(
  tree: Tree, config: EarlyRejectionConfig, common: SearchConfig
) -> Grow:
  """Grows the chains that score highest so far; the others as far as they must.

  A minimum or a product of probabilities only falls as a chain grows, so a
  chain whose score so far is below that of one that ended cannot be chosen.
  It is dropped, and of equals the later one. What is chosen is what best-of-N
  chooses at the same key, as long as no limit of the policy's cuts a chain.

  The ledger counts the dropped chains by the steps that they had, and estimates
  what these would have gone on to write (`saved_tokens`).

  Raises:
    UserError: the aggregate may rise.
  """
  if common.aggregate not in ROUNDING:
    raise UserError(
      f'search.aggregate={common.aggregate!r}: may rise as a chain grows, so '
      'that early_rejection cannot tell which chains have lost; expected one '
      f'of {", ".join(ROUNDING)}'
    )
  new = yield [Expand(ROOT, config.samples)]
  growing: list[int] = []
  while True:
    growing += [i for several in new for i in several]
    growing = [i for i in growing if not tree.nodes[i].ended]
    if ended := tree.ended():
      winner = best(tree, ended, common)
      lost = [i for i in growing if _has_lost(tree, i, winner, common)]
      for i in lost:
        tree.nodes[i].dead = f'{REJECTED} {tree.nodes[i].depth}'
      growing = [i for i in growing if i not in lost]
    if not growing:
      return
    growing.sort(key=lambda i: (-tree.nodes[i].chain_score, tree.path(i)))
    first, growing = growing[: config.width], growing[config.width :]
    new = yield [Expand(i, 1) for i in first]


def saved_tokens(tree: Tree, rejected: Sequence[int]) -> int:
  """What dropped chains would have gone on to write: an estimate.

  Each is taken to become as long as the chains that ended are on average, and
  its steps to take as many tokens as theirs. What these would really have been
  nobody knows; the ledger of best-of-N at the same key has it.

  Args:
    rejected: where they were dropped.

  Returns:
    sum_i max(0, mean length - steps of i) x (tokens / steps of all that ended).
  """
  ended = tree.ended()
  if not ended or not rejected:
    return 0
  steps = sum(tree.nodes[i].depth for i in ended)
  tokens = sum(tree.nodes[i].tokens for i in _until(tree, ended))
  lacking = [max(0, steps / len(ended) - tree.nodes[i].depth) for i in rejected]
  return round(sum(lacking) * tokens / steps)


def _until(tree: Tree, ends: Sequence[int]) -> Iterator[int]:
  """Every node of some chains, those without a step included."""
  for end in ends:
    at = end
    while at != ROOT:
      yield at
      at = tree.nodes[at].parent


def _has_lost(
  tree: Tree, index: int, winner: int, common: SearchConfig
) -> bool:
  score = tree.nodes[index].chain_score
  most = score + ROUNDING[common.aggregate] * abs(score)
  to_beat = tree.nodes[winner].chain_score
  later = tree.path(index) > tree.path(winner)
  return most < to_beat or (most == to_beat and later)
