"""A policy that writes a known tree, and a PRM that knows every score of it."""

import random

from prm_jax.inference.protocols import Completion, Scored
from prm_jax.search import run
from prm_jax.search.method import SearchConfig, Task

TASK = Task('task', 'the problem', truth='0')


def drawn(*seed):
  """A number in [0, 1) that depends on what it is given only."""
  return random.Random(repr(seed)).random()


def by_id(found):
  return {each.task.id: each for each in found}


def search(method, policy, prm, options=None, aggregate='min', **more):
  """The result of the one problem."""
  config = more.pop('config', SearchConfig(aggregate=aggregate))
  [found] = run([TASK], policy, prm, method, options, config, **more)
  return found


def live(found):
  """A tree without what was only looked at."""
  nodes = found.tree.nodes
  return [
    (found.tree.steps(i), nodes[i].chain_score, nodes[i].visits, nodes[i].value)
    for i in found.tree.in_order()
    if not nodes[i].scratch
  ]


class Scripted:
  """Sample n of a key takes branch n where it begins, and branch 0 after that.

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
    """All that can be written."""
    for branch in range(self.branching):
      step, ends = self.step(before, branch)
      if ends:
        yield (*before, step)
      else:
        yield from self.chains((*before, step))


class Table:
  """Scores that are a function of the steps so far."""

  name = 'table'
  counts_flops = True  # it takes none

  def __init__(self, score):
    self._score = score

  def score(self, requests):
    return [
      [
        Scored(
          tuple(
            self._score(each.steps[: p + 1]) for p in range(len(each.steps))
          ),
          len(each.steps),
        )
      ]
      for each in requests
    ]


def noise(seed):
  """Any scores."""
  return Table(lambda steps: drawn(seed, steps))


def optimum(policy, seed):
  """The best of all chains, and the PRM that knows what is best from where.

  Every chain has a worth, and a step that of the best chain that has it.
  """
  worth = {steps: drawn(seed, steps) for steps in policy.chains()}
  values = {}
  for steps, value in worth.items():
    for p in range(1, len(steps) + 1):
      values[steps[:p]] = max(value, values.get(steps[:p], 0.0))
  return max(worth, key=worth.get), Table(values.__getitem__)
