"""Formats that hide steps in running text: Math-Shepherd, RLHFlow, TRL.

The text is split here, once; nothing downstream splits it again. A record in
which the end of the question cannot be told is refused, never guessed at.
"""

import re
from typing import Any

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.readers import records
from prm_jax.data.readers.records import Fields
from prm_jax.runtime.errors import UserError

_SIGNS = {'+': StepLabel(1.0, 'rollout'), '-': StepLabel(0.0, 'rollout')}
# The marker stands alone at the end of a line; inside a word it is text.
_MARKER = re.compile(r'(?<=\s)ки(?=[ \t]*(?:\n|\Z))')
_FIRST_STEP = re.compile(r'\bstep 1:', re.IGNORECASE)
_SECOND_STEP = re.compile(r'\bstep 2:', re.IGNORECASE)
_ANSWER = re.compile(r'The answer is:(.*)\Z', re.DOTALL)


def read_math_shepherd(record: Fields) -> list[Chain]:
  """`input` with a marker after every step, `label` with + or - instead.

  The labels are hard Monte Carlo estimates (Wang et al., 2024): + where at
  least one rollout from the step reached the right answer. After a step that
  states the answer nothing is left to roll out, so its sign is the outcome.

  Where a question has line breaks, a few records have markers at the end of
  its lines too. They label no step: they are left out, and `question_marks`
  in `meta` counts them.
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
  """The signs at the places of the markers, the texts between being equal."""
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
  """The question and its steps, of text cut at the markers."""
  restarts = [
    i for i, piece in enumerate(pieces) if _FIRST_STEP.match(piece.lstrip())
  ]
  if restarts and restarts[-1] > 0:
    # The numbering starts anew: what came before is in the question.
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
  """Question and first step of a text that holds both.

  The step starts at the last 'Step 1:'; those before it are in the question.
  A text without numbering is split after its question mark if it has one only.

  Raises:
    UserError: neither rule applies, or 'Step 2:' follows in the same text,
      which is then the numbering of the question itself.
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
  """TRL's stepwise supervision: {prompt, completions, labels}.

  Labels are true, false, null (unknown) or numbers in [0, 1]; they stay what
  they are. The format does not say who gave them: `human` unless the caller of
  `read_chains` names another source.
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
  """RLHFlow's chat: the user says a step, the assistant + or -.

  The first turn of the user holds the problem and step 1, joined by a blank;
  `split_first_step` says where it is split and when it is refused.
  """
  name = 'messages' if 'messages' in record else 'conversations'
  turns = records.items(record, name)
  if not turns or len(turns) % 2:
    raise UserError(
      f'{len(turns)} turns: expected a user and an assistant turn per step'
    )
  said, labels = [], []
  for i, turn in enumerate(turns):
    role = ('user', 'assistant')[i % 2]
    if records.field(turn, 'role') != role:
      raise UserError(
        f'turn {i} is by {records.show(turn["role"])}: expected {role!r}'
      )
    content = records.text(turn, 'content')
    if role == 'user':
      said.append(content)
    elif content in _SIGNS:
      labels.append(_SIGNS[content])
    else:
      raise UserError(f'turn {i} is {records.show(content)}: expected + or -')
  problem, first = split_first_step(said[0])
  steps = (first, *said[1:])
  meta = records.keep(record, 'id')
  return [Chain(problem, steps, labels=tuple(labels), meta=meta)]
