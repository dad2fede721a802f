"""Searches with Monte Carlo tree search, the PRM giving the values of leaves.

The formula is PUCT (Rosin, 2011; Silver et al., 2017). A search can continue a
tree that was kept: 32 simulations and later 32 more give the same tree as 64,
provided that `leaves` divides 32.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Annotated

from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, one_of
from prm_jax.search.method import Expand, Grow, SearchConfig, best, chain_value
from prm_jax.search.tree import ROOT, Node, Tree

PRIORS = ('policy', 'uniform')


@dataclasses.dataclass(frozen=True)
class MctsConfig:
  """Sets the size of the search and how it explores.

  Attributes:
    simulations: number of walks from the problem to a leaf, which is expanded.
    width: number of steps proposed at a leaf.
    c_puct: weight of exploration. As values lie in [0, 1], a large weight keeps
      most simulations from reaching the end of a chain: in the arithmetic
      domain 0.125 finds more right answers with fewer tokens than 0.5 or 1.
    leaves: number of simulations per round; each counts as a visit for the
      later ones of its round.
    prior: 'policy' (softmax of the siblings' log-probabilities) or 'uniform'.
      Priors are uniform, too, if the policy gives no log-probabilities.
    rollouts: number of rollouts to the end of the chain from a leaf, whose mean
      score is the leaf's value; with 0 it is the score of the best child.
  """

  simulations: Annotated[int, at_least(1)] = 64
  width: Annotated[int, at_least(1)] = 4
  c_puct: Annotated[float, at_least(0)] = 0.125
  leaves: Annotated[int, at_least(1)] = 4
  prior: Annotated[str, one_of(*PRIORS)] = 'policy'
  rollouts: Annotated[int, at_least(0)] = 0

  def __post_init__(self) -> None:
    checks.check(self)


def mcts(tree: Tree, config: MctsConfig, common: SearchConfig) -> Grow:
  """Runs simulations in rounds of `leaves`, after expanding the problem.

  A simulation walks from the root to the child with the largest

      Q(c) + c_puct P(c) sqrt(1 + sum_b N(b)) / (1 + N(c))

  until it reaches a leaf. The 1 under the square root lets the priors decide
  among children that were never visited; their Q is their own chain score. The
  leaf gets `width` children, and its value enters the mean Q of every node on
  the path. That value is the highest chain score among the new children or,
  with `rollouts`, the mean chain score of its rollouts, where an unfinished one
  counts 0. The right answer is never used. A leaf at which the chain ended is
  not expanded and keeps its own score. A leaf with only dead children has the
  value 0.

  Earlier simulations of the same round count in N but not in Q (Liu et al.,
  2020), which spreads a round over the tree. If several end at the same leaf,
  it is expanded once.

  If the most visited path is still open after all simulations, its chain is
  written to the end in `width` ways. These chains and the rollouts are not part
  of the tree that a later search continues.
  """
  if not _scored_children(tree, ROOT):
    yield [Expand(ROOT, config.width)]
  done = 0
  while done < config.simulations and _scored_children(tree, ROOT):
    under_way: Counter[int] = Counter()
    walks = []
    for _ in range(min(config.leaves, config.simulations - done)):
      walks.append(_walk(tree, under_way, config, common))
      under_way.update(walks[-1])
    values = yield from _evaluate(
      tree, list(dict.fromkeys(walk[-1] for walk in walks)), config, common
    )
    for walk in walks:
      for i in walk:
        node = tree.nodes[i]
        node.visits += 1
        node.value += (values[walk[-1]] - node.value) / node.visits
    done += len(walks)
  last = _most_visited(tree, common)
  if not tree.nodes[last].ended:
    yield [Expand(last, config.width, 0, scratch='last')]


def best_end(
  tree: Tree, candidates: Sequence[int], config: SearchConfig
) -> int:
  """Returns the best chain that ended, in the tree or in a rollout."""
  ended = tree.ended() + tree.ended(scratch=True)
  return best(tree, ended or candidates, config)


def priors(tree: Tree, siblings: Sequence[int], how: str) -> list[float]:
  """Returns the priors P of siblings, which add up to 1."""
  logprobs = [tree.nodes[i].logprob for i in siblings]
  if how == 'uniform' or None in logprobs:
    return [1 / len(siblings)] * len(siblings)
  weights = [math.exp(each - max(logprobs)) for each in logprobs]
  return [weight / sum(weights) for weight in weights]


def _scored_children(tree: Tree, index: int) -> list[int]:
  """Returns the children of a node that are alive and have a chain score.

  A kept tree may have others: the PRM is not asked about a whole chain that a
  limit of an earlier search cut off.
  """
  return [
    i
    for i in tree.live_children(index)
    if tree.nodes[i].chain_score is not None
  ]


def _walk(
  tree: Tree,
  under_way: Counter[int],
  config: MctsConfig,
  common: SearchConfig,
) -> list[int]:
  """Walks from the root to a leaf by PUCT and returns the nodes on the way.

  Args:
    under_way: visits by earlier simulations of the same round.
  """
  walk = [ROOT]
  while children := _scored_children(tree, walk[-1]):
    visits = [tree.nodes[i].visits + under_way[i] for i in children]
    prior = priors(tree, children, config.prior)
    scale = config.c_puct * math.sqrt(1 + sum(visits))
    puct = [
      _mean_value(tree.nodes[i], common) + scale * p / (1 + n)
      for i, n, p in zip(children, visits, prior, strict=True)
    ]
    walk.append(children[puct.index(max(puct))])
  return walk


def _most_visited(tree: Tree, common: SearchConfig) -> int:
  """Follows the most visited child from the root and returns the last node.

  Among equals, as below a leaf, whose children have no visits, it follows the
  one with the greatest Q.
  """
  at = ROOT
  while children := _scored_children(tree, at):
    worth = {
      i: (tree.nodes[i].visits, _mean_value(tree.nodes[i], common))
      for i in children
    }
    at = max(worth, key=worth.__getitem__)
  return at


def _mean_value(node: Node, common: SearchConfig) -> float:
  """Returns Q of a node."""
  return node.value if node.visits else chain_value(node, common)


def _evaluate(
  tree: Tree, leaves: Sequence[int], config: MctsConfig, common: SearchConfig
) -> Generator[list[Expand], list[list[int]], dict[int, float]]:
  """Expands leaves and returns the value of each."""
  values = {i: chain_value(tree.nodes[i], common) for i in leaves}
  growing = [i for i in leaves if not tree.nodes[i].ended]
  if not growing:
    return values
  rollouts_before = [tree.nodes[i].ahead for i in growing]
  new = yield [
    *(Expand(i, config.width) for i in growing),
    *(Expand(i, config.rollouts, 0, scratch='ahead') for i in growing),
  ]
  children, rolled = new[: len(growing)], new[len(growing) :]
  for i, before, found, ends in zip(
    growing, rollouts_before, children, rolled, strict=True
  ):
    if found or tree.nodes[i].drawn:
      worth = [chain_value(tree.nodes[child], common) for child in found]
      values[i] = max(worth, default=0.0)
    # The number asked for, which a budget may have cut below `rollouts`.
    if (asked := tree.nodes[i].ahead - before) and found:
      values[i] = sum(chain_value(tree.nodes[e], common) for e in ends) / asked
  return values
