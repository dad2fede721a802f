"""Makes a PRM of a critic: its critiques of a chain become step scores.

    Scoring -> a question for every step (or one for the chain) -> n critiques
      -> how likely it calls the step right, or its verdict -> the mean

`data/critiques/styles.py` has the questions and reads the verdicts. The Python
of a critique runs in the sandbox (`data/verify/sandbox.py`), and nowhere else.
"""

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from prm_jax.data.critiques.questions import plain_question
from prm_jax.data.critiques.styles import STYLES, worded_question
from prm_jax.data.verify import sandbox
from prm_jax.inference.protocols import (
  CannotAsk,
  Choice,
  Completion,
  Critic,
  Request,
  ScoredSteps,
  Scoring,
)
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, one_of
from prm_jax.runtime.errors import UserError

ASKS = ('steps', 'chain')
UNKNOWN = 0.5  # the probability where no critique says anything
_CODE = re.compile(r'<verify>(.*?)</verify>', re.DOTALL)
_FENCE = re.compile(r'^```\w*\s*$', re.MULTILINE)
_LONGEST_OUTPUT = 200
_PLAIN_OUTPUTS = ('True', 'False')  # that a critic trained here has words for
_KEPT = 100_000  # partial chains whose opinions are kept


@dataclasses.dataclass(frozen=True)
class CritiqueConfig:
  """Says how a critic is asked about a chain.

  Attributes:
    style: one of `styles.STYLES`.
    plain: whether it is asked the plain question, as critics are that learned
      here; language models are told in words what to do.
    samples: critiques of each question; their mean is the score.
    ask: 'steps' asks anew when a step is added, so the score of a step does not
      depend on those after it; 'chain' asks once about the whole chain, which
      costs less. Then the scores of a style that judges steps are shares of
      verdicts, and the score of one that judges the answer is every step's.
    limits: what a critique's Python, a program of one line, may use.
  """

  style: Annotated[str, one_of(*STYLES)] = 'thinkprm'
  plain: bool = True
  samples: Annotated[int, at_least(1)] = 1
  ask: Annotated[str, one_of(*ASKS)] = 'steps'
  limits: sandbox.Limits = sandbox.Limits(wall_seconds=5.0, cpu_seconds=5)

  def __post_init__(self) -> None:
    checks.check(self)
    style = STYLES[self.style]
    if self.ask == 'chain' and not (style.whole or style.of_outcome):
      checks.fail(
        'ask',
        'chain',
        f'style={self.style!r} judges the last step alone: expected steps',
      )
    if self.ask == 'steps' and style.of_outcome:
      checks.fail(
        'ask',
        'steps',
        f'style={self.style!r} judges the answer of a whole chain: expected '
        'chain',
      )

  @property
  def fingerprint(self) -> str:
    """Returns 12 hex digits over what determines the scores of a critic."""
    asked = [self.style, self.plain, dataclasses.asdict(self.limits)]
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:12]


class Opinion(NamedTuple):
  """Holds what a critic says of a partial chain.

  Attributes:
    scores: probability that a step is right: of all steps where it was asked
      about the whole chain, else of the last.
    critiques: what it wrote, without those that it could not give.
    unread: critiques that say nothing: without a readable verdict, or about a
      question for which the critic has no room or words.
    lost: critiques that could not be had, from a server that failed.
    refused: whether the critic has no room or words for the question.
    tokens: tokens that it wrote and read.
  """

  scores: tuple[float, ...]
  critiques: tuple[str, ...]
  unread: int
  lost: int
  refused: bool
  tokens: int
  flops: float


@dataclasses.dataclass
class _Critique:
  """Holds one critique of a question while it is written and read.

  Attributes:
    state: 'written', 'lost' (not given by a server that failed) or 'refused'
      (the question has no room or words).
  """

  question: str
  sample: int
  lines: tuple[str, ...] = ()
  state: str = 'written'
  tokens: int = 0
  flops: float = 0.0

  def add(self, completion: Completion) -> None:
    """Appends what the critic wrote, and what that cost."""
    self.lines += completion.steps
    self.tokens += completion.tokens + completion.prompt_tokens
    self.flops += completion.flops


class GenerativePrm:
  """Is a `protocols.StepScorer` that asks a critic.

  Args:
    critic: writes the critiques.
    config: how it is asked.

  Attributes:
    refusal: why the critic could not be asked one of the questions; '' if it
      could be asked all so far.
  """

  def __init__(self, critic: Critic, config: CritiqueConfig) -> None:
    self._critic, self._config = critic, config
    self._style = STYLES[config.style]
    self.counts_flops = critic.counts_flops
    self.name = (
      f'{config.style} x{config.samples} by {config.ask} '
      f'{config.fingerprint} of {critic.name}'
    )
    self.refusal = ''
    self._asked = False  # whether any question was not refused
    self._known: dict[Scoring, Opinion] = {}
    self._said: dict[Scoring, Opinion] = {}  # in the last call

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    """Returns the scores of each request; see `protocols.StepScorer`.

    No partial chain is judged twice, unless critiques of it were lost. A
    critique without a verdict counts as the probability that the next word is
    the one for right, or as UNKNOWN if that is not known.

    Raises:
      UserError: the critic cannot be asked any question so far.
    """
    while len(self._known) > _KEPT:
      del self._known[next(iter(self._known))]
    parts = [self._parts(request) for request in requests]
    new = [*dict.fromkeys(p for own in parts for p in own if not self.has(p))]
    self._known |= zip(new, self._judge(new), strict=True)
    unpaid = set(new)
    answers = []
    for own in parts:
      scores = [score for part in own for score in self._known[part].scores]
      mine = [self._known[part] for part in own if part in unpaid]
      unpaid.difference_update(own)
      tokens, flops, unread = (
        sum(getattr(opinion, name) for opinion in mine)
        for name in ('tokens', 'flops', 'unread')
      )
      said = [self._known[part] for part in own]
      lost = sum(opinion.lost for opinion in said)
      refused = sum(len(each.scores) for each in said if each.refused)
      answers.append(
        [ScoredSteps(tuple(scores), tokens, flops, unread, lost, refused)]
      )
    self._said = {part: self._known[part] for own in parts for part in own}
    for part in new:
      if self._known[part].lost:  # it is asked about again
        del self._known[part]
    return answers

  def has(self, part: Scoring) -> bool:
    """Says whether a partial chain was judged before."""
    return part in self._known

  def opinions(self, problem: str, steps: Sequence[str]) -> list[Opinion]:
    """Returns what was said of each step, or of the chain, that was scored."""
    parts = self._parts(Scoring(problem, tuple(steps)))
    said = self._said | self._known
    return [said[part] for part in parts if part in said]

  def _parts(self, request: Scoring) -> list[Scoring]:
    """Returns the partial chains whose opinions are a request's scores."""
    if self._config.ask == 'chain':
      return [request]
    ends = range(1, len(request.steps) + 1)
    return [Scoring(request.problem, request.steps[:end]) for end in ends]

  def _judge(self, parts: Sequence[Scoring]) -> list[Opinion]:
    samples = self._config.samples
    critiques = [
      _Critique(self.question(part), sample)
      for part in parts
      for sample in range(samples)
    ]
    self._write(critiques)
    self._asked |= any(each.state != 'refused' for each in critiques)
    if critiques and not self._asked:
      raise UserError(f'{self.name} cannot be asked: {self.refusal}')
    if self._style.runs_code:
      self._run_code(critiques)
    steps = [len(part.steps) for part in parts for _ in range(samples)]
    verdicts = [
      self._style.first_wrong(each.lines, count)
      if each.state == 'written'
      else None
      for each, count in zip(critiques, steps, strict=True)
    ]
    silent = [first is None for first in verdicts]
    if self._config.ask == 'chain' and self._style.whole:
      scores = [
        _before(first, count)
        for first, count in zip(verdicts, steps, strict=True)
      ]
    else:
      last = self._last_scores(critiques, verdicts, silent)
      # What is said of the answer is said of every step of a whole chain.
      repeat = self._config.ask == 'chain'
      scores = [
        (score,) * (count if repeat else 1)
        for score, count in zip(last, steps, strict=True)
      ]
    said = (critiques, scores, silent)
    starts = range(0, len(critiques), samples)
    return [_pool(*(x[i : i + samples] for x in said)) for i in starts]

  def question(self, part: Scoring) -> str:
    """Returns the question about a partial chain."""
    if self._config.plain:
      return plain_question(self._config.style, part.problem, part.steps)
    return worded_question(self._style, part.problem, part.steps)

  def _write(self, critiques: Sequence[_Critique]) -> None:
    """Lets the critic go on with each critique from its lines."""
    # Equal beginnings of different samples go on alike, and others differ.
    requests = [
      Request(
        each.question,
        each.lines,
        '\n'.join((each.question, *each.lines)),
        1,
        each.sample,
      )
      for each in critiques
    ]
    refused: set[Request] = set()
    while True:
      asked = [request for request in requests if request not in refused]
      try:
        written = iter(self._critic.complete(asked))
        break
      except CannotAsk as error:
        refused |= error.requests.keys()
        self.refusal = str(error)
    for each, request in zip(critiques, requests, strict=True):
      if request in refused:
        each.state = 'refused'
      elif (completion := next(written)[0]) is None:
        each.state = 'lost'
      elif completion.no_room and not (each.lines or completion.tokens):
        each.state, self.refusal = 'refused', 'its window has no room to answer'
      else:
        each.add(completion)

  def _run_code(self, critiques: Sequence[_Critique]) -> None:
    """Runs the Python of critiques, which then go on from its output."""
    going_on = []
    for each in critiques:
      lines, code = _up_to_code(each.lines)
      if code:
        each.lines = (*lines, f'[Code Output: {self._output(code)} ]')
        going_on.append(each)
    self._write(going_on)

  def _output(self, code: str) -> str:
    """Returns what a program prints, 'error' if it does not end well."""
    if '\n' in code:  # lines have lost their indentation
      return 'error'
    ran = sandbox.run(code, limits=self._config.limits)
    output = ' '.join(ran.output.split())[:_LONGEST_OUTPUT]
    if not ran.passed or (self._config.plain and output not in _PLAIN_OUTPUTS):
      return 'error'
    return output

  def _last_scores(
    self,
    critiques: Sequence[_Critique],
    verdicts: Sequence[int | None],
    silent: list[bool],
  ) -> list[float]:
    """Returns how likely each critique calls the last step, or chain, right.

    It is the probability of the word for right, or else the verdict.

    Args:
      silent: whether each says nothing; False is set where a word is read.
    """
    style = self._style
    scores = [
      UNKNOWN if first is None else float(first < 0) for first in verdicts
    ]
    reading = [i for i, e in enumerate(critiques) if e.state == 'written']
    if not style.lead or not reading:
      return scores
    choices = [
      Choice(
        critiques[i].question,
        *_up_to_lead(critiques[i].lines, style.lead),
        style.options,
      )
      for i in reading
    ]
    for i, chosen in zip(reading, self._critic.choose(choices), strict=True):
      critiques[i].tokens += chosen.tokens
      critiques[i].flops += chosen.flops
      if chosen.logprobs:
        silent[i] = False
        right, wrong = chosen.logprobs
        scores[i] = float(1 / (1 + np.exp(min(wrong - right, 500.0))))
    return scores


def _before(first: int | None, steps: int) -> tuple[float, ...]:
  """Returns 1 for steps before the first wrong one, 0 from there on."""
  if first is None:
    return (UNKNOWN,) * steps
  return tuple(float(first < 0 or step < first) for step in range(steps))


def _pool(
  critiques: Sequence[_Critique],
  scores: Sequence[tuple[float, ...]],
  silent: Sequence[bool],
) -> Opinion:
  """Returns what the critiques of one question say together.

  Args:
    scores: of each critique; their mean counts.
    silent: whether it says nothing.
  """
  written = [each for each in critiques if each.state == 'written']
  lost = sum(each.state == 'lost' for each in critiques)
  return Opinion(
    tuple(np.mean(scores, axis=0).tolist()),
    tuple('\n'.join(each.lines) for each in written),
    sum(silent) - lost,
    lost,
    all(each.state == 'refused' and not each.lines for each in critiques),
    sum(each.tokens for each in critiques),
    sum(each.flops for each in critiques),
  )


def _up_to_code(lines: Sequence[str]) -> tuple[tuple[str, ...], str]:
  """Returns the lines up to the end of the first code, and the code."""
  for end in range(1, len(lines) + 1):
    if match := _CODE.search('\n'.join(lines[:end])):
      return tuple(lines[:end]), _FENCE.sub('', match[1]).strip()
  return tuple(lines), ''


def _up_to_lead(lines: Sequence[str], lead: str) -> tuple[tuple[str, ...], str]:
  """Returns the lines before the last lead's, and that line through the lead.

  Where no line has it, it follows all lines, as the text to come next.
  Spaces and case are ignored.
  """
  pattern = re.compile(
    r'\s*'.join(map(re.escape, ''.join(lead.split()))), re.IGNORECASE
  )
  for i in reversed(range(len(lines))):
    if found := [*pattern.finditer(lines[i])]:
      before = lines[i][: found[-1].start()].strip()
      return tuple(lines[:i]), f'{before} {lead}'.strip()
  return tuple(lines), lead
