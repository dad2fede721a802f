"""Reads problems of the code domain and judges programs as text, in a sandbox.

    problem text -> read_problem -> facts
      -> draw_inputs, reference_outputs    the tests of a problem
    problem text, step texts -> answer_of, check_steps

A trained policy writes steps as text, well formed or not. Here they are put
into a program and run on the tests of their problem. Such text is never run,
compiled or evaluated outside of the sandbox. `code` is the domain.

A report counts if it carries a random word that the steps do not get to see, so
a program does not forge it by accident: by printing, exiting or redefining
names. One that searches the files or frames of its process can forge it.
"""

import hashlib
import itertools
import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from prm_jax.data.domains.code_operations import (
  ERROR,
  FACTS,
  RETURNS,
  Fact,
  State,
  trace,
)
from prm_jax.data.domains.draws import make_generator
from prm_jax.data.verify import sandbox
from prm_jax.runtime.errors import UserError

# Largest number of operations. The sandbox runs every continuation of a prefix
# that is wrong, up to four times as many with each further operation.
MAX_OPERATIONS = 6

TESTS = 6  # T, the number of input lists of a problem

# Longer lines are no statements: they would fill the sandbox's disk.
_MAX_CHARACTERS = 10_000

_LINE = re.compile(rf'[^\r\n]{{1,{_MAX_CHARACTERS}}}')
_ASSIGNMENT = re.compile(r'xs = [^\r\n;]+')
_RETURN = re.compile(r'return [^\r\n;]+')

# Runs in the sandbox, after lines that set JOB and ERROR. What the program
# prints goes to /dev/null, so only reports are left of the output. Text that is
# no Python raises an error, which ends this: no later step is reported.
_HARNESS = """
# Names of its own, in case the program changes the builtins.
from builtins import *
from ast import parse
from itertools import product
from json import loads
from os import O_WRONLY, devnull, dup, dup2, open, write
job = loads(JOB)
reports, nothing = dup(1), open(devnull, O_WRONLY)
dup2(nothing, 1)
dup2(nothing, 2)

def report(what):
  write(reports, f"{job['word']} {what}\\n".encode())

def check_is_statement(step):
  (function,) = parse(f'def f ( xs ) :\\n  {step}').body
  (statement,) = function.body

def define(steps):
  space = {}
  exec('\\n  '.join(['def f ( xs ) :', *steps]), space)
  return space['f']

def output(f, xs):
  try:
    value = f(list(xs))
    return str(value) if type(value) is int else ERROR
  except BaseException:
    return ERROR

def passes(steps):
  f = define(steps)
  return all(output(f, xs) == y for xs, y in zip(*job['tests']))
"""

_ANSWER = """
for step in job['steps']:
  check_is_statement(step)
f = define(job['steps'])
report(' '.join([output(f, xs) for xs in job['tests'][0]]))
"""

_CHECK = """
steps = []
for step in job['steps']:
  check_is_statement(step)
  steps.append(step)
  rests = product(*job['variants'][len(steps):])
  if any(passes([*steps, *rest]) for rest in rests):
    report(f'{len(steps)} is right')
"""


def _words() -> tuple[str, ...]:
  texts = [*FACTS, *(v.statement for f in FACTS.values() for v in f.variants)]
  found = {word for text in texts for word in text.split()}
  return tuple(sorted(found | {';', *map(str, range(10))}))


# All words of problems and statements, digits included.
WORDS = _words()


def is_problem(text: str) -> bool:
  """Says whether a text is a problem of this domain."""
  return _parse(text) is not None


def read_problem(text: str) -> tuple[Fact, ...]:
  """Returns the facts of a problem, in order; the last returns a value.

  Raises:
    UserError: the text is not a problem of this domain.
  """
  facts = _parse(text)
  if facts is None:
    raise UserError(
      f'{text[:60]!r} is no problem of the code domain; expected 2 to '
      f"{MAX_OPERATIONS} operations, e.g. 'double each ; return the sum'"
    )
  return facts


def _parse(text: str) -> tuple[Fact, ...] | None:
  phrases = text.split(' ; ')
  formed = (
    2 <= len(phrases) <= MAX_OPERATIONS
    and all(phrase in FACTS for phrase in phrases)
    and phrases[-1] in RETURNS
    and not RETURNS.intersection(phrases[:-1])
  )
  return tuple(FACTS[phrase] for phrase in phrases) if formed else None


def draw_inputs(problem: str) -> State:
  """Draws the inputs of a problem's tests; they depend only on its text.

  Returns:
    TESTS tuples of 5 to 8 integers in [-9, 9].
  """
  digest = hashlib.sha256(problem.encode()).digest()
  rng = make_generator(int.from_bytes(digest[:8], 'big'))
  lengths = rng.integers(5, 9, TESTS).tolist()
  values = rng.integers(-9, 10, (TESTS, 8)).tolist()
  return tuple(
    tuple(row[:length]) for row, length in zip(values, lengths, strict=True)
  )


def answer_text(state: State) -> str:
  """Returns the outputs of a program as text, such as `12 7 0 error -3 9`."""
  return ' '.join(str(x) if isinstance(x, int) else ERROR for x in state)


def true_answer(problem: str) -> str:
  """Returns the outputs of the right program of a problem, as text."""
  right = [fact.variants[0] for fact in read_problem(problem)]
  return answer_text(trace(right, draw_inputs(problem))[-1])


def is_formed(problem: str, steps: Sequence[str]) -> bool:
  """Says whether a chain has the form of the data, right or wrong.

  It has one line per operation, the last one returns something, and the others
  assign xs. This looks at how the lines begin; only the sandbox can tell
  whether they go on as Python.
  """
  forms = [_ASSIGNMENT] * (len(read_problem(problem)) - 1) + [_RETURN]
  return len(steps) == len(forms) and all(
    form.fullmatch(step) for form, step in zip(forms, steps, strict=True)
  )


def answer_of(
  problem: str, steps: Sequence[str], limits: sandbox.Limits
) -> str | None:
  """Returns the outputs of a program on the tests of a problem, as text.

  Each step must be one statement on a line of its own. The output is `error`
  where the program fails or returns no integer. What it prints is ignored.

  Returns:
    The outputs, as in `true_answer`; None if the steps are no program or reach
    the limits.

  Raises:
    UserError: the text is not a problem of this domain, or this machine has no
      sandbox.
  """
  read_problem(problem)
  lines = _lines(steps)
  if len(lines) < len(steps):
    return None
  job = {'steps': lines, 'tests': [draw_inputs(problem)]}
  result, reports = _run(job, _ANSWER, limits)
  return reports[0] if result.passed and len(reports) == 1 else None


def check_steps(
  problem: str, steps: Sequence[str], limits: sandbox.Limits
) -> list[bool]:
  """Says for each step whether a program that begins so far can be right.

  A step is right if some continuation of the steps so far passes all tests. A
  continuation writes a variant of each remaining operation, the right one or
  one of the wrong ones, so a wrong statement that changes no output is right.
  Steps of any text are judged, by running them. These are wrong: steps after
  the last operation; a step that is not one statement on a line of its own, and
  all steps after it; and all steps from the first prefix whose continuations
  together reach the limits.

  Raises:
    UserError: the text is not a problem of this domain, or this machine has no
      sandbox.
  """
  facts = read_problem(problem)
  job = {
    'steps': _lines(steps[: len(facts)]),
    'tests': [draw_inputs(problem), true_answer(problem).split()],
    'variants': [[v.statement for v in fact.variants] for fact in facts],
  }
  _, reports = _run(job, _CHECK, limits)
  # A program that forks may report twice, and is not trusted then.
  return [reports.count(f'{p} is right') == 1 for p in range(1, len(steps) + 1)]


def _lines(steps: Sequence[str]) -> list[str]:
  """Returns the steps before the first one that is not a single line."""
  lines = (step.strip() for step in steps)
  return list(itertools.takewhile(_LINE.fullmatch, lines))


def _run(
  job: dict[str, Any], end: str, limits: sandbox.Limits
) -> tuple[sandbox.Result, list[str]]:
  """Runs the harness on a job; `end` is its last part.

  Returns:
    The sandbox's result and the reports of the harness.
  """
  word = secrets.token_hex(16)
  source = json.dumps(job | {'word': word})
  names = f'JOB = {source!r}\nERROR = {ERROR!r}\n'
  result = sandbox.run(names + _HARNESS, end, limits)
  lines = result.output.splitlines()
  mark = f'{word} '
  return result, [x.removeprefix(mark) for x in lines if x.startswith(mark)]
