"""Defines a search method: a coroutine that says which leaves to expand.

`searching.py` runs a method over one problem; `methods.py` lists the methods by
name. This module has the types that they share.
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from prm_jax.inference.score import AGGREGATES
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, one_of
from prm_jax.search.tree import Node, Tree


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """Holds the settings that all methods share.

  Attributes:
    aggregate: how step scores become a chain score, one of `score.AGGREGATES`.
      Compare chains of unequal length with care: a sum grows and a product
      falls with every step.
    max_steps: largest number of steps of a chain; a longer one is given up.
    max_repeats: how often a step may occur in a row; a chain in which one
      occurs more often is given up.
  """

  aggregate: Annotated[str, one_of(*AGGREGATES)] = 'min'
  max_steps: Annotated[int, at_least(1)] = 64
  max_repeats: Annotated[int, at_least(1)] = 8

  def __post_init__(self) -> None:
    checks.check(self)


class Task(NamedTuple):
  """Holds a problem to search.

  Attributes:
    id: unique among the problems of a search; the random draws depend on it.
    truth: the right answer, '' if unknown. It is used only to grade the chains
      once the search has ended.
    dataset: name of the data set, for the meta of the chains.
  """

  id: str
  text: str
  truth: str = ''
  dataset: str = ''


class Expand(NamedTuple):
  """Asks for continuations of a node that is alive and has not ended.

  Attributes:
    node: index of the node.
    samples: number of continuations. The first of a node continues the node's
      own random stream, so that it is the chain that the policy would have
      written without being stopped.
    max_steps: number of steps of each; 0 goes to the end of the chain.
    scratch: '' adds the continuations to the tree. 'ahead' (lookahead rollouts)
      and 'last' (rollouts after the last round) are scored and then discarded.
      Each of the three values has random draws of its own.
    round_size: number of whole chains asked for between two checks of a budget
      in tokens, FLOPs or seconds.
  """

  node: int
  samples: int
  max_steps: int = 1
  scratch: str = ''
  round_size: int = 4


# A running method. It yields the expansions that it wants and is sent, for each
# of them, the last node of every resulting sample that is alive. It returns
# when it wants no more, and is closed when the budget is spent.
Grow = Generator[Sequence[Expand], list[list[int]], None]


# What a method needs a policy to do: to write whole chains; to continue its own
# chains where it stopped; or to continue a chain in several ways.
NEEDS = ('chains', 'steps', 'branches')


class Method(NamedTuple):
  """Describes a way to search.

  Attributes:
    grow: starts the method, given the tree, its own settings and the shared
      ones.
    choose: chooses one of the candidates, given the tree, the candidates and
      the shared settings. Candidates are the last nodes of the chains that
      ended or, if none did, of the longest chains, in the tree's order.
    scores: whether the PRM is asked.
    config: class of the method's own settings.
    needs: what it needs the policy to do, one of NEEDS.
  """

  grow: Callable[[Tree, Any, SearchConfig], Grow]
  choose: Callable[[Tree, Sequence[int], SearchConfig], int]
  scores: bool
  config: type
  needs: str = 'branches'


def chain_value(node: Node, config: SearchConfig) -> float:
  """Returns a node's chain score on a scale that can be added and averaged.

  For `prod`, whose chain scores are logarithms, that is the product itself.
  """
  score = -math.inf if node.chain_score is None else node.chain_score
  return math.exp(score) if config.aggregate == 'prod' else score


def best(tree: Tree, candidates: Sequence[int], config: SearchConfig) -> int:
  """Returns the candidate with the highest chain score, the first of equals."""
  del config
  scores = [tree.nodes[i].chain_score for i in candidates]
  # Nodes without a score rank last: the PRM is not asked about chains that a
  # limit cut off.
  known = [-math.inf if score is None else score for score in scores]
  return candidates[int(np.argmax(known))]
