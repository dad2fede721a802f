"""Reads benchmarks and worked answers, such as ProcessBench, PRMBench, GSM8K.

Where a benchmark gives the index of the first error, the steps before it are
labelled right, the step itself is labelled wrong, and later steps are unknown,
because they were not judged.
"""

import dataclasses
import re
from typing import Any

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.domains.worked_answers import answer_step
from prm_jax.data.readers import records
from prm_jax.data.readers.records import Fields, Skip
from prm_jax.runtime.errors import UserError

_RIGHT, _WRONG, _UNKNOWN = StepLabel(1.0), StepLabel(0.0), StepLabel(None)


def first_error_labels(first: int, count: int) -> tuple[StepLabel, ...]:
  """Returns the labels of a chain by the index of its first error, -1: none."""
  if first == -1:
    return (_RIGHT,) * count
  return (_RIGHT,) * first + (_WRONG,) + (_UNKNOWN,) * (count - first - 1)


def read_processbench(record: Fields) -> list[Chain]:
  """Reads ProcessBench (Zheng et al., 2024).

  `label` is the index of the first error, or -1 if there is none.
  """
  steps = records.steps(record, 'steps')
  first = records.integer(record, 'label', -1, len(steps) - 1)
  return [
    Chain(
      records.text(record, 'problem'),
      steps,
      outcome=records.flag(record, 'final_answer_correct'),
      labels=first_error_labels(first, len(steps)),
      meta=records.keep(record, 'id', 'generator'),
    )
  ]


def read_big_bench_mistake(record: Fields) -> list[Chain] | Skip:
  """Reads BIG-Bench-Mistake (Tyen et al., 2024).

  `mistake_index` is the index of the first logical mistake, or null if there is
  none. An answer is right if it equals `target`, whatever commas and full stops
  separate its words, or blanks its brackets. Records with a blank step are
  skipped. The task is the name of the file. People judged four of the tasks; a
  program judged most of the Dyck languages.
  """
  if _has_blank(record, 'steps'):
    return Skip('blank step')
  steps = records.steps(record, 'steps')
  first, name = -1, 'mistake_index'
  if records.field(record, name) is not None:
    first = records.integer(record, name, 0, len(steps) - 1)
  answer = records.text_or_none(record, 'answer')
  return [
    Chain(
      records.text(record, 'input'),
      steps,
      answer=answer,
      outcome=answer is not None
      and _words(answer) == _words(records.text(record, 'target')),
      labels=first_error_labels(first, len(steps)),
    )
  ]


def _words(answer: str) -> list[str]:
  """Returns the words of a sorted list, or the brackets of a Dyck word."""
  words = re.sub('[,.]', ' ', answer).split()
  return words if re.search(r'\w', answer) else list(''.join(words))


def read_solution_pool(record: Fields) -> list[Chain] | Skip:
  """Reads several solutions of a problem for best-of-N.

  Steps are the lines of a solution. They have no labels, but `outcome` says
  whether the answer is right. Problems without a solution are skipped.
  """
  problem = records.text(record, 'question')
  chains = [
    Chain(
      problem,
      records.lines(candidate, 'text'),
      answer=records.text(candidate, 'answer'),
      outcome=records.flag(candidate, 'correct'),
      meta={'generator': records.text(candidate, 'source')},
    )
    for candidate in records.items(record, 'candidates')
  ]
  return chains or Skip('no candidates')


def read_gsm8k(record: Fields) -> list[Chain]:
  """Reads GSM8K's worked answers (Cobbe et al., 2021); all steps are right.

  Steps are the lines without their calculator annotations `<<48/2=24>>`. The
  last line, `#### 72`, is the answer and not a step.
  """
  *lines, last = records.lines(record, 'answer') or ('',)
  steps = [re.sub(r'<<[^<>]*>>', '', line).strip() for line in lines]
  steps = [step for step in steps if step]
  stated = last.removeprefix('####').strip()
  if not steps or not stated or stated == last:
    raise UserError(
      "'answer' is no worked answer: expected lines of text and '#### 72' "
      'at the end'
    )
  return [
    Chain(
      records.text(record, 'question'),
      tuple(steps),
      answer=stated,
      outcome=True,
      labels=(_RIGHT,) * len(steps),
    )
  ]


def read_gsm8k_stated(record: Fields) -> list[Chain]:
  """Reads GSM8K for a policy: adds a last step that states the answer."""
  (chain,) = read_gsm8k(record)
  return [
    dataclasses.replace(
      chain,
      steps=(*chain.steps, answer_step(chain.answer)),
      labels=(*chain.labels, _RIGHT),
    )
  ]


def read_verify_then_generate(record: Fields) -> list[Chain]:
  """Reads wrong solutions whose first wrong step was marked by teachers.

  The last element of a solution is its final answer. It is read as a step,
  because in some records it is the step that is marked.
  """
  name = 'student_incorrect_solution'
  steps = records.steps(record, name)
  first = records.integer(record, 'incorrect_index', 0, len(steps) - 1)
  return [
    Chain(
      records.text(record, 'problem'),
      steps,
      answer=steps[-1],
      outcome=False,
      labels=first_error_labels(first, len(steps)),
      meta=records.keep(record, 'id', 'error_category'),
    )
  ]


def read_prmbench(record: Fields) -> list[Chain] | Skip:
  """Reads PRMBench (Song et al., 2025), right processes with inserted errors.

  `error_steps` counts from 1; all other steps are right, and so is every step
  of a record without errors (class multi_solutions). Records that point past
  the last step, or whose blank steps put the count off, are skipped. The source
  is `judge`, because a language model itself says which steps it made wrong.
  """
  name = 'modified_process'
  if _has_blank(record, name):
    return Skip('blank step')
  steps = records.steps(record, name)
  # An index below 1 is a bad record; an index past the end is skipped below.
  wrong = {
    records.integer({name: i}, name, 1, 2**31)
    for name, i in _numbered(record, 'error_steps')
  }
  if wrong and max(wrong) > len(steps):
    return Skip('error_steps past the last step')
  labels = tuple(
    StepLabel(0.0 if i in wrong else 1.0, 'judge')
    for i in range(1, len(steps) + 1)
  )
  problem = records.text(record, 'modified_question')
  return [Chain(problem, steps, labels=labels, meta=_prmbench_meta(record))]


def read_prmbench_original(record: Fields) -> list[Chain] | Skip:
  """Reads the process before errors were inserted; all of its steps are right.

  The files of the error classes share their originals: read only one of them,
  or drop chains whose `group` in `meta` occurs again.
  """
  name = 'original_process'
  if _has_blank(record, name):
    return Skip('blank step')
  steps = records.steps(record, name)
  problem = records.text(record, 'original_question')
  labels = (_RIGHT,) * len(steps)
  return [Chain(problem, steps, labels=labels, meta=_prmbench_meta(record))]


def read_parc(record: Fields) -> list[Chain]:
  """Reads PARC's data set PERL (Mukherjee et al., 2025), with premises.

  Every step has a label, also after the first error; a step that follows from a
  wrong one is wrong (`Accumulation_Error`). The source is `judge`, because a
  language model annotated the steps. `premises` in `meta` lists for each step
  the numbers of those that it follows from: 0 is the question, 1 the first
  step. It is left out where the annotated steps are not those of the chain.
  """
  steps = records.steps(record, 'steps')
  annotation = records.field(record, 'error_annotation')
  judged = records.items(
    records.field(annotation, 'error_annotations'), 'step_level'
  )
  if len(judged) != len(steps):
    raise UserError(f'{len(judged)} annotated steps for {len(steps)} steps')
  labels = []
  for number, step in enumerate(judged, 1):
    records.integer(step, 'step_number', number, number)
    wrong = records.flag(step, 'has_error')
    if wrong != bool(records.items(step, 'errors')):
      raise UserError(
        f"step {number} contradicts itself: 'has_error' is {wrong} with "
        f'{len(step["errors"])} errors'
      )
    labels.append(StepLabel(0.0 if wrong else 1.0, 'judge'))
  return [
    Chain(
      records.text(record, 'question'),
      steps,
      answer=records.text_or_none(record, 'model_answer'),
      outcome=records.flag(record, 'is_correct')
      if 'is_correct' in record
      else None,
      labels=tuple(labels),
      meta=records.keep_as(record, subject='type')
      | _premises(record, len(steps)),
    )
  ]


def _premises(record: Fields, count: int) -> Fields:
  """Returns `premises`, or nothing if not each step has its own."""
  annotated = records.items(
    records.field(record, 'premise_annotation'), 'steps'
  )
  numbers = [records.field(step, 'step_number') for step in annotated]
  if numbers != list(range(count + 1)):
    return {}
  premises = []
  for number, step in enumerate(annotated[1:], 1):
    name, found = f'premises of step {number}', set()
    for premise in records.items(step, 'premises'):
      # A premise is [number, what is taken from there].
      earlier = premise[0] if isinstance(premise, list) and premise else premise
      found.add(records.integer({name: earlier}, name, 0, number - 1))
    premises.append(sorted(found))
  return {'premises': premises}


def _numbered(record: Fields, name: str) -> list[tuple[str, Any]]:
  """Returns the elements of a list with their names; null stands for none."""
  if record.get(name, ()) is None:
    return []
  listed = records.items(record, name)
  return [(f'{name}[{i}]', value) for i, value in enumerate(listed)]


def _has_blank(record: Fields, name: str) -> bool:
  return any(
    isinstance(step, str) and not step.strip()
    for step in records.items(record, name)
  )


def _prmbench_meta(record: Fields) -> Fields:
  """Returns `classification`, `id`, `group` and `original_problem`.

  The group is the id without its class. Its chains come from one problem, which
  some classes change; splits keep its variants together.
  """
  meta = records.keep(record, 'classification')
  original = record.get('original_question')
  if isinstance(original, str) and original.strip():
    meta['original_problem'] = original
  if ids := records.keep(record, 'idx'):
    prefix = f'{meta.get("classification", "")}_'
    group = str(ids['idx']).removeprefix(prefix)
    meta |= {'id': ids['idx'], 'group': f'prmbench:{group}'}
  return meta
