"""The loop that all methods of search share, over one problem.

    method: which leaves, how many steps of each -> propose: ask the policy
      -> score: ask the PRM about what is new -> method -> ... -> a chain

A method (`methods.py` has them by name) decides and never asks; the loop asks,
counts, keeps to the budget and sets dead chains aside. It is a coroutine of
`rounds/driver.py`, so the leaves of many problems are proposed and scored in
one call of each model. A problem's search depends on its own key only.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm_jax.chains import Chain
from prm_jax.errors import UserError
from prm_jax.labels.labelling import ends_right
from prm_jax.policy import Request, Scoring
from prm_jax.rounds.driver import Answers, Asked, CannotDo, Work
from prm_jax.score import AGGREGATES, aggregate
from prm_jax.search.budget import Budget, Ledger
from prm_jax.search.tree import ROOT, Node, Stream, Tree
from prm_jax.verify.final_answer import final_answer


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """What all methods have in common.

  Attributes:
    aggregate: how step scores become a chain's score, one of
      `score.AGGREGATES`. Compare chains of unequal length with care: a sum
      grows and a product falls with every step.
    max_steps: of a chain; one that is not ended by then is given up.
    max_repeats: of one step in a row; then the chain is given up.
  """

  aggregate: str = 'min'
  max_steps: int = 64
  max_repeats: int = 3

  def __post_init__(self):
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
    scratch: they are looked at and then forgotten.
  """

  node: int
  samples: int
  max_steps: int = 1
  scratch: bool = False


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
    choose: of the tree, the chains that may be chosen (ended ones; if there
      are none, unfinished ones) and the problem: one of them.
    scores: whether the PRM is asked.
    config: of the values of the method's section.
    needs: of a policy, one of NEEDS.
  """

  grow: Callable[[Tree, Any, SearchConfig], Grow]
  choose: Callable[[Tree, Sequence[int], Task], int]
  scores: bool
  config: type
  needs: str = 'branches'


def best(tree: Tree, candidates: Sequence[int], task: Task) -> int:
  """The highest chain score, the first of equals."""
  del task
  scores = [tree.nodes[i].chain_score for i in candidates]
  # The PRM was not asked about what a limit cut off, and what came before.
  known = [-math.inf if score is None else score for score in scores]
  return candidates[int(np.argmax(known))]


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
  ):
    self.task, self._method = task, method
    self._config, self._budget = config, budget
    self._key = f'{key}/{task.id}'
    self.tree = tree or Tree(task.text)
    self.ledger = Ledger()
    self._ahead: Counter[int] = Counter()  # samples drawn to look ahead

  def run(self, method_config: Any) -> Generator[Asked, Answers, None]:
    """Grows the tree until the method or the budget ends it.

    Raises:
      CannotDo: a model cannot be asked, and nothing was found before.
    """
    grow = self._method.grow(self.tree, method_config, self._config)
    try:
      wanted = next(grow)
      while self.ledger.within(self._budget):
        self.ledger.rounds += 1
        new = yield from self._propose(wanted)
        if self._method.scores:
          yield from self._score([i for several in new for i in several])
        wanted = grow.send(
          [[i for i in several if self._lives(i)] for several in new]
        )
    except StopIteration:
      pass
    except CannotDo:
      if not self.tree.alive():
        raise
    grow.close()
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
    node = self.tree.nodes[each.node]
    key = self._key
    if node.stream is not None:
      key = f'{node.stream.key}/{node.stream.number}@{node.depth}'
    if each.scratch:  # what is looked at does not change what comes
      first = self._ahead[each.node]
      self._ahead[each.node] += samples
      wanted = [(f'{key}/ahead', first, samples)]
    else:
      first = node.drawn
      node.drawn += samples
      wanted = [(key, first, samples)]
      if node.stream is not None and first == 0:
        wanted = [(*node.stream, 1), (key, 1, samples - 1)]
    steps = self.tree.steps(each.node)
    return [
      Request(self.task.text, steps, key, samples, first, each.max_steps)
      for key, first, samples in wanted
      if samples > 0
    ]

  def _grow(self, each: Expand, stream: Stream, completion: Any) -> int | None:
    """Adds a completion's steps; its last node, None where it has none."""
    tree, at = self.tree, each.node
    for step in completion.steps:
      at = tree.add(Node(at, step, stream, scratch=each.scratch))
    if completion.finished and not completion.steps:
      if at == ROOT:
        self.ledger.died('ended without a step')
        return None
      at = tree.add(Node(at, '', stream, scratch=each.scratch))
    if at == each.node:
      why = 'window full' if completion.no_room else 'without a whole step'
      self.ledger.died(why)
      return None
    node = tree.nodes[at]
    node.ended, node.tokens = completion.finished, completion.tokens
    if math.isfinite(completion.logprob):
      node.logprob = completion.logprob
    if not node.ended:
      stopped = each.max_steps and len(completion.steps) == each.max_steps
      self._bury(at, self._dead_end(at, bool(stopped)))
    return at

  def _dead_end(self, at: int, stopped: bool) -> str:
    """Why a chain that has not ended cannot be gone on with; '' if it can."""
    if not stopped:
      return 'cut off'
    if self.tree.nodes[at].depth >= self._config.max_steps:
      return 'too many steps'
    last = self.tree.steps(at)[-self._config.max_repeats - 1 :]
    if len(last) > self._config.max_repeats and len(set(last)) == 1:
      return 'repeats itself'
    return ''

  def _bury(self, index: int, why: str) -> None:
    if why:
      self.tree.nodes[index].dead = why
      self.ledger.died(why)

  def _score(self, new: Sequence[int]) -> Generator[Asked, Answers, None]:
    """Asks the PRM for the steps that have no score yet."""
    tree = self.tree
    asked = [i for i in new if self._lives(i) and self._unscored(i)]
    if asked:
      requests = [Scoring(self.task.text, tree.steps(i)) for i in asked]
      answers = yield requests
      for i, (scored,) in zip(asked, answers, strict=True):
        self.ledger.scored(scored)
        path = tree.path(i)
        if not scored.scores:
          self._bury(i, "longer than the PRM's window")
        elif not np.isfinite(scored.scores).all():
          self._bury(i, 'scored NaN')
        else:
          for at, score in zip(path, scored.scores, strict=True):
            tree.nodes[at].score = score
    for i in new:
      if self._lives(i) and tree.nodes[i].chain_score is None:
        tree.nodes[i].chain_score = self._aggregate(tree.scores(i))

  def _unscored(self, index: int) -> bool:
    return None in self.tree.scores(index)

  def _aggregate(self, scores: Sequence[float]) -> float:
    values = np.asarray(scores, np.float32)
    mask = np.ones(len(values), bool)
    return float(aggregate(values, mask, self._config.aggregate))

  def chosen(self) -> int:
    """The node at which the chosen chain ends."""
    candidates = self.tree.ended() or self.tree.alive()
    return self._method.choose(self.tree, candidates, self.task)

  def chains(self, name: str) -> list[Chain]:
    """The chosen chain, then the others that ended; `meta['search']` tells.

    The first has `tree` and `ledger` there, too.
    """
    chosen = self.chosen()
    order = [chosen, *(i for i in self.tree.ended() if i != chosen)]
    found = [self._chain(i, n, name) for n, i in enumerate(order)]
    found[0].meta['search'] |= {
      'tree': self.tree.to_dict(),
      'ledger': self.ledger.to_dict(),
    }
    return found

  def _chain(self, index: int, number: int, name: str) -> Chain:
    tree, task = self.tree, self.task
    steps, ended = tree.steps(index), tree.nodes[index].ended
    outcome = None
    if task.truth:
      outcome = ended and ends_right(task.text, steps, task.truth)
    return Chain(
      task.text,
      steps,
      answer=final_answer(steps) if ended else None,
      outcome=outcome,
      meta={
        'id': f'{task.id} # {number}',
        'problem_id': task.id,
        'dataset': task.dataset,
        'generator': name,
        'truth': task.truth,
        'search': {
          'node': index,
          'ended': ended,
          'scores': tree.scores(index),
          'chain_score': tree.nodes[index].chain_score,
        },
      },
    )


def search(
  task: Task,
  method: Method,
  method_config: Any,
  config: SearchConfig,
  budget: Budget,
  key: str,
  name: str = '',
) -> Work:
  """Searches one problem: the work of an item, see `rounds/driver.py`.

  Args:
    key: with the task's id what everything is drawn from.
    name: of policy and PRM, for the chains' meta.

  Returns:
    As `Searching.chains`: the chosen chain first.

  Raises:
    CannotDo: not one step was found that may be gone on from.
  """
  searching = Searching(task, method, config, budget, key)
  yield from searching.run(method_config)
  return searching.chains(name)
