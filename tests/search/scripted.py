"""A policy that writes a known tree, and PRMs with known scores for it."""

import random

from prm_jax.inference.protocols import Completion, ScoredSteps
from prm_jax.search import RunConfig, run
from prm_jax.search.method import SearchConfig, Task

TASK = Task('task', 'the problem', truth='0')


def drawn(*seed):
  """A pseudo-random number in [0, 1) that depends on the arguments only."""
  return random.Random(repr(seed)).random()


def by_id(found):
  return {each.task.id: each for each in found}


def search(method, policy, prm, options=None, aggregate='min', **how):
  """Searches the one problem; `how` are fields of RunConfig."""
  config = SearchConfig(aggregate=aggregate)
  [found] = run([TASK], policy, prm, method, options, config, RunConfig(**how))
  return found


def kept_nodes(found):
  """The nodes of a tree without those that were only looked at."""
  nodes = found.tree.nodes
  return [
    (found.tree.steps(i), nodes[i].chain_score, nodes[i].visits, nodes[i].value)
    for i in found.tree.in_order()
    if not nodes[i].scratch
  ]


class Scripted:
  """A policy whose sample n of a key takes branch n first, then branch 0.

  So the children of a node are all its branches, each once. Every step is ten
  tokens and a thousand FLOPs. The last step states an answer, its branch.

  Attributes:
    asked: the requests of each call.
  """

  name = 'scripted'
  counts_flops = True

  def __init__(self, branching=3, depth=4, uneven=False, logprob=-1.0):
    self.branching, self.depth, self.uneven = branching, depth, uneven
    self.logprob = logprob
    self.asked, self._begun = [], {}

  def step(self, before, branch):
    """The text of a step, and whether the chain ends with it."""
    ends = len(before) + 1 >= self.depth
    if self.uneven:
      ends |= drawn('ends', *before, branch) < 0.3
    return f'{len(before)}: x = {branch}', ends

  def complete(self, requests):
    self.asked.append(list(requests))
    return [
      [self.one(r, r.first + i) for i in range(r.samples)] for r in requests
    ]

  def one(self, request, number):
    begun = self._begun.setdefault(request.key, len(request.steps))
    steps, ends = request.steps, False
    while not ends:
      fresh = len(steps) == begun
      step, ends = self.step(steps, number % self.branching if fresh else 0)
      steps += (step,)
      if len(steps) - len(request.steps) == request.max_steps:
        break
    new = steps[len(request.steps) :]
    count = len(new)
    return Completion(
      new, ends, 10 * count, 0, self.logprob * count, flops=1e3 * count
    )

  def chains(self, before=()):
    """Yields every chain that the policy can write."""
    for branch in range(self.branching):
      step, ends = self.step(before, branch)
      if ends:
        yield (*before, step)
      else:
        yield from self.chains((*before, step))


class CutsOff(Scripted):
  """A policy whose whole chains with an odd number reach its length limit."""

  def one(self, request, number):
    if request.max_steps or number % 2 == 0:
      return super().one(request, number)
    steps = tuple(f'{number}.{p}?' for p in range(60))
    return Completion(steps, False, 600, 0, -1.0)


class Table:
  """A PRM whose scores are a function of the steps so far.

  Attributes:
    asked: all requests.
  """

  name = 'table'
  counts_flops = True  # it takes none

  def __init__(self, score):
    self._score = score
    self.asked = []

  def score(self, requests):
    self.asked += requests
    return [
      [
        ScoredSteps(
          tuple(
            self._score(each.steps[: p + 1]) for p in range(len(each.steps))
          ),
          len(each.steps),
        )
      ]
      for each in requests
    ]


def noise(seed):
  """A PRM with pseudo-random scores."""
  return Table(lambda steps: drawn(seed, steps))


def optimum(policy, seed):
  """The best of all chains, and a PRM that knows the optimal values.

  Every chain has a random worth, and the score of a prefix is the worth of the
  best chain that begins with it.
  """
  worth = {steps: drawn(seed, steps) for steps in policy.chains()}
  values = {}
  for steps, value in worth.items():
    for p in range(1, len(steps) + 1):
      values[steps[:p]] = max(value, values.get(steps[:p], 0.0))
  return max(worth, key=worth.get), Table(values.__getitem__)
