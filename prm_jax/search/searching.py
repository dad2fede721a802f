"""The loop that all methods of search share, over one problem.

    method: which leaves, how many steps of each -> propose: ask the policy
      -> score: ask the PRM about what is new -> method -> ... -> a chain

A method (`method.py`) decides and never asks; the loop asks, counts, keeps to
the budget and sets dead chains aside. `inference/driver.py` runs it as a
coroutine, so the leaves of many problems are proposed and scored in one call of
each model. A problem's search depends on its own key only.
"""

import itertools
import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.inference.driver import Answers, Asked, CannotDo, Work
from prm_jax.inference.protocols import Completion, Request, Scoring
from prm_jax.inference.score import aggregate
from prm_jax.runtime.errors import UserError
from prm_jax.search.budget import Budget, Ledger
from prm_jax.search.early_rejection import REJECTED, saved_tokens
from prm_jax.search.method import Expand, Method, SearchConfig, Task
from prm_jax.search.results import to_chains
from prm_jax.search.tree import ROOT, Node, Stream, Tree


class Searching:
  """One problem's search while it runs.

  Attributes:
    tree, ledger: so far.
  """

  def __init__(
    self,
    task: Task,
    method: Method,
    config: SearchConfig,
    budget: Budget,
    key: str,
    tree: Tree | None = None,
  ) -> None:
    if tree and tree.problem != task.text:
      raise UserError(
        f'the tree of problem {task.id!r} is of another one, '
        f'{tree.problem[:60]!r}; give each problem its own'
      )
    self.task, self._method = task, method
    self._config, self._budget = config, budget
    self._key = f'{key}/{task.id}'
    self.tree = tree or Tree(task.text)
    self.ledger = Ledger()
    nodes = self.tree.nodes
    self._dead_before = {i for i, n in enumerate(nodes) if n.dead}
    # An earlier search may have aggregated otherwise.
    known = [i for i, n in enumerate(nodes) if n.chain_score is not None]
    for i in known:
      nodes[i].chain_score = None
    for i in known:
      self._aggregate(i)

  def run(self, method_config: Any) -> Generator[Asked, Answers, None]:
    """Grows the tree until the method or the budget ends it.

    Raises:
      CannotDo: a model cannot be asked, and nothing was found before.
    """
    grow = self._method.grow(self.tree, method_config, self._config)
    limit = ''
    try:
      if self._method.scores:  # a kept tree may be of a method that asks none
        yield from self._score(self.tree.alive())
      wanted = next(grow)
      while not limit:
        new: list[list[int]] = [[] for _ in wanted]
        for n, part in enumerate(_rounds(wanted, self._budget)):
          if n and (limit := self.ledger.limit(self._budget)):
            break
          self.ledger.rounds += 1
          found = yield from self._propose([each for _, each in part])
          if self._method.scores:
            yield from self._score([i for several in found for i in several])
          for (asker, _), several in zip(part, found, strict=True):
            new[asker] += several
        wanted = grow.send(
          [[i for i in several if self._lives(i)] for several in new]
        )
        limit = limit or self.ledger.limit(self._budget)
    except StopIteration:
      limit = limit or self.ledger.limit(self._budget, passed=True)
    except CannotDo as error:
      if not self.tree.alive():
        raise
      limit = ' '.join(str(error).split())
    grow.close()
    self.ledger.stopped = limit or self.ledger.stopped
    self._count_dead()
    if not self.tree.alive():
      reasons = ', '.join(f'{n} {why}' for why, n in self.ledger.dead.items())
      lost = f'{self.ledger.lost} could not be had'
      raise CannotDo(
        f'{self.ledger.samples} completions and no step to go on from: '
        f'{reasons or lost}'
      )

  def _lives(self, index: int) -> bool:
    return not self.tree.nodes[index].dead

  def _propose(
    self, wanted: Sequence[Expand]
  ) -> Generator[Asked, Answers, list[list[int]]]:
    """Asks the policy; the last node of every sample, dead ones included."""
    requests: list[Request] = []
    askers: list[int] = []  # index into `wanted`
    left = self._budget.samples - self.ledger.samples
    for n, each in enumerate(wanted):
      samples = int(min(each.samples, left))
      if samples < each.samples:
        self.ledger.stopped = 'samples'
      left -= samples
      for request in self._requests(each, samples):
        requests.append(request)
        askers.append(n)
    new: list[list[int]] = [[] for _ in wanted]
    answers = (yield requests) if requests else []
    for n, request, said in zip(askers, requests, answers, strict=True):
      for i, completion in enumerate(said):
        self.ledger.samples += 1
        if completion is None:
          self.ledger.lost += 1
          continue
        self.ledger.wrote(completion)
        stream = Stream(request.key, request.first + i)
        last = self._grow(wanted[n], stream, completion)
        if last is not None:
          new[n].append(last)
    return new

  def _requests(self, each: Expand, samples: int) -> list[Request]:
    """What to ask for an Expand: the node's own stream first, then new ones."""
    if not samples:  # the budget has none left
      return []
    node = self.tree.nodes[each.node]
    key = self._key
    if node.stream is not None:
      key = f'{node.stream.key}/{node.stream.number}@{node.depth}'
    # What is looked at does not change what comes, nor what is looked at in
    # the end what is looked at by a search that goes on from there.
    if each.scratch == 'last':
      wanted = [(f'{key}/last', node.last, samples)]
      node.last += samples
    elif each.scratch:
      wanted = [(f'{key}/ahead', node.ahead, samples)]
      node.ahead += samples
    else:
      wanted = [(key, node.drawn, samples)]
      if node.stream is not None and not node.drawn:
        wanted = [(*node.stream, 1), (key, 1, samples - 1)]
      node.drawn += samples
    steps = self.tree.steps(each.node)
    return [
      Request(self.task.text, steps, key, samples, first, each.max_steps)
      for key, first, samples in wanted
      if samples > 0
    ]

  def _grow(
    self, each: Expand, stream: Stream, completion: Completion
  ) -> int | None:
    """Adds a completion's steps; its last node, None where it has none."""
    tree, at = self.tree, each.node
    if why := _nothing_in(completion, at):
      if not each.scratch:
        self.ledger.died(why)
      return None
    for step in completion.steps or ('',):
      if at != each.node:  # what follows in this stream stands here already
        tree.nodes[at].drawn = 1
      at = tree.add(Node(at, step, stream, scratch=bool(each.scratch)))
    node = tree.nodes[at]
    node.ended, node.tokens = completion.finished, completion.tokens
    if math.isfinite(completion.logprob):
      node.logprob = completion.logprob
    stopped = each.max_steps and len(completion.steps) == each.max_steps
    node.dead = self._dead_end(at, node.ended or bool(stopped))
    return at

  def _dead_end(self, at: int, whole: bool) -> str:
    """Why a chain is given up; '' where it is not."""
    if not whole:
      return 'cut off'
    if self.tree.nodes[at].depth > self._config.max_steps:
      return 'too many steps'
    steps, most = self.tree.steps(at), self._config.max_repeats
    if len(steps) - len(set(steps)) < most:  # hardly any, and quickly seen
      return ''
    longest = max(len(list(run)) for _, run in itertools.groupby(steps))
    return 'repeats itself' if longest > most else ''

  def _score(self, new: Sequence[int]) -> Generator[Asked, Answers, None]:
    """Asks the PRM for the steps that have no score yet."""
    tree = self.tree
    asked = [i for i in new if self._lives(i) and None in tree.scores(i)]
    if asked:
      requests = [Scoring(self.task.text, tree.steps(i)) for i in asked]
      answers = yield requests
      for i, (scored,) in zip(asked, answers, strict=True):
        self.ledger.scored(scored)
        path, why = tree.path(i), ''
        if not scored.scores:
          why = "longer than the PRM's window"
        elif not np.isfinite(scored.scores).all():
          why = 'scored NaN'
        for at, score in zip(path, scored.scores or path, strict=True):
          node = tree.nodes[at]
          if node.score is None:
            node.score, node.dead = None if why else score, node.dead or why
        tree.nodes[i].dead = why
    for i in new:
      if self._lives(i):
        self._aggregate(i)

  def _aggregate(self, index: int) -> None:
    """The chain scores up to a node that has its score."""
    path = self.tree.path(index)
    scores = np.asarray(self.tree.scores(index), np.float32)
    for p, at in enumerate([*path, index]):
      node, until = self.tree.nodes[at], scores[: p + 1]
      if node.chain_score is None:
        mask = np.ones(len(until), bool)
        node.chain_score = float(aggregate(until, mask, self._config.aggregate))

  def _count_dead(self) -> None:
    """Each chain that was given up once, where it was."""
    nodes, rejected = self.tree.nodes, []
    for i, node in enumerate(nodes):
      new = node.dead and not node.scratch and i not in self._dead_before
      if new and not nodes[node.parent].dead:
        self.ledger.died(node.dead)
        if node.dead.startswith(REJECTED):
          rejected.append(i)
    self.ledger.saved_tokens = saved_tokens(self.tree, rejected)

  def chosen(self) -> int:
    """The node at which the chosen chain ends."""
    tree = self.tree
    # An end that was only looked at is better than none.
    ended = tree.ended() or tree.ended(scratch=True)
    longest = max(tree.nodes[i].depth for i in tree.alive())
    return self._method.choose(
      tree,
      ended or [i for i in tree.alive() if tree.nodes[i].depth == longest],
      self._config,
    )

  def chains(self, name: str) -> list[Chain]:
    """See `results.to_chains`."""
    chosen, ledger = self.chosen(), self.ledger.to_dict()
    return to_chains(self.tree, chosen, self.task, name, ledger)


def _rounds(
  wanted: Sequence[Expand], budget: Budget
) -> Iterator[list[tuple[int, Expand]]]:
  """What a method wants at once, in rounds between which the budget is seen to.

  A step is cheap, and those of all leaves are asked for together. Whole chains
  are not: where their number alone does not say what they cost, few at a time.

  Yields:
    (index into `wanted`, what is asked for of it).
  """
  whole = [
    n
    for n, each in enumerate(wanted)
    if not each.max_steps
    for _ in range(each.samples)
  ]
  if budget.counts_samples_only or not whole:
    yield list(enumerate(wanted))
    return
  if steps := [(n, each) for n, each in enumerate(wanted) if each.max_steps]:
    yield steps
  size = wanted[whole[0]].round_size
  for begun in range(0, len(whole), size):
    asked = Counter(whole[begun : begun + size])
    yield [(n, wanted[n]._replace(samples=asked[n])) for n in asked]


def _nothing_in(completion: Completion, at: int) -> str:
  """Why no node comes of what was written after node `at`; '' if one does."""
  if not all(step.strip() for step in completion.steps):
    return 'an empty step'
  if completion.steps or (completion.finished and at != ROOT):
    return ''
  if completion.finished:
    return 'ended without a step'
  return 'window full' if completion.no_room else 'without a whole step'


def search(
  task: Task,
  method: Method,
  method_config: Any,
  config: SearchConfig,
  budget: Budget,
  key: str,
  name: str = '',
  tree: Tree | None = None,
) -> Work:
  """Searches one problem: the work of an item, see `inference/driver.py`.

  Args:
    key: with the task's id what everything is drawn from.
    name: of policy and PRM, for the chains' meta.
    tree: of an earlier search of the problem, to go on with; it is changed.

  Returns:
    See `results.to_chains`: the chosen chain first.

  Raises:
    CannotDo: not one step was found that may be gone on from.
    UserError: the tree is another problem's, or the method cannot do it.
  """
  searching = Searching(task, method, config, budget, key, tree)
  yield from searching.run(method_config)
  return searching.chains(name)
