"""Reads Mr-Ben, AgentProcessBench and VersaPRM: domains beyond mathematics.

    numbered steps, lines of code, turns of an agent -> chains with `subject`

What a step is differs: each reader says it. `subject` in `meta` is the domain
in the benchmark's own words, such as 'college_physics' or 'law'.
"""

import ast
import dataclasses
import json
import re
from typing import Any

from prm_jax.data.chains import Chain, StepLabel, first_error
from prm_jax.data.readers import records
from prm_jax.data.readers.benchmarks import first_error_labels
from prm_jax.data.readers.prm800k import rating_label
from prm_jax.data.readers.records import Fields, Skip
from prm_jax.runtime.errors import UserError

# 'Step 4:' begins a step, and 'Step 4.1:' or 'Step 4_A:' goes on with it. Some
# models wrote 'tep 1:', or the letter of their instruction, 'Step n:'.
_HEADING = re.compile(
  r'\W*(?:s?tep *(\d{1,3}|n\b)(?!\d|_|\.\d|\.[a-z]\b)|solution *:)',
  re.IGNORECASE,
)
# 'Choice_A', 'Choice: B'; 'Choice_A/B/C/D' is no single one.
_CHOICE = re.compile(r'(?i:choice)[ _:\\(]*([A-Z](?:/[A-Z])*)\b')
_ROLES = ('system', 'user', 'assistant', 'tool')


def read_mr_ben(record: Fields) -> list[Chain] | Skip:
  """Reads Mr-Ben (Zeng et al., 2024): one model's solution of one question.

  `Model_Solution_Steps` is a list of lines. Its steps are those that the model
  numbered: a line such as 'Step 2: ...' begins one, 'Solution: ...' begins the
  last one, and lines between them belong to the step above. The first error is
  the number of a step, and not of a line. In code every line that is not blank
  is a step, and the first error is the text of one.

  Records are skipped if no one step is the first error (code may lack a line,
  for which a blank one stands), or if a correct solution has a wrong answer. An
  incorrect solution may choose the right answer; `outcome` says whether it
  does, and is None if it does not choose one.
  """
  verdict = records.text(record, 'Model_Solution_Correctness')
  if verdict not in ('correct', 'incorrect'):
    raise UserError(
      f"'Model_Solution_Correctness' is {records.show(verdict)}: expected "
      "'correct' or 'incorrect'"
    )
  correct = verdict == 'correct'
  error = records.field(record, 'Model_Solution_First_Error_Step')
  if correct != (error == 'N/A'):
    raise UserError(
      f"the solution is {verdict} and 'Model_Solution_First_Error_Step' is "
      f"{records.show(error)}: expected 'N/A' of a correct one only"
    )
  is_code = isinstance(record.get('Model_Solution_Steps'), str)
  named = _code_lines(record) if is_code else _numbered_steps(record)
  steps = tuple(step for _, step in named)
  first = -1
  if not correct:
    wrong = _error_name(error, is_code)
    places = [i for i, (name, _) in enumerate(named) if name == wrong]
    if len(places) != 1:
      return Skip('no one step is the first error')
    first = places[0]
  answer, outcome = None, correct
  if not is_code:
    answer = _choice(steps[-1])
    truth = records.text(record, 'Ground_Truth_Answer_Modified')
    if correct and answer not in (None, truth):
      return Skip('a correct solution with a wrong answer')
    if not correct:
      outcome = None if answer is None else answer == truth
  problem = records.text(record, 'Question')
  meta = records.keep_as(
    record,
    subject='Subject',
    generator='Sampled_Model',
    group='Question_UUID',
  )
  if options := records.text_or_none(record, 'Options'):
    meta['original_problem'] = problem
    problem = f'{problem}\n{options}'
  return [
    Chain(
      problem,
      steps,
      answer=answer,
      outcome=outcome,
      labels=first_error_labels(first, len(steps)),
      meta=meta,
    )
  ]


def _code_lines(record: Fields) -> list[tuple[str, str]]:
  """Returns the lines that are not blank, as names of themselves."""
  name = 'Model_Solution_Steps'
  records.text(record, name)  # which would strip the first line
  lines = [line.rstrip() for line in re.split(r'[\r\n]', record[name])]
  return [(line, line) for line in lines if line]


def _numbered_steps(record: Fields) -> list[tuple[str, str]]:
  """Returns the steps with the numbers by which the annotators name them."""
  name = 'Model_Solution_Steps'
  lines = []
  for i, line in enumerate(records.items(record, name)):
    if not isinstance(line, str):
      raise UserError(f'{name}[{i}] is {records.show(line)}: expected text')
    if line.strip():
      lines.append(line.strip())
  if not lines:
    raise UserError(f'{name!r} has no text: expected at least one step')
  headings = [_HEADING.match(line) for line in lines]
  starts = [i for i, heading in enumerate(headings) if heading]
  if not starts:
    return [(str(i), line) for i, line in enumerate(lines, 1)]
  # Lines before the first heading belong to its step.
  begins, ends = [0, *starts[1:]], [*starts[1:], len(lines)]
  named, number = [], 0
  for start, begin, end in zip(starts, begins, ends, strict=True):
    given = headings[start][1]
    number = int(given) if given and given.isdecimal() else number + 1
    named.append((str(number), '\n'.join(lines[begin:end])))
  return named


def _choice(step: str) -> str | None:
  """Returns the letter of the choice that a step names, if it names one."""
  found = set(_CHOICE.findall(step))
  letter = found.pop() if len(found) == 1 else ''
  return letter if len(letter) == 1 else None


def _error_name(error: Any, is_code: bool) -> str:
  """Returns the line, or the number of the step, that is the first error."""
  name = 'Model_Solution_First_Error_Step'
  if is_code and isinstance(error, str):
    return error.rstrip()
  number = str(error).strip()
  if is_code or not re.fullmatch('[0-9]{1,3}', number):
    raise UserError(
      f'{name!r} is {records.show(error)}: expected '
      f'{"a line of the code" if is_code else "the number of a step"}'
    )
  return number


def read_agent_process_bench(record: Fields) -> list[Chain]:
  """Reads AgentProcessBench (2026, arXiv:2603.14465): an agent's trajectory.

  A step is a message of the assistant: its text, its calls of tools, and what
  tools or users answered. `step_labels` rates it by its index in `messages`: 1,
  0 (neutral) or -1, also after the first error. The problem is `question`, and
  the messages before the assistant's first one. `question` is left out where
  they contain it; a user may tell it bit by bit. The list of `tools` is not
  read. The answer was judged by people, too (`final_label`; 0: unknown).

  Written for data/AgentProcessBench of github.com/RUCBM/AgentProcessBench at
  0a42606. All its hotpotqa records were read; of the other three parts only the
  labels, and first messages from XingYing-stack/AgentProcessBench.
  """
  messages = records.items(record, 'messages')
  texts = [_message(message, i) for i, message in enumerate(messages)]
  turns = [i for i, m in enumerate(messages) if m['role'] == 'assistant']
  if not turns:
    raise UserError("'messages' has none by the assistant: expected steps")
  labels = _step_ratings(record, turns)
  ends = [*turns[1:], len(messages)]
  steps = tuple(
    '\n'.join(filter(None, texts[turn:end]))
    for turn, end in zip(turns, ends, strict=True)
  )
  problem = '\n\n'.join(filter(None, texts[: turns[0]]))
  question = records.text(record, 'question')
  if ' '.join(question.split()) not in ' '.join(problem.split()):
    problem = f'{question}\n\n{problem}'.strip()
  final = records.integer(record, 'final_label', -1, 1)
  meta = records.keep_as(record, subject='data_source')
  meta['original_problem'] = question
  if query := records.keep(record, 'query_index'):
    meta['group'] = f'{meta.get("subject", "")}:{query["query_index"]}'
  return [
    Chain(
      problem,
      steps,
      answer=records.text_or_none(record, 'answer_text'),
      outcome={1: True, 0: None, -1: False}[final],
      labels=labels,
      meta=meta,
    )
  ]


def _message(message: Any, i: int) -> str:
  """Returns a message with its role, if not the assistant's, and its calls."""
  role = records.field(message, 'role')
  if role not in _ROLES:
    raise UserError(
      f'messages[{i}] is by {records.show(role)}: expected one of '
      f'{", ".join(_ROLES)}'
    )
  text = records.text_or_none(message, 'content')
  parts = [text if role == 'assistant' or not text else f'{role}: {text}']
  if message.get('tool_calls') is not None:
    for call in records.items(message, 'tool_calls'):
      function = records.field(call, 'function')
      name = records.text(function, 'name')
      arguments = records.text_or_none(function, 'arguments')
      parts.append(f'{name}({arguments or ""})')
  return '\n'.join(filter(None, parts))


def _step_ratings(record: Fields, turns: list[int]) -> tuple[StepLabel, ...]:
  given = records.field(record, 'step_labels')
  if not isinstance(given, dict):
    raise UserError(
      f"'step_labels' is {records.show(given)}: expected an object"
    )
  # Where a table holds the records, each has the indices of all others as null.
  rated = {index: value for index, value in given.items() if value is not None}
  unlike = rated.keys() ^ {str(turn) for turn in turns}
  if unlike:
    index = min(unlike)
    raise UserError(
      f"'step_labels' rates message {records.show(index)}, which is not the "
      "assistant's"
      if index in rated
      else f"'step_labels' does not rate message {index} of the assistant"
    )
  return tuple(
    rating_label(rated[str(turn)], f'step_labels[{turn}]') for turn in turns
  )


def read_versa_prm(record: Fields) -> list[Chain] | Skip:
  """Reads VersaPRM's chains (Zeng et al., 2025) of MMLU-Pro with judged steps.

  There are two layouts: a question with several `chain_of_thoughts`, each with
  `steps` and `labels`, as its training reads them; and one chain a record, with
  its steps as `chain_of_thoughts`, as in the published table
  MMLU-Pro-CoT-Train-Labeled. Its lists are texts in Python's notation.

  A label is 1, 0 (neutral) or -1. A language model looked for the first error,
  so later steps are unknown and the source is `judge`. Chains without labels or
  with a blank step are left out. Augmentations (`augs`) are not read.

  Written for the layout that model_train/prm_datasets.py and
  synth_cot_generation/mmlu_autolabel_from_bedrock.py of
  github.com/mtzig/MultiDomainPRM at 3963387 read and write, and for the columns
  of the published table as three other projects read them.
  """
  name = 'chain_of_thoughts'
  if 'labels' in record:
    lists = {
      'steps': _listed(record, name),
      'labels': _listed(record, 'labels'),
    }
    attempts = [record | lists]
  else:
    attempts = records.items(record, name)
  problem = records.text(record, 'question')
  about = records.keep_as(record, subject='domain', group='id')
  about |= records.keep_as(record, subject='category')
  chains = [_judged(attempt, problem, about) for attempt in attempts]
  labelled = [chain for chain in chains if chain]
  return labelled or Skip('no labels, or a blank step')


def _listed(record: Fields, name: str) -> Any:
  """Returns a field; if it is text, the list or null that the text denotes."""
  value = records.field(record, name)
  if not isinstance(value, str):
    return value
  try:
    value = ast.literal_eval(value)
    # Python's notation has more than JSON, such as sets and half surrogates.
    json.dumps(value, ensure_ascii=False).encode()
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    raise UserError(
      f'{name!r} is {records.show(record[name])}: expected a list, or the text '
      'of one'
    ) from None
  return value


def _judged(attempt: Any, problem: str, about: Fields) -> Chain | None:
  """Returns the chain of one attempt; None if it has no complete labels."""
  given = records.items(attempt, 'steps')
  if attempt.get('labels') is None or any(
    isinstance(step, str) and not step.strip() for step in given
  ):
    return None
  steps = records.steps(attempt, 'steps')
  ratings = records.items(attempt, 'labels')
  if len(ratings) != len(steps):
    raise UserError(f'{len(ratings)} labels for {len(steps)} steps')
  labels = [
    dataclasses.replace(rating_label(r, f'labels[{i}]'), source='judge')
    for i, r in enumerate(ratings)
  ]
  first = first_error(labels)
  if first >= 0:
    later = len(steps) - first - 1
    labels[first + 1 :] = [StepLabel(None, 'judge')] * later
  right = attempt.get('parsed_answer_correctness')
  return Chain(
    problem,
    steps,
    answer=records.text_or_none(attempt, 'parsed_answer'),
    outcome=None
    if right is None
    else records.flag(attempt, 'parsed_answer_correctness'),
    labels=tuple(labels),
    meta=about,
  )
