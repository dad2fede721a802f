"""Drops chains of best-of-N as soon as they can no longer win.

This is best-first search (Hart et al., 1968) over N chains that do not branch:
the score of a chain so far is an upper bound of its final score.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated

from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least
from prm_jax.runtime.errors import UserError
from prm_jax.search.method import Expand, Grow, SearchConfig
from prm_jax.search.tree import ROOT, Tree

REJECTED = 'rejected at step'  # the reason in the tree, before the step number
# By how much a chain score may still rise, relative to itself: `prod` is a sum
# of float32 logarithms, whose rounding depends on the order of addition.
ROUNDING = {'min': 0.0, 'prod': 1e-5}


@dataclasses.dataclass(frozen=True)
class EarlyRejectionConfig:
  """Sets the number of chains and how many grow together.

  Attributes:
    samples: N, the number of chains.
    width: number of chains that grow per round. 1 writes the fewest tokens and
      takes the most rounds.
  """

  samples: Annotated[int, at_least(1)] = 16
  width: Annotated[int, at_least(1)] = 2

  def __post_init__(self) -> None:
    checks.check(self)


def early_rejection(
  tree: Tree, config: EarlyRejectionConfig, common: SearchConfig
) -> Grow:
  """Grows the chains with the highest scores first and drops losing ones.

  A minimum or a product of probabilities only falls as a chain grows, so a
  chain that scores below one that has ended cannot win and is dropped. Among
  equals the later chain is dropped. The result is the chain that best-of-N
  chooses with the same key, unless a limit of the policy cuts a chain off.

  The ledger counts the dropped chains by their number of steps and estimates
  the tokens that they would still have written (`saved_tokens`).

  Raises:
    UserError: The aggregate may rise as a chain grows.
  """
  if common.aggregate not in ROUNDING:
    raise UserError(
      f'search.aggregate={common.aggregate!r}: may rise as a chain grows, so '
      'that early_rejection cannot tell which chains have lost; expected one '
      f'of {", ".join(ROUNDING)}'
    )
  ended = [_rank(tree, i) for i in tree.ended()]  # in an earlier search
  best_end = min(ended, default=(math.inf, math.inf))
  new = yield [Expand(ROOT, config.samples)]
  growing: list[tuple[float, int, int]] = []  # sorted: rank, then last node
  while True:
    for i in itertools.chain.from_iterable(new):
      if tree.nodes[i].ended:
        best_end = min(best_end, _rank(tree, i))
      else:
        bisect.insort(growing, (*_rank(tree, i), i))
    # Chains that have lost are behind all others.
    while growing and _has_lost(growing[-1], best_end, common):
      node = tree.nodes[growing.pop()[-1]]
      node.dead = f'{REJECTED} {node.depth}'
    if not growing:
      return
    first, growing = growing[: config.width], growing[config.width :]
    new = yield [Expand(i, 1) for *_, i in first]


def saved_tokens(tree: Tree, rejected: Sequence[int]) -> int:
  """Estimates the tokens that dropped chains would still have written.

  The estimate assumes that each would have had as many steps, and as many
  tokens per step, as the chains that ended have on average. The ledger of a
  best-of-N search with the same key has the exact number.

  Args:
    rejected: nodes at which chains were dropped.

  Returns:
    sum_i max(0, mean steps - steps of i) x (tokens / steps of all that ended).
  """
  ended = tree.ended()
  if not ended or not rejected:
    return 0
  steps = sum(tree.nodes[i].depth for i in ended)
  tokens = sum(tree.nodes[i].tokens for i in _nodes_of_chains(tree, ended))
  lacking = [max(0, steps / len(ended) - tree.nodes[i].depth) for i in rejected]
  return round(sum(lacking) * tokens / steps)


def _nodes_of_chains(tree: Tree, ends: Sequence[int]) -> Iterator[int]:
  """Yields every node of the chains, including nodes without a step."""
  for end in ends:
    at = end
    while at != ROOT:
      yield at
      at = tree.nodes[at].parent


def _rank(tree: Tree, index: int) -> tuple[float, int]:
  """Returns the rank of the chain up to a node; the lowest rank is the best.

  It is the negated chain score and, for equal scores, the chain's first node.
  """
  return -tree.nodes[index].chain_score, tree.path(index)[0]


def _has_lost(
  chain: tuple[float, int, int],
  best_end: tuple[float, float],
  common: SearchConfig,
) -> bool:
  """Says whether a growing chain can no longer beat the best ended one.

  Args:
    chain: rank and last node of the growing chain.
    best_end: rank of the best chain that ended.
  """
  negated, began, _ = chain
  lowest = negated - ROUNDING[common.aggregate] * abs(negated)
  return (lowest, began) > best_end
