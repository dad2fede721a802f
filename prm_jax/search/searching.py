"""Runs a search method over one problem: the loop that all methods share.

    method: which leaves, how many steps of each -> propose: ask the policy
      -> score: ask the PRM about the new steps -> method -> ... -> a chain

A method (`method.py`) decides and asks nothing itself. The loop asks, counts,
keeps to the budget and sets dead chains aside. It is a coroutine that
`inference/driver.py` runs, so that the leaves of many problems are proposed and
scored in one call of each model. The search of a problem depends on its own key
only, not on the problems beside it.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.inference.driver import Answers, Asked, CannotDo, Work
from prm_jax.inference.protocols import (
  Completion,
  Request,
  ScoredSteps,
  Scoring,
)
from prm_jax.inference.score import aggregate
from prm_jax.runtime.errors import UserError
from prm_jax.search.budget import Budget, Ledger
from prm_jax.search.early_rejection import REJECTED, saved_tokens
from prm_jax.search.method import Expand, Method, SearchConfig, Task
from prm_jax.search.results import to_chains
from prm_jax.search.tree import ROOT, Node, Stream, Tree


@dataclasses.dataclass(frozen=True)
class SearchPlan:
  """Says how every problem of a search is searched.

  Attributes:
    method: the method, a value of `methods.METHODS`.
    options: the method's own settings, of the class `method.config`.
    config: settings that all methods share.
    budget: limits for each problem.
    key: key of the random draws, together with the id of the task.
    name: names of method, policy and PRM, for the meta of the chains.
  """

  method: Method
  options: Any
  config: SearchConfig
  budget: Budget
  key: str
  name: str = ''


class Searching:
  """Holds the search of one problem while it runs.

  Attributes:
    tree: the steps found so far.
    ledger: the costs so far.
  """

  def __init__(
    self, task: Task, plan: SearchPlan, tree: Tree | None = None
  ) -> None:
    if tree and tree.problem != task.text:
      raise UserError(
        f'the tree of problem {task.id!r} is of another one, '
        f'{tree.problem[:60]!r}; give each problem its own'
      )
    self.task, self._plan = task, plan
    self._key = f'{plan.key}/{task.id}'
    self.tree = tree or Tree(task.text)
    self.ledger = Ledger()
    nodes = self.tree.nodes
    self._dead_before = {i for i, n in enumerate(nodes) if n.dead}
    # An earlier search may have used another aggregate.
    known = [i for i, n in enumerate(nodes) if n.chain_score is not None]
    for i in known:
      nodes[i].chain_score = None
    for i in known:
      self._aggregate(i)

  def run(self) -> Generator[Asked, Answers, None]:
    """Grows the tree until the method or the budget ends the search.

    Raises:
      CannotDo: No step was found that a search could continue from.
    """
    method, budget = self._plan.method, self._plan.budget
    grow = method.grow(self.tree, self._plan.options, self._plan.config)
    limit = ''
    try:
      if method.scores:  # a kept tree may come from a method without a PRM
        yield from self._score(self.tree.ends())
      wanted = next(grow)
      while not limit:
        new: list[list[int]] = [[] for _ in wanted]
        for n, part in enumerate(_split_rounds(wanted, budget)):
          if n and (limit := self.ledger.reached_limit(budget)):
            break
          self.ledger.rounds += 1
          added = yield from self._propose([each for _, each in part])
          if method.scores:
            yield from self._score([i for several in added for i in several])
          for (asker, _), several in zip(part, added, strict=True):
            new[asker] += several
        wanted = grow.send(
          [[i for i in several if self._is_alive(i)] for several in new]
        )
        limit = limit or self.ledger.reached_limit(budget)
    except StopIteration:
      limit = limit or self.ledger.reached_limit(budget, exceeded=True)
    except CannotDo as error:
      if not self._has_chains():
        raise
      limit = ' '.join(str(error).split())
    grow.close()
    self.ledger.stopped = limit or self.ledger.stopped
    self._count_dead()
    if not self._has_chains():
      reasons = ', '.join(f'{n} {why}' for why, n in self.ledger.dead.items())
      lost = f'{self.ledger.lost} could not be had'
      raise CannotDo(
        f'{self.ledger.samples} completions and no step to go on from: '
        f'{reasons or lost}'
      )

  def _is_alive(self, index: int) -> bool:
    return not self.tree.nodes[index].dead

  def _has_chains(self) -> bool:
    return bool(self.tree.alive() or self.tree.ended(scratch=True))

  def _propose(
    self, wanted: Sequence[Expand]
  ) -> Generator[Asked, Answers, list[list[int]]]:
    """Asks the policy for expansions and adds what it writes to the tree.

    Returns:
      For each expansion the last node of every sample, dead ones included.
    """
    requests: list[Request] = []
    askers: list[int] = []  # index into `wanted` for each request
    left = self._plan.budget.samples - self.ledger.samples
    for n, each in enumerate(wanted):
      samples = int(min(each.samples, left))
      if samples < each.samples:
        self.ledger.stopped = 'samples'
      left -= samples
      for request in self._make_requests(each, samples):
        requests.append(request)
        askers.append(n)
    new: list[list[int]] = [[] for _ in wanted]
    answers = (yield requests) if requests else []
    for n, request, completions in zip(askers, requests, answers, strict=True):
      for i, completion in enumerate(completions):
        self.ledger.samples += 1
        if completion is None:
          self.ledger.lost += 1
          continue
        self.ledger.add_completion(completion)
        stream = Stream(request.key, request.first + i)
        last = self._add_completion(wanted[n], stream, completion)
        if last is not None:
          new[n].append(last)
    return new

  def _make_requests(self, each: Expand, samples: int) -> list[Request]:
    """Makes the requests for an expansion, the node's own stream first.

    Args:
      samples: number of samples that the budget leaves for it.
    """
    if not samples:
      return []
    node = self.tree.nodes[each.node]
    key = self._key
    if node.stream is not None:
      key = f'{node.stream.key}/{node.stream.number}@{node.depth}'
    # Samples that only look ahead have keys of their own, and so have those at
    # the end of a search: neither changes what a later search draws here.
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

  def _add_completion(
    self, each: Expand, stream: Stream, completion: Completion
  ) -> int | None:
    """Adds the steps of a completion to the tree.

    Returns:
      The last node, or None if the completion gives no node.
    """
    tree, at = self.tree, each.node
    if why := _why_unusable(completion, at):
      if not each.scratch:
        self.ledger.add_dead(why)
      return None
    for step in completion.steps or ('',):
      if at != each.node:
        # The next step of this stream is in the tree already.
        tree.nodes[at].drawn = 1
      at = tree.add(Node(at, step, stream, scratch=bool(each.scratch)))
    node = tree.nodes[at]
    # A model may answer in NumPy's types, which a tree does not hold.
    node.ended, node.tokens = bool(completion.finished), int(completion.tokens)
    if math.isfinite(completion.logprob):
      node.logprob = float(completion.logprob)
    stopped = each.max_steps and len(completion.steps) == each.max_steps
    node.dead = self._why_dead(at, node.ended or bool(stopped))
    return at

  def _why_dead(self, at: int, whole: bool) -> str:
    """Says why a chain is given up at a node; '' if it is not.

    Args:
      whole: whether the policy wrote all that was asked for.
    """
    config = self._plan.config
    if not whole:
      return 'cut off'
    if self.tree.nodes[at].depth > config.max_steps:
      return 'too many steps'
    steps = self.tree.steps(at)
    # Few chains repeat any step: this rules out the others quickly.
    if len(steps) - len(set(steps)) < config.max_repeats:
      return ''
    longest = max(len(list(run)) for _, run in itertools.groupby(steps))
    return 'repeats itself' if longest > config.max_repeats else ''

  def _score(self, new: Sequence[int]) -> Generator[Asked, Answers, None]:
    """Asks the PRM to score chains with steps that have no score yet.

    Args:
      new: nodes at which the chains end.
    """
    tree = self.tree
    asked = [i for i in new if self._is_alive(i) and None in tree.scores(i)]
    if asked:
      requests = [Scoring(self.task.text, tree.steps(i)) for i in asked]
      answers = yield requests
      for i, (scored,) in zip(asked, answers, strict=True):
        self.ledger.add_scored(scored)
        path = tree.path(i)
        scores, faults = scored.scores or path, _faults(scored, len(path))
        for at, score, why in zip(path, scores, faults, strict=True):
          node = tree.nodes[at]
          if node.score is None:
            node.score = None if why else float(score)
            node.dead = node.dead or why
        tree.nodes[i].dead = faults[-1]
    for i in new:
      if self._is_alive(i):
        self._aggregate(i)

  def _aggregate(self, index: int) -> None:
    """Sets the missing chain scores on the path to a node with a score."""
    path = self.tree.path(index)
    scores = np.asarray(self.tree.scores(index), np.float32)
    for p, at in enumerate([*path, index]):
      node, so_far = self.tree.nodes[at], scores[: p + 1]
      if node.chain_score is None:
        mask = np.ones(len(so_far), bool)
        how = self._plan.config.aggregate
        node.chain_score = float(aggregate(so_far, mask, how))

  def _count_dead(self) -> None:
    """Counts each chain that this search gave up, at its first dead node."""
    nodes, rejected = self.tree.nodes, []
    for i, node in enumerate(nodes):
      new = node.dead and not node.scratch and i not in self._dead_before
      if new and not nodes[node.parent].dead:
        self.ledger.add_dead(node.dead)
        if node.dead.startswith(REJECTED):
          rejected.append(i)
    self.ledger.saved_tokens = saved_tokens(self.tree, rejected)

  def to_chains(self, others: bool) -> list[Chain]:
    """Chooses a chain and returns it by `results.to_chains`.

    Args:
      others: returns the other chains that ended, too.
    """
    tree, plan = self.tree, self._plan
    # An end that was only looked at is better than a chain without an end.
    candidates = tree.ended() or tree.ended(scratch=True)
    if not candidates:
      alive = tree.alive()
      # The last steps lack a score where the PRM gave up.
      alive = [i for i in alive if tree.nodes[i].score is not None] or alive
      longest = max(tree.nodes[i].depth for i in alive)
      candidates = [i for i in alive if tree.nodes[i].depth == longest]
    chosen = plan.method.choose(tree, candidates, plan.config)
    ends = [chosen]
    if others:
      ends += [i for i in tree.ended() if i != chosen]
    return to_chains(tree, ends, self.task, plan.name, self.ledger.to_dict())


def _split_rounds(
  wanted: Sequence[Expand], budget: Budget
) -> Iterator[list[tuple[int, Expand]]]:
  """Splits expansions into rounds, between which the budget is checked.

  Single steps are cheap, so those of all leaves make one round. Whole chains
  are not: unless the budget limits only their number, a round has few of them.

  Yields:
    Pairs of an index into `wanted` and the part of it that the round asks for.
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


def _faults(scored: ScoredSteps, steps: int) -> list[str]:
  """Says of each step why it has no valid score; '' where it has one."""
  if not scored.scores:
    return ["longer than the PRM's window, or of words that it lacks"] * steps
  if scored.lost:
    return ['critiques could not be had'] * steps
  if not np.isfinite(scored.scores).all():
    return ['scored NaN'] * steps
  refused = ['the critic has no room or words'] * scored.refused
  return [''] * (steps - scored.refused) + refused


def _why_unusable(completion: Completion, at: int) -> str:
  """Says why a completion of node `at` gives no node; '' if it gives one."""
  if not all(step.strip() for step in completion.steps):
    return 'an empty step'
  if completion.steps or (completion.finished and at != ROOT):
    return ''
  if completion.finished:
    return 'ended without a step'
  return 'window full' if completion.no_room else 'without a whole step'


def search_problem(
  task: Task, plan: SearchPlan, tree: Tree | None = None, others: bool = True
) -> Work:
  """Searches one problem; this is the work of an item for the driver.

  Args:
    tree: tree of an earlier search of the problem, which this one continues and
      changes.
    others: whether the other chains that ended are returned, too.

  Returns:
    The chosen chain and then the others, see `results.to_chains`.

  Raises:
    CannotDo: No step was found that a search could continue from.
    UserError: The tree is of another problem, or the method cannot work with
      the settings.
  """
  searching = Searching(task, plan, tree)
  yield from searching.run()
  return searching.to_chains(others)
