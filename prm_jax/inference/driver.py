"""Runs many coroutines, and asks the models for all of them together.

Between work that thinks of one item each (a chain to label, a problem to
search) and models that are fast when much is asked at once. In rounds: all that
wait are gathered, each model is asked once, the answers go back. A round is
bounded, for between two of them the job is seen to: what ended is written down,
and SIGTERM heard.
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
  Scored,
  Scoring,
  StepScorer,
)
from prm_jax.runtime.errors import UserError

# Of a policy that answers within seconds whatever it is asked.
AT_ONCE = 4096
Asked = Sequence[Request | Question | Scoring]
Answers = list[list[Completion | None] | list[Reply | None] | list[Scored]]
# An item's work: asks until it can give chains.
Work = Generator[Asked, Answers, Sequence[Chain]]


class Cost(NamedTuple):
  """What an item took.

  Attributes:
    tokens: written by a policy or judge.
    prompt_tokens: read by it.
    calls: completions and replies asked for.
    lost: of them could not be had.
    seconds: since this process finished its item before; their sum is the time
      that was spent on finished items.
    scored_tokens: read by a PRM.
  """

  tokens: int = 0
  prompt_tokens: int = 0
  calls: int = 0
  lost: int = 0
  seconds: float = 0.0
  scored_tokens: int = 0


class Ended(NamedTuple):
  """An item that came to its end.

  Attributes:
    index: its number in the job.
    chains: what came of it; none where it failed.
    failed: why, in a line; '' where it did not.
    interrupted: whether it was brought to its end because a model gave up:
      what came of it is the best so far.
  """

  index: int
  chains: tuple[Chain, ...]
  failed: str
  cost: Cost
  interrupted: bool = False

  @property
  def open(self) -> bool:
    """Whether more may come of it the next time: answers could not be had.

    With all answers the same comes of it whenever it is tried. What was done
    without some of its answers stays as it is, and the ledger says how many
    are: a server may refuse one call of an item for ever.
    """
    return self.interrupted or bool(self.failed and self.cost.lost)


class CannotDo(Exception):
  """Nothing can come of this item; of the others it can. One line says why."""


class Models(NamedTuple):
  """Who answers; None where nobody asks."""

  policy: Policy | None = None
  judge: Judge | None = None
  prm: StepScorer | None = None


@dataclasses.dataclass
class _Flight:
  """Work that has begun.

  Attributes:
    asked: what it waits for.
  """

  index: int
  work: Work
  asked: Asked
  cost: Cost

  @property
  def samples(self) -> int:
    """How many it waits for."""
    return sum(each.samples for each in self.asked)

  def go_on(self, answers: Answers | CannotDo | None) -> Ended | None:
    """Sends answers (None at first); what came of it, where it ended."""
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
    scored = [it for it in flat if isinstance(it, Scored)]
    calls = len(flat) - len(scored)
    said = [it for it in flat if isinstance(it, Completion | Reply)]
    self.cost = Cost(
      self.cost.tokens + sum(it.tokens for it in said),
      self.cost.prompt_tokens + sum(it.prompt_tokens for it in said),
      self.cost.calls + calls,
      self.cost.lost + calls - len(said),
      scored_tokens=self.cost.scored_tokens + sum(it.tokens for it in scored),
    )


def drive(
  indices: Iterable[int],
  start: Callable[[int], Work],
  models: Models,
  concurrent: int,
  between: Callable[[], None] = lambda: None,
  at_once: int = AT_ONCE,
) -> Iterator[Ended]:
  """Does the work of every item; gives each as it ends.

  What comes of an item depends on its own work and the answers to it only: not
  on `concurrent` or `at_once`, on the order, or on what else is in flight.

  Args:
    indices: numbers of the items.
    start: makes an item's work.
    models: who answers.
    concurrent: how many items are in flight at most.
    between: called before each round of asking; what it raises ends it all.
    at_once: samples that a round asks for at most, but for one item that wants
      more.

  Raises:
    UserError: nobody is there to answer, or a model gave up; first what is in
      flight is told so by a CannotDo, and given as `interrupted`.
    Exception: a defect of the work, with a note that names the item.
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
      if ended := flight.go_on(None):
        yield timed(ended)
      else:
        flying.append(flight)
    if not flying:
      return
    between()
    # The oldest first, so that items end and few are lost half done.
    wanted = itertools.accumulate(flight.samples for flight in flying)
    fitting = sum(total <= at_once for total in wanted)
    asking, waiting = flying[: fitting or 1], flying[fitting or 1 :]
    still = []
    try:
      said = _ask_together([f.asked for f in asking], models)
    except CannotAsk as error:
      # The others ask again, without those.
      said = [_refusal(flight.asked, error.requests) for flight in asking]
    except UserError as error:
      # What they have found by now is an answer; a search has its best so far.
      for flight in flying:
        if ended := flight.go_on(CannotDo(str(error))):
          yield timed(ended._replace(interrupted=True))
      raise
    for flight, answers in zip(asking, said, strict=True):
      if answers is None or not (ended := flight.go_on(answers)):
        still.append(flight)
      else:
        yield timed(ended)
    flying = still + waiting


def _refusal(asked: Asked, refused: Mapping[Request, str]) -> CannotDo | None:
  """Why an item cannot go on; None where all that it asked can be asked."""
  reasons = [refused[each] for each in asked if each in refused]
  return CannotDo(reasons[0]) if reasons else None


def _ask_together(asked: Sequence[Asked], models: Models) -> list[Answers]:
  """One call of each model; what was asked together is answered together."""
  flat = [it for several in asked for it in several]
  said: dict[type, Iterator] = {}
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
    said[kind] = iter(getattr(model, ask)(these) if these else ())
  answers = [[next(said[type(it)]) for it in several] for several in asked]
  # Fewer have failed in `next`; more would be another's.
  assert all(next(left, None) is None for left in said.values())
  return answers
