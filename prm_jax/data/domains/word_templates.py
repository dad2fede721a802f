"""Profiles the templates of word problems and draws problems from them.

    reasoning-gym -> profile_template -> Template -> sample_problem -> words

Whether a number of a solution repeats a result is not guessed from one text: it
must equal the result in many texts of the template. A template is left out if
one of its numbers equals two results or comes from nowhere. Texts in which an
equation does not hold exactly are left out, too.
"""

import functools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from prm_jax.data.domains import corruptions, equations
from prm_jax.data.domains.draws import make_generator
from prm_jax.runtime.errors import UserError

TEMPLATES = 100

# Every fifth template is held out, usable or not.
HELD_OUT = tuple(range(1, TEMPLATES, 5))

# Number of texts that a template is profiled by. A link is wrong only if two
# numbers agree by chance in all of them.
PROFILE_TEXTS = 64

# Texts of one form are used if at least this many of them hold exactly.
MIN_ALIKE = 24

# A template offers a kind of error if this share of its texts offers it.
MIN_OFFERED = 0.5

MAX_DRAWS = 1000

# First word of each random stream's spawn key, so that equal seeds give
# independent streams.
CHAIN_STREAM, _PROFILE_STREAM = range(2)


class WordProblem(NamedTuple):
  """Holds a question, its right solution and where its numbers come from.

  The last step of the solution states the answer.
  """

  template: int
  question: str
  solution: equations.Solution
  links: corruptions.Links


class Template(NamedTuple):
  """Says what a template can be used for.

  Attributes:
    links: maps the signature of a text to where its numbers come from.
    kinds: the kinds of error that the template offers.
    reason: why the template cannot be used; empty if it can.
  """

  links: Mapping[tuple, corruptions.Links]
  kinds: tuple[str, ...]
  reason: str


def template_indices(templates: str) -> tuple[int, ...]:
  """Returns the templates of a group, 'train' or 'held_out', usable or not."""
  return tuple(
    t for t in range(TEMPLATES) if (t in HELD_OUT) == (templates == 'held_out')
  )


@functools.cache
def profile_template(index: int) -> Template:
  """Finds out what a template offers, from texts that are always the same."""
  if index not in _generators():
    return Template({}, (), 'marked as faulty by reasoning-gym')
  rng = make_generator(0, _PROFILE_STREAM, index)
  texts = [_draw(index, rng) for _ in range(PROFILE_TEXTS)]
  exact = [
    (question, solution)
    for question, solution in texts
    if solution.equations and equations.consistent(solution)
  ]
  groups = {}
  for question, solution in exact:
    groups.setdefault(solution.signature(), []).append((question, solution))
  groups = {s: group for s, group in groups.items() if len(group) >= MIN_ALIKE}
  if not groups:
    return Template({}, (), 'too few texts alike in which all equations hold')
  links = {}
  for signature, group in groups.items():
    found = _links(group)
    if isinstance(found, str):
      return Template({}, (), found)
    links[signature] = found
  offered = []
  tried = [text for group in groups.values() for text in group[:8]]
  for kind in corruptions.KINDS:
    successes = [
      corruptions.plant(
        solution,
        links[solution.signature()],
        kind,
        equations.numbers(question),
        rng,
      )
      is not None
      for question, solution in tried
    ]
    if np.mean(successes) >= MIN_OFFERED:
      offered.append(kind)
  reason = '' if offered else 'offers no kind of error'
  return Template(links, tuple(offered), reason)


def sample_problem(index: int, rng: np.random.Generator) -> WordProblem:
  """Draws a problem from a usable template; its solution holds exactly."""
  links = profile_template(index).links
  for _ in range(MAX_DRAWS):
    question, solution = _draw(index, rng)
    known = links.get(solution.signature())
    if known and equations.consistent(solution):
      return WordProblem(index, question, solution, known)
  raise RuntimeError(f'words template {index}: no exact text in {MAX_DRAWS}')


def _links(
  group: list[tuple[str, equations.Solution]],
) -> corruptions.Links | str:
  """Returns where the numbers of a group of texts come from.

  Args:
    group: questions and solutions of one form.

  Returns:
    The links that hold in all texts, or the reason why there are none.
  """
  solutions = [solution for _, solution in group]
  # A column holds the values of one number in all texts. Numbers with equal
  # columns are the same number.
  columns = list(zip(*(s.values for s in solutions), strict=True))
  questions = [set(equations.numbers(question)) for question, _ in group]
  first = solutions[0]
  results = {e.result: e for e in first.equations}
  operands = {n for e in first.equations for n in e.operands}
  source, copied = {}, set()
  for n, column in enumerate(columns):
    if n in results:
      continue
    # An operand can repeat earlier results only. A number outside equations
    # may also announce the result of its own step.
    candidates = [
      r
      for r, e in results.items()
      if (r < n if n in operands else e.step <= first.places[n][0])
    ]
    same = [r for r in candidates if columns[r] == column]
    given = _is_given(column, questions)
    if len(same) > 1 or (same and given):
      return f'number {first.text(n)} may come from two places'
    if not same and not given and not _is_known(column, questions):
      return f'number {first.text(n)} comes from nowhere'
    if same:
      source[n] = same[0]
    if same or (given and len(set(column)) > 1):
      copied.add(n)
  if len(columns) - 1 not in source:
    return 'the answer is no result'
  return corruptions.Links(source, frozenset(copied))


def _is_given(
  column: Sequence[Fraction], questions: Sequence[set[Fraction]]
) -> bool:
  """Says whether the question of every text gives the number."""
  return all(x in known for x, known in zip(column, questions, strict=True))


def _is_known(
  column: Sequence[Fraction], questions: Sequence[set[Fraction]]
) -> bool:
  """Says whether a number is constant or follows from a given percentage."""
  if len(set(column)) == 1:
    return True
  shares: tuple[Callable[[Fraction], Fraction], ...] = (
    lambda x: x / 100,
    lambda x: 1 - x / 100,
    lambda x: 1 + x / 100,
    lambda x: 100 + x,
    lambda x: 100 - x,
  )
  return any(
    _is_given(column, [{share(x) for x in known} for known in questions])
    for share in shares
  )


def _draw(
  index: int, rng: np.random.Generator
) -> tuple[str, equations.Solution]:
  """Draws a question and its parsed solution; the last step is the answer."""
  source = random.Random(int(rng.integers(2**63)))
  example: dict[str, Any] = _generators()[index](source)
  worked = example['metadata']['answer_cot'].partition('####')[0]
  steps, before = [], []
  for line in filter(None, map(str.strip, worked.splitlines())):
    before.append(line)
    # A heading belongs to the calculation that it announces.
    if re.search(r'=|\bequals\b', line):
      steps.append(' '.join(before))
      before = []
  if before:
    steps = [*steps[:-1], ' '.join([*steps[-1:], *before])]
  steps.append(f'The answer is {example["answer"]}.')
  return example['question'], equations.parse(tuple(steps))


@functools.cache
def _generators() -> dict[int, Callable]:
  """Returns the generators of the templates that reasoning-gym itself uses."""
  try:
    from reasoning_gym.arithmetic.gsm_symbolic import (  # noqa: PLC0415
      generators_00_49,
      generators_50_99,
      gsm_symbolic,
    )
  except ImportError as error:
    raise UserError(
      f'the words domain needs reasoning-gym ({error}): '
      "pip install 'prm_jax[words]'"
    ) from error
  modules = (generators_00_49, generators_50_99)
  return {
    t: getattr(modules[t >= 50], f'generate_{t}') for t in gsm_symbolic.tasks_ok
  }
