"""Reads formats with steps in running text: Math-Shepherd, RLHFlow, TRL.

The text is split into steps here; `data.segments` may split steps further. A
record is rejected if it does not show where the question ends.
"""

import re
from typing import Any

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.readers import records
from prm_jax.data.readers.records import Fields
from prm_jax.runtime.errors import UserError

_SIGNS = {'+': StepLabel(1.0, 'rollout'), '-': StepLabel(0.0, 'rollout')}
# A marker stands alone at the end of a line; inside a word 'ки' is text.
_MARKER = re.compile(r'(?<=\s)ки(?=[ \t]*(?:\n|\Z))')
_FIRST_STEP = re.compile(r'\bstep 1:', re.IGNORECASE)
_SECOND_STEP = re.compile(r'\bstep 2:', re.IGNORECASE)
_ANSWER = re.compile(r'The answer is:(.*)\Z', re.DOTALL)


def read_math_shepherd(record: Fields) -> list[Chain]:
  """Reads `input`, with a marker after every step, and `label`, with + or -.

  The labels are hard Monte Carlo estimates (Wang et al., 2024): + if at least
  one rollout from the step reached the right answer. After a step that states
  the answer there is nothing to roll out, so its sign is the outcome.

  A few records with line breaks in the question have markers at the ends of its
  lines, too. These belong to no step: they are dropped, and `question_marks` in
  `meta` counts them.
  """
  source, signed = (records.field(record, n) for n in ('input', 'label'))
  for name, value in (('input', source), ('label', signed)):
    if not isinstance(value, str):
      raise UserError(f'{name!r} is {records.show(value)}: expected text')
  pieces = _MARKER.split(source)
  if len(pieces) < 2 or pieces[-1].strip():
    raise UserError("'input' does not end with the step marker 'ки'")
  labels = _signs(pieces, signed)
  question, steps = _split_question(pieces[:-1])
  marks = len(labels) - len(steps)
  labels = labels[marks:]
  answer = _ANSWER.search(steps[-1])
  meta = records.keep(record, 'task')
  return [
    Chain(
      question,
      tuple(steps),
      answer=(answer and answer[1].strip()) or None,
      outcome=labels[-1].value == 1 if answer else None,
      labels=tuple(labels),
      meta=meta | {'question_marks': marks} if marks else meta,
    )
  ]


def _signs(pieces: list[str], signed: str) -> list[StepLabel]:
  """Returns the label at each marker; `signed` must have the same texts."""
  labels = []
  at = 0
  for i, piece in enumerate(pieces[:-1]):
    end = at + len(piece)
    if signed[at:end] != piece or signed[end : end + 1] not in _SIGNS:
      raise UserError(
        f"'label' differs from 'input' before or at marker {i + 1}: expected "
        'the same text with + or - for the marker'
      )
    labels.append(_SIGNS[signed[end]])
    at = end + 1
  if signed[at:].strip():
    raise UserError("'label' goes on after the last marker of 'input'")
  return labels


def _split_question(pieces: list[str]) -> tuple[str, list[str]]:
  """Splits the texts between markers into the question and its steps."""
  restarts = [
    i for i, piece in enumerate(pieces) if _FIRST_STEP.match(piece.lstrip())
  ]
  if restarts and restarts[-1] > 0:
    # Numbering starts again, so everything before belongs to the question.
    first = restarts[-1]
    head, step = '', pieces[first]
  else:
    numbered = [i for i, p in enumerate(pieces) if _FIRST_STEP.search(p)]
    first = numbered[0] if numbered else 0
    head, step = split_first_step(pieces[first])
  question = ''.join([*pieces[:first], head]).strip()
  if not question:
    raise UserError('there is no question before the first step')
  return question, [piece.strip() for piece in (step, *pieces[first + 1 :])]


def split_first_step(text: str) -> tuple[str, str]:
  """Splits a text into the question and the first step.

  The step starts at the last 'Step 1:'; earlier ones belong to the question. A
  text without 'Step 1:' is split after its question mark if it has exactly one.

  Raises:
    UserError: neither rule applies, or 'Step 2:' follows in the same text, so
      that 'Step 1:' may belong to the question.
  """
  starts = [match.start() for match in _FIRST_STEP.finditer(text)]
  if starts:
    question, step = text[: starts[-1]], text[starts[-1] :]
    if _SECOND_STEP.search(step):
      raise UserError(
        "'Step 2:' before the first label: cannot tell the question's own "
        'numbering from the solution'
      )
  else:
    question, mark, step = text.partition('?')
    question += mark
    if not mark or '?' in step or not step.strip():
      raise UserError(
        "cannot tell the question from the first step: expected 'Step 1:', or "
        'a single question mark between them'
      )
  return question.strip(), step.strip()


def read_trl(record: Fields) -> list[Chain]:
  """Reads TRL's stepwise supervision: {prompt, completions, labels}.

  Labels are true, false, null (unknown) or numbers in [0, 1]. The format does
  not name their source; it is `human` unless the caller of `read_chains` gives
  another one.
  """
  steps = records.steps(record, 'completions')
  values = records.items(record, 'labels')
  if len(values) != len(steps):
    raise UserError(f'{len(values)} labels for {len(steps)} completions')
  labels = tuple(
    StepLabel(_trl_value(value, i)) for i, value in enumerate(values)
  )
  problem = records.text(record, 'prompt')
  return [Chain(problem, steps, labels=labels, meta=records.keep(record, 'id'))]


def _trl_value(value: Any, i: int) -> float | None:
  if value is None or isinstance(value, bool):
    return None if value is None else float(value)
  return records.probability(value, f'labels[{i}]')


def read_rlhflow(record: Fields) -> list[Chain]:
  """Reads RLHFlow's chat: the user writes a step, the assistant + or -.

  The first turn of the user holds the problem and step 1, joined by a blank;
  `split_first_step` splits it.
  """
  name = 'messages' if 'messages' in record else 'conversations'
  turns = records.items(record, name)
  if not turns or len(turns) % 2:
    raise UserError(
      f'{len(turns)} turns: expected a user and an assistant turn per step'
    )
  texts, labels = [], []
  for i, turn in enumerate(turns):
    role = ('user', 'assistant')[i % 2]
    if records.field(turn, 'role') != role:
      raise UserError(
        f'turn {i} is by {records.show(turn["role"])}: expected {role!r}'
      )
    content = records.text(turn, 'content')
    if role == 'user':
      texts.append(content)
    elif content in _SIGNS:
      labels.append(_SIGNS[content])
    else:
      raise UserError(f'turn {i} is {records.show(content)}: expected + or -')
  problem, first = split_first_step(texts[0])
  steps = (first, *texts[1:])
  meta = records.keep(record, 'id')
  return [Chain(problem, steps, labels=tuple(labels), meta=meta)]
