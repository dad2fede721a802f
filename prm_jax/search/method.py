"""What a method of search is: a coroutine that says which leaves to go on with.

Between `searching.py`, which runs it, and the methods (`methods.py` has them by
name).
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm_jax.inference.score import AGGREGATES
from prm_jax.runtime.errors import UserError
from prm_jax.search.tree import Node, Tree


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """What all methods have in common.

  Attributes:
    aggregate: how step scores become a chain's score, one of
      `score.AGGREGATES`. Compare chains of unequal length with care: a sum
      grows and a product falls with every step.
    max_steps: of a chain; a longer one is given up.
    max_repeats: how often a step may stand in a row; a chain in which one
      stands more often is given up.
  """

  aggregate: str = 'min'
  max_steps: int = 64
  max_repeats: int = 8

  def __post_init__(self) -> None:
    if self.aggregate not in AGGREGATES:
      raise UserError(
        f'search.aggregate={self.aggregate!r}: expected one of '
        f'{", ".join(AGGREGATES)}'
      )
    for name in ('max_steps', 'max_repeats'):
      if getattr(self, name) < 1:
        raise UserError(f'search.{name}={getattr(self, name)}: expected >= 1')


class Task(NamedTuple):
  """A problem to search.

  Attributes:
    id: no other problem of the search has it; what is drawn depends on it.
    text: the problem.
    truth: the right answer; '' where nobody knows it. It is looked at when all
      is over.
  """

  id: str
  text: str
  truth: str = ''
  dataset: str = ''


class Expand(NamedTuple):
  """Steps that are wanted of a node that is alive and has not ended.

  Attributes:
    node: its index.
    samples: how many. The first goes on with the node's own stream, where no
      earlier one did: alone it is the chain that the policy would have written.
    max_steps: of each; 0: to the chain's end.
    scratch: what they are looked at for, and then forgotten: 'ahead', or 'last'
      when all else is done. Each has draws of its own. '': they are kept.
    round_size: whole chains that are asked for between two looks at a budget of
      tokens, FLOPs or seconds, which few of them may use up.
  """

  node: int
  samples: int
  max_steps: int = 1
  scratch: str = ''
  round_size: int = 4


# What a method is: it is given the tree, yields what it wants, and is sent, for
# each Expand, the last node of every sample that came of it and is alive. It
# ends when it wants no more, or is not asked again when the budget is spent.
Grow = Generator[Sequence[Expand], list[list[int]], None]


# What methods need a policy to do: to write chains from the problem on; to go
# on with its own chains where it stopped; or to do so in several ways.
NEEDS = ('chains', 'steps', 'branches')


class Method(NamedTuple):
  """A way to search.

  Attributes:
    grow: of the tree, the method's own config and the problem's.
    choose: of the tree, the last nodes of the chains that may be chosen (ended
      ones; if there are none, the longest), and the problem's config: one of
      them. They come in the tree's order.
    scores: whether the PRM is asked.
    config: of the values of the method's section.
    needs: of a policy, one of NEEDS.
  """

  grow: Callable[[Tree, Any, SearchConfig], Grow]
  choose: Callable[[Tree, Sequence[int], SearchConfig], int]
  scores: bool
  config: type
  needs: str = 'branches'


def chain_value(node: Node, config: SearchConfig) -> float:
  """A node's chain score as a number that can be added and averaged.

  That of `prod` is a logarithm: the product itself.
  """
  score = -math.inf if node.chain_score is None else node.chain_score
  return math.exp(score) if config.aggregate == 'prod' else score


def best(tree: Tree, candidates: Sequence[int], config: SearchConfig) -> int:
  """The highest chain score, the first of equals."""
  del config
  scores = [tree.nodes[i].chain_score for i in candidates]
  # The PRM was not asked about what a limit cut off, and what came before.
  known = [-math.inf if score is None else score for score in scores]
  return candidates[int(np.argmax(known))]
