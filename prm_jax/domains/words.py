"""Word problems: a second domain in which the truth is known exactly.

Stands beside `arithmetic` in front of the pipeline, and makes chains of
sentences instead of symbols. Problems and right solutions come from the 100
GSM-Symbolic templates (Mirzadeh et al., 2024) that the package reasoning-gym
carries; `corruptions` plants the errors and carries them on.

    reasoning-gym -> question, worked answer -> corruptions.parse -> Solution
      -> corruptions.plant, where the chain is to be wrong -> Chain

    problem  A kid has 13 books. His sister has 10 fewer books than he has. ...
    step 0   His sister has 13 - 10 = 3 books.
    step 1   Together, they have 13 + 3 = 16 books.
    step 2   The answer is 16.

Where a number of a solution comes from is not guessed from one text but read
off many texts of its template: it repeats a result if it equals it in all of
them. A template is left out if a number equals two results, or comes from
nowhere; so is a text in which an equation does not hold exactly.

Labels say what is true of the problem. Up to the first error steps are 1.
From there a step that says anything false, be it calculated or carried on, is
0, and one that is true is unknown: it is right by itself, and stands in a
chain that has gone wrong. A repeated step is no error: it is 1, `neutral`.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from prm_jax.chains import Chain, StepLabel
from prm_jax.domains import corruptions
from prm_jax.errors import UserError

TEMPLATES = 100
# Every fifth: 20 of 100, whichever of them turn out to be usable.
HELD_OUT = tuple(range(1, TEMPLATES, 5))

# A wrong link needs two numbers to agree by chance in all of these texts.
PROFILE_TEXTS = 64
MIN_ALIKE = 24
# A kind is offered by a template when this share of its texts offers it.
MIN_OFFERED = 0.5
MAX_DRAWS = 1000

_CHAIN_STREAM, _PROFILE_STREAM = range(2)
_RIGHT = StepLabel(1.0, source='verifier')
_WRONG = StepLabel(0.0, source='verifier')
_UNKNOWN = StepLabel(None, source='verifier')
_REPEATED = StepLabel(1.0, source='verifier', neutral=True)


@dataclasses.dataclass(frozen=True)
class WordsConfig:
  """The domain and its errors.

  Attributes:
    templates: 'train' (80 templates) or 'held_out' (20 others), before those
      that cannot be used are left out; see `coverage`.
    error_share: probability that a chain has an error.
    repeat_share: probability that a chain without error repeats a step.
    kinds: the errors to plant, from `corruptions.KINDS`.
  """

  templates: str = 'train'
  error_share: float = 0.5
  repeat_share: float = 0.05
  kinds: tuple[str, ...] = corruptions.KINDS

  def __post_init__(self):
    if self.templates not in ('train', 'held_out'):
      raise UserError(
        f'words templates={self.templates!r}: expected train or held_out'
      )
    for name in ('error_share', 'repeat_share'):
      value = getattr(self, name)
      if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(
          f'words {name}={value!r}: expected a probability in [0, 1]'
        )
    # Configs give lists; a tuple keeps the dataclass hashable.
    object.__setattr__(self, 'kinds', tuple(self.kinds))
    unknown = sorted(set(self.kinds) - set(corruptions.KINDS))
    if unknown or not self.kinds:
      raise UserError(
        f'words kinds={self.kinds!r}: expected one or more of '
        f'{", ".join(corruptions.KINDS)}'
      )


class Problem(NamedTuple):
  """A question, its right solution, and where the solution's numbers are from.

  The last step of the solution states the answer.
  """

  template: int
  question: str
  solution: corruptions.Solution
  links: corruptions.Links


class Template(NamedTuple):
  """What many texts of one template say of it.

  Attributes:
    links: signature of a text -> where its numbers come from.
    kinds: the kinds of error that it offers.
    reason: why it cannot be used; empty if it can.
  """

  links: Mapping[tuple, corruptions.Links]
  kinds: tuple[str, ...]
  reason: str


def template_indices(templates: str) -> tuple[int, ...]:
  """The templates of a group, usable or not; the groups share none."""
  return tuple(
    t for t in range(TEMPLATES) if (t in HELD_OUT) == (templates == 'held_out')
  )


def coverage(config: WordsConfig) -> dict[int, Template]:
  """Every template of the config's group, with what it offers.

  Raises:
    UserError: the package reasoning-gym is missing.
  """
  return {t: template(t) for t in template_indices(config.templates)}


@functools.cache
def template(index: int) -> Template:
  """Reads a template off PROFILE_TEXTS texts that always are the same."""
  if index not in _generators():
    return Template({}, (), 'marked as faulty by reasoning-gym')
  rng = _generator(0, _PROFILE_STREAM, index)
  texts = [_draw(index, rng) for _ in range(PROFILE_TEXTS)]
  exact = [
    (question, solution)
    for question, solution in texts
    if solution.equations and corruptions.consistent(solution)
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
        corruptions.numbers(question),
        rng,
      )
      is not None
      for question, solution in tried
    ]
    if np.mean(successes) >= MIN_OFFERED:
      offered.append(kind)
  reason = '' if offered else 'offers no kind of error'
  return Template(links, tuple(offered), reason)


def sample_problem(index: int, rng: np.random.Generator) -> Problem:
  """A problem of one usable template, with an exact solution."""
  links = template(index).links
  for _ in range(MAX_DRAWS):
    question, solution = _draw(index, rng)
    known = links.get(solution.signature())
    if known and corruptions.consistent(solution):
      return Problem(index, question, solution, known)
  raise RuntimeError(f'words template {index}: no exact text in {MAX_DRAWS}')


def make_chains(
  config: WordsConfig, count: int, seed: int, samples: int = 1
) -> list[Chain]:
  """Chains of distinct problems, all samples of a problem in a row.

  The template is drawn before it is decided whether a chain is wrong, so it
  says nothing of the label. Nearly all templates offer all kinds, so a uniform
  draw among those on offer makes them about equally frequent. A smaller
  `count` gives the first chains of a larger one, so held-out problems of the
  same templates are a slice of one call, never a second call.

  Args:
    count: number of problems.
    seed: of everything.
    samples: chains of each problem, right or wrong each by itself.
  Returns:
    count * samples chains with verifier labels. `meta`: `id`, `dataset`,
    `problem_id` (the question), `template` (0 to 99), `kind` ('right',
    'repeated_step' or one of `corruptions.KINDS`) and `error_steps`, the
    indices of the steps that an error was planted in.

  Raises:
    UserError: the package reasoning-gym is missing, no template of the group
      offers any of the kinds, or its templates run out of distinct problems.
  """
  for name, value in (('count', count), ('samples', samples)):
    if not isinstance(value, int | np.integer) or value < 1:
      raise UserError(f'{name}={value!r}: expected a whole number from 1 up')
  if not isinstance(seed, int | np.integer) or seed < 0:
    raise UserError(f'seed={seed!r}: expected a whole number from 0 up')
  offers = {
    t: kinds
    for t, found in coverage(config).items()
    if (kinds := [k for k in config.kinds if k in found.kinds])
  }
  if not offers:
    raise UserError(
      f'words kinds={config.kinds}: no {config.templates} template offers '
      'them; name other kinds'
    )
  chains, seen, draws = [], set(), 0
  while len(seen) < count:
    rng = _generator(seed, _CHAIN_STREAM, draws)
    problem = sample_problem(int(rng.choice(list(offers))), rng)
    kinds = offers[problem.template]
    written = [_chain(config, problem, kinds, s, rng) for s in range(samples)]
    draws += 1
    if problem.question not in seen and all(written):
      seen.add(problem.question)
      chains += written
    elif draws > MAX_DRAWS + 10 * count:
      raise UserError(
        f'words count={count}: only {len(seen)} distinct problems found; '
        'lower the count'
      )
  return chains


def _chain(
  config: WordsConfig,
  problem: Problem,
  kinds: list[str],
  sample: int,
  rng: np.random.Generator,
) -> Chain | None:
  """One attempt at a problem; None if it offers none of the kinds."""
  solution = problem.solution
  steps = [''.join(step) for step in solution.steps]
  labels = [_RIGHT] * len(steps)
  errors, kind = [], 'right'
  answer = solution.text(-1)
  if rng.random() < config.error_share:
    question = corruptions.numbers(problem.question)
    for kind in (kinds[k] for k in rng.permutation(len(kinds))):
      planted = corruptions.plant(solution, problem.links, kind, question, rng)
      if planted:
        break
    else:
      return None
    wrong = planted.differing(solution)
    labels = [
      _WRONG if s in wrong else _RIGHT if s < min(wrong) else _UNKNOWN
      for s in range(len(steps))
      if s != planted.dropped
    ]
    steps = corruptions.render(solution, planted)
    gap = len(solution.steps) if planted.dropped is None else planted.dropped
    errors = [s - (s > gap) for s in planted.steps]
    answer = corruptions.number_text(planted.values[-1], answer)
  elif rng.random() < config.repeat_share:
    kind = 'repeated_step'
    again = int(rng.integers(len(steps) - 1))
    # At once or later, but before the answer.
    at = int(rng.integers(again + 1, len(steps)))
    steps.insert(at, steps[again])
    labels.insert(at, _REPEATED)
  return Chain(
    problem=problem.question,
    steps=tuple(steps),
    answer=answer,
    outcome=corruptions.numbers(answer) == [solution.values[-1]],
    labels=tuple(labels),
    meta={
      'id': f'{problem.question} # {sample}',
      'dataset': 'words',
      'problem_id': problem.question,
      'generator': f'gsm_symbolic_{problem.template}',
      'template': problem.template,
      'kind': kind,
      'error_steps': errors,
    },
  )


def _links(
  group: list[tuple[str, corruptions.Solution]],
) -> corruptions.Links | str:
  """Where each number comes from, in all texts of a group; else why not."""
  solutions = [solution for _, solution in group]
  # [texts] per number: equal columns are the same number.
  columns = list(zip(*(s.values for s in solutions), strict=True))
  questions = [set(corruptions.numbers(question)) for question, _ in group]
  first = solutions[0]
  results = {e.result: e for e in first.equations}
  users = {n: e for e in first.equations for n in e.operands}
  source, copied = {}, set()
  for n, column in enumerate(columns):
    if n in results:
      continue
    # An operand can repeat an earlier result only; a number in the prose may
    # announce the result of its own step.
    reach = [
      r
      for r, e in results.items()
      if (r < n if n in users else e.step <= first.places[n][0])
    ]
    same = [r for r in reach if columns[r] == column]
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
  return all(x in known for x, known in zip(column, questions, strict=True))


def _is_known(
  column: Sequence[Fraction], questions: Sequence[set[Fraction]]
) -> bool:
  """A constant, or a share that the question gives as a percentage."""
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
) -> tuple[str, corruptions.Solution]:
  """A question and its solution, parsed, with the answer as the last step."""
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
  return example['question'], corruptions.parse(tuple(steps))


@functools.cache
def _generators() -> dict[int, Callable]:
  """The templates that the package itself uses, by index."""
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


def _generator(seed: int, *stream: int) -> np.random.Generator:
  """The generator of one stream of a seed."""
  return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))
