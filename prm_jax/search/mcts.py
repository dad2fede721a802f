"""Monte Carlo tree search: PUCT, with the PRM as the value of a leaf.

Rosin (2011) and Silver et al. (2017) for the formula. A tree that was kept is
gone on with: simulations 0 to 31 and later 32 to 63 are 64 at once, where
`leaves` divides 32.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Generator, Sequence

from prm_jax.runtime.errors import UserError
from prm_jax.search.method import Expand, Grow, SearchConfig, best, chain_value
from prm_jax.search.tree import ROOT, Node, Tree

PRIORS = ('policy', 'uniform')


@dataclasses.dataclass(frozen=True)
class MctsConfig:
  """The search.

  Attributes:
    simulations: walks from the problem to a leaf, which is then expanded.
    width: steps that are proposed of a leaf.
    c_puct: weight of what was visited little. Values lie in [0, 1], and few
      simulations get to the end of a chain where it is large: on the arithmetic
      domain 0.125 finds more right answers with fewer tokens than 0.5 or 1.
    leaves: simulations of one round; those under way count as visits.
    prior: 'policy' (softmax of the siblings' log-probabilities) or 'uniform',
      which it is too where the policy does not tell them.
    rollouts: to the chain's end from a leaf, whose mean score is its value; 0:
      the score of its best child is.
  """

  simulations: int = 64
  width: int = 4
  c_puct: float = 0.125
  leaves: int = 4
  prior: str = 'policy'
  rollouts: int = 0

  def __post_init__(self) -> None:
    for name, least in (
      ('simulations', 1),
      ('width', 1),
      ('c_puct', 0),
      ('leaves', 1),
      ('rollouts', 0),
    ):
      value = getattr(self, name)
      if not value >= least:
        raise UserError(f'mcts.{name}={value}: expected >= {least}')
    if self.prior not in PRIORS:
      raise UserError(
        f'mcts.prior={self.prior!r}: expected one of {", ".join(PRIORS)}'
      )


def mcts(tree: Tree, config: MctsConfig, common: SearchConfig) -> Grow:
  """Simulations in rounds of `leaves`; the problem itself is expanded before.

  A simulation goes from the root to the child with the greatest

      Q(c) + c_puct P(c) sqrt(1 + sum_b N(b)) / (1 + N(c))

  until it is at a leaf; the 1 under the root lets the priors decide where
  nothing was visited. The leaf gets `width` children, and its value goes into
  the mean Q of every node on the way: the highest chain score among its new
  children, or, with `rollouts`, the mean of those of its finished rollouts (the
  PRM judges; the right answer is not looked at), where one that did not come to
  its end counts 0. A chain that ended is a leaf that is not expanded and has
  its own score; a leaf whose children are all dead is worth 0. Q of what was
  never visited is its own score.

  Simulations of the same round that are under way are visits whose value is not
  known yet, in N and not in Q (Liu et al., 2020), which spreads them. Several
  may end at the same leaf, which is then expanded once.

  Where the most visited path is still open when all simulations are done, its
  chain is written to the end in `width` ways. These and rollouts are no part of
  the tree that is gone on with.
  """
  if not tree.live_children(ROOT):
    yield [Expand(ROOT, config.width)]
  done = 0
  while done < config.simulations and tree.live_children(ROOT):
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
  last = _most_visited(tree)
  if not tree.nodes[last].ended:
    yield [Expand(last, config.width, 0, scratch='last')]


def best_end(
  tree: Tree, candidates: Sequence[int], config: SearchConfig
) -> int:
  """The best chain that ended, be it in the tree or in a rollout."""
  ended = tree.ended() + tree.ended(scratch=True)
  return best(tree, ended or candidates, config)


def priors(tree: Tree, siblings: Sequence[int], how: str) -> list[float]:
  """P of siblings, adding up to 1."""
  logprobs = [tree.nodes[i].logprob for i in siblings]
  if how == 'uniform' or None in logprobs:
    return [1 / len(siblings)] * len(siblings)
  weights = [math.exp(each - max(logprobs)) for each in logprobs]
  return [weight / sum(weights) for weight in weights]


def _walk(
  tree: Tree,
  under_way: Counter[int],
  config: MctsConfig,
  common: SearchConfig,
) -> list[int]:
  """The nodes from the root to a leaf."""
  walk = [ROOT]
  while children := tree.live_children(walk[-1]):
    visits = [tree.nodes[i].visits + under_way[i] for i in children]
    prior = priors(tree, children, config.prior)
    scale = config.c_puct * math.sqrt(1 + sum(visits))
    puct = [
      _mean_value(tree.nodes[i], common) + scale * p / (1 + n)
      for i, n, p in zip(children, visits, prior, strict=True)
    ]
    walk.append(children[puct.index(max(puct))])
  return walk


def _most_visited(tree: Tree) -> int:
  """Where the path ends that goes to the most visited child each time."""
  at = ROOT
  while children := tree.live_children(at):
    at = max(
      children, key=lambda i: (tree.nodes[i].visits, tree.nodes[i].value)
    )
  return at


def _mean_value(node: Node, common: SearchConfig) -> float:
  """Q."""
  return node.value if node.visits else chain_value(node, common)


def _evaluate(
  tree: Tree, leaves: Sequence[int], config: MctsConfig, common: SearchConfig
) -> Generator[list[Expand], list[list[int]], dict[int, float]]:
  """Expands leaves, and says what each is worth."""
  values = {i: chain_value(tree.nodes[i], common) for i in leaves}
  growing = [i for i in leaves if not tree.nodes[i].ended]
  if not growing:
    return values
  looked = [tree.nodes[i].ahead for i in growing]
  new = yield [
    *(Expand(i, config.width) for i in growing),
    *(Expand(i, config.rollouts, 0, scratch='ahead') for i in growing),
  ]
  children, rolled = new[: len(growing)], new[len(growing) :]
  for i, before, found, ends in zip(
    growing, looked, children, rolled, strict=True
  ):
    if found or tree.nodes[i].drawn:
      worth = [chain_value(tree.nodes[child], common) for child in found]
      values[i] = max(worth, default=0.0)
    # Fewer than `rollouts` where the budget ended.
    if (asked := tree.nodes[i].ahead - before) and found:
      values[i] = sum(chain_value(tree.nodes[e], common) for e in ends) / asked
  return values
