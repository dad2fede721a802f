"""Runs the coroutines of many items, and asks the models for all together.

    items -> coroutines that yield Requests, Questions and Scorings
      -> rounds: one call of each model for all that wait -> answers
      -> chains of every item that ended

Label sources and searches are written for one item (a chain to label, a problem
to search), while models are fast when much is asked at once. The size of a
round is bounded because jobs write down what ended, and notice SIGTERM, between
two rounds.
"""

import dataclasses
import itertools
import time
from collections.abc import (
  Callable,
  Generator,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import NamedTuple

from prm_jax.data.chains import Chain
from prm_jax.inference.protocols import (
  CannotAsk,
  Completion,
  Judge,
  Policy,
  Question,
  Reply,
  Request,
  ScoredSteps,
  Scoring,
  StepScorer,
)
from prm_jax.runtime.errors import UserError

# Samples of a round, for models that answer these within seconds.
SAMPLES_PER_ROUND = 4096
Asked = Sequence[Request | Question | Scoring]
Answers = list[list[Completion | None] | list[Reply | None] | list[ScoredSteps]]
# The coroutine of an item: yields questions and returns chains.
Work = Generator[Asked, Answers, Sequence[Chain]]


class Cost(NamedTuple):
  """Counts what an item cost.

  Attributes:
    tokens: tokens written by the policy or judge.
    prompt_tokens: tokens read by the policy or judge.
    calls: completions and replies asked for.
    lost: completions, replies and critiques that could not be obtained.
    seconds: time since this process finished its previous item; the sum over
      items is the time spent on finished items.
    scored_tokens: tokens read by the PRM.
  """

  tokens: int = 0
  prompt_tokens: int = 0
  calls: int = 0
  lost: int = 0
  seconds: float = 0.0
  scored_tokens: int = 0


class Ended(NamedTuple):
  """Reports an item that ended.

  Attributes:
    index: the item's number in the job.
    chains: the item's result; none if it failed.
    failed: why it failed, in one line; '' if it did not.
    interrupted: whether it was ended early because a model gave up; its result
      is then the best so far.
  """

  index: int
  chains: tuple[Chain, ...]
  failed: str
  cost: Cost
  interrupted: bool = False

  @property
  def open(self) -> bool:
    """Returns whether trying again may give more, as answers were missing.

    An item that has all its answers always gives the same result. An item that
    succeeded without some answers is not tried again, because a server may
    refuse one of its calls forever; the ledger counts these items.
    """
    return self.interrupted or bool(self.failed and self.cost.lost)


class CannotDo(Exception):
  """Ends one item, for the reason in its one line; others continue."""


class GaveUp(CannotDo):
  """Ends all items in flight: a model no longer answers."""


class AskedModels(NamedTuple):
  """Holds the models that answer; None for those that no item asks."""

  policy: Policy | None = None
  judge: Judge | None = None
  prm: StepScorer | None = None


@dataclasses.dataclass
class _Flight:
  """Holds an item whose coroutine has begun.

  Attributes:
    index: the item's number in the job.
    asked: the questions whose answers it waits for.
  """

  index: int
  work: Work
  asked: Asked
  cost: Cost

  @property
  def samples(self) -> int:
    """Returns how many answers it waits for."""
    return sum(question.samples for question in self.asked)

  def resume(self, answers: Answers | CannotDo | None) -> Ended | None:
    """Sends answers (None at first); returns the result if the item ended."""
    try:
      if isinstance(answers, CannotDo):
        self.asked = self.work.throw(answers)
      else:
        self._count(answers or [])
        self.asked = self.work.send(answers)
    except StopIteration as end:
      return Ended(self.index, tuple(end.value), '', self.cost)
    except CannotDo as error:
      reason = ' '.join(str(error).split())
      return Ended(self.index, (), reason or 'no reason given', self.cost)
    except Exception as error:
      error.add_note(f'while working on item {self.index} of the job')
      raise
    return None

  def _count(self, answers: Answers) -> None:
    flat = [it for several in answers for it in several]
    scored = [it for it in flat if isinstance(it, ScoredSteps)]
    calls = len(flat) - len(scored)
    written = [it for it in flat if isinstance(it, Completion | Reply)]
    self.cost = Cost(
      self.cost.tokens + sum(it.tokens for it in written),
      self.cost.prompt_tokens + sum(it.prompt_tokens for it in written),
      self.cost.calls + calls,
      self.cost.lost + calls - len(written) + sum(it.lost for it in scored),
      scored_tokens=self.cost.scored_tokens + sum(it.tokens for it in scored),
    )


def drive(
  indices: Iterable[int],
  start: Callable[[int], Work],
  models: AskedModels,
  concurrent: int,
  between: Callable[[], None] = lambda: None,
  samples_per_round: int = SAMPLES_PER_ROUND,
) -> Iterator[Ended]:
  """Runs the coroutine of every item, and yields each item as it ends.

  An item's result depends only on its coroutine and the answers to it: not on
  `concurrent`, `samples_per_round`, the order, or the other items in flight.

  Args:
    concurrent: most items in flight.
    between: called before each round; an exception from it ends the loop.
    samples_per_round: most samples of a round, unless one item asks for more.

  Raises:
    UserError: a model is missing or gave up. Before that, all items in flight
      receive a GaveUp and are yielded as `interrupted`.
    Exception: a defect of a coroutine, with a note that names the item.
  """
  open_items = iter(indices)
  flying: list[_Flight] = []
  before = time.monotonic()

  def timed(ended: Ended) -> Ended:
    nonlocal before
    seconds, before = time.monotonic() - before, time.monotonic()
    cost = ended.cost._replace(seconds=round(seconds, 6))
    return ended._replace(cost=cost)

  while True:
    while len(flying) < concurrent and (
      (index := next(open_items, None)) is not None
    ):
      flight = _Flight(index, start(index), (), Cost())
      if ended := flight.resume(None):
        yield timed(ended)
      else:
        flying.append(flight)
    if not flying:
      return
    between()
    # The oldest items come first, so that few are unfinished at any time.
    wanted = itertools.accumulate(flight.samples for flight in flying)
    fitting = sum(total <= samples_per_round for total in wanted)
    asking, waiting = flying[: fitting or 1], flying[fitting or 1 :]
    unfinished = []
    try:
      answered = _ask_together([f.asked for f in asking], models)
    except CannotAsk as error:
      # The other items ask again in the next round.
      answered = [_refusal(flight.asked, error.requests) for flight in asking]
    except UserError as error:
      # Items may still return what they found: a search has its best so far.
      for flight in flying:
        if ended := flight.resume(GaveUp(str(error))):
          yield timed(ended._replace(interrupted=True))
      raise
    for flight, answers in zip(asking, answered, strict=True):
      if answers is None or not (ended := flight.resume(answers)):
        unfinished.append(flight)
      else:
        yield timed(ended)
    flying = unfinished + waiting


def _refusal(asked: Asked, refused: Mapping[Request, str]) -> CannotDo | None:
  """Returns why an item cannot continue, or None if it can."""
  reasons = [refused[request] for request in asked if request in refused]
  return CannotDo(reasons[0]) if reasons else None


def _ask_together(asked: Sequence[Asked], models: AskedModels) -> list[Answers]:
  """Calls each model once, and returns the answers to each item's questions."""
  flat = [it for several in asked for it in several]
  replies: dict[type, Iterator] = {}
  for kind, name, ask, cure in (
    (Request, 'policy', 'complete', 'policy.kind'),
    (Question, 'judge', 'ask', 'policy.kind=endpoint'),
    (Scoring, 'prm', 'score', 'prm'),
  ):
    these = [it for it in flat if isinstance(it, kind)]
    model = getattr(models, name)
    if these and model is None:
      raise UserError(
        f'this job asks a {name} and there is none; set --config.{cure}'
      )
    replies[kind] = iter(getattr(model, ask)(these) if these else ())
  answers = [[next(replies[type(it)]) for it in several] for several in asked]
  # Too few answers fail in `next`; too many would belong to other questions.
  assert all(next(left, None) is None for left in replies.values())
  return answers
