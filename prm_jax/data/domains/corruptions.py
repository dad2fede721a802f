"""Errors planted in worked solutions, and carried on to their end.

Knows which number of a solution is whose result, and rewrites every number that
follows from an error; `equations` reads the solutions.

    plant       Solution, Links, kind -> Planted: what is written instead
    render      Solution, Planted -> sentences
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from prm_jax.data.domains.equations import (
  Solution,
  consistent,
  evaluate,
  number_of,
  number_text,
  parse,
)

KINDS = (
  'wrong_result',
  'wrong_operand',
  'wrong_operator',
  'copied_number',
  'skipped_step',
  'two_errors',
)

# Proposals looked at before a kind is given up on one solution.
MAX_PROPOSALS = 80

_SLIPS = (1, 2, 5, 10, 20, 50, 100, 1000)


class Links(NamedTuple):
  """Where the numbers of a solution come from.

  Attributes:
    source: ordinal -> ordinal of the result that it repeats.
    copied: ordinals copied from the question or from a result, as opposed to
      constants such as the days of a week.
  """

  source: Mapping[int, int]
  copied: frozenset[int]


class Planted(NamedTuple):
  """A solution with errors, as differences from the right one.

  Attributes:
    values: every number as it is written now.
    operators: place -> symbol, where an operator is replaced.
    dropped: index of the step that is left out, None if all are there.
    steps: indices of the steps that an error was planted in, before anything
      was dropped; the steps that only carry it on are not among them.
  """

  values: tuple[Fraction, ...]
  operators: Mapping[tuple[int, int], str]
  dropped: int | None
  steps: tuple[int, ...]

  def differing(self, solution: Solution) -> frozenset[int]:
    """Indices (of the right solution) of the steps that say something else."""
    pairs = zip(solution.places, solution.values, self.values, strict=True)
    steps = {place[0] for place, right, now in pairs if right != now}
    steps |= {step for step, _ in self.operators}
    return frozenset(steps - {self.dropped})


def plant(
  solution: Solution,
  links: Links,
  kind: str,
  question: list[Fraction],
  rng: np.random.Generator,
) -> Planted | None:
  """One error of a kind (two of them for 'two_errors'), carried to the end.

  Everything after the error is calculated again from what is written, so the
  planted steps alone are at fault. Numbers keep their nature: none becomes
  zero or negative, and a whole number stays whole. The final answer changes,
  except with 'two_errors', which ends in the right one.

  Args:
    kind: one of KINDS.
    question: numbers of the question, which 'wrong_operand' takes from.
  Returns:
    The planted error; None where this solution offers none of the kind.
  """
  proposals = list(_PROPOSALS[kind](solution, links, question))
  right, answer = solution.values, len(solution.values) - 1
  for p in rng.permutation(len(proposals))[:MAX_PROPOSALS]:
    written, operators, dropped, at = proposals[p]
    values = _derive(solution, links, written, operators)
    if values is None or any(
      values[e.result] == right[e.result] for e in at[:1]
    ):
      continue
    planted = Planted(values, operators, dropped, tuple(e.step for e in at))
    differing = planted.differing(solution)
    if kind == 'two_errors':
      # Nothing wrong may survive the second error, and it must be one.
      last = at[-1]
      carried = evaluate(solution, last, values, operators)
      ends_right = max(differing) <= last.step and carried != right[last.result]
      if ends_right and values[answer] == right[answer]:
        return planted
    elif values[answer] != right[answer]:
      if kind == 'skipped_step':
        return planted._replace(steps=(min(differing),))
      # A new operator may bind otherwise than the old one: 2 * 3 * 4 is
      # calculated from the left, 2 + 3 * 4 is not.
      if not operators or consistent(parse(render(solution, planted))):
        return planted
  return None


def render(solution: Solution, planted: Planted) -> tuple[str, ...]:
  """The steps as written, without the dropped one."""
  steps = [list(step) for step in solution.steps]
  for n, (step, token) in enumerate(solution.places):
    if planted.values[n] != solution.values[n]:
      steps[step][token] = number_text(planted.values[n], solution.text(n))
  for (step, token), symbol in planted.operators.items():
    word = steps[step][token].isalpha() and steps[step][token] != 'x'
    names = {'+': 'plus', '-': 'minus', '*': 'times', '/': 'divided by'}
    steps[step][token] = names[symbol] if word else symbol
  return tuple(
    ''.join(step) for s, step in enumerate(steps) if s != planted.dropped
  )


def _derive(
  solution: Solution,
  links: Links,
  written: Mapping[int, Fraction],
  operators: Mapping[tuple[int, int], str],
) -> tuple[Fraction, ...] | None:
  """All numbers again, some of them written otherwise; None if unwritable."""
  values = list(solution.values)
  calculated = set()
  for e in solution.equations:
    for n in e.operands:
      values[n] = written.get(n, values[links.source.get(n, n)])
    if e.result in written:
      values[e.result] = written[e.result]
    else:
      try:
        values[e.result] = evaluate(solution, e, values, operators)
      except ZeroDivisionError:
        return None
    calculated |= {*e.operands, e.result}
  for n in range(len(values)):
    if n not in calculated:
      values[n] = values[links.source.get(n, n)]
  writable = all(
    now == right or _same_nature(now, right, solution.text(n))
    for n, (now, right) in enumerate(zip(values, solution.values, strict=True))
  )
  return tuple(values) if writable else None


def _same_nature(now: Fraction, right: Fraction, text: str) -> bool:
  whole = right.denominator == 1
  unit = 1 if whole else 10 ** max(2, len(text.partition('.')[2]))
  return now > 0 and (now * unit).denominator == 1


def _slips(solution: Solution, n: int) -> set[Fraction]:
  """Results of a slip in calculation: off by a round or a known number."""
  right = solution.values[n]
  whole = right.denominator == 1
  unit = Fraction(
    1, 1 if whole else 10 ** len(solution.text(n).partition('.')[2])
  )
  near = {unit * s for s in _SLIPS} | set(solution.values)
  near = {d for d in near if d <= max(unit, right / 2)}
  return {right + d for d in near} | {right - d for d in near if d < right}


def _miscopies(text: str) -> set[Fraction]:
  """One digit wrong, two neighbours swapped, a zero lost or gained."""
  plain = text.replace(',', '')
  found = {plain + '0'} if '.' not in plain else set()
  if plain.endswith('0') and '.' not in plain:
    found.add(plain[:-1])
  digits = [i for i, c in enumerate(plain) if c.isdecimal()]
  for i in digits:
    for step in (1, -1):
      digit = int(plain[i]) + step
      if 0 <= digit <= 9:
        found.add(f'{plain[:i]}{digit}{plain[i + 1 :]}')
    if i + 1 in digits:
      found.add(plain[:i] + plain[i + 1] + plain[i] + plain[i + 2 :])
  return {number_of(t) for t in found if t and t.strip('0.')}


def _wrong_results(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator:
  for e in solution.equations:
    for value in sorted(_slips(solution, e.result)):
      yield {e.result: value}, {}, None, (e,)


def _wrong_operands(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator:
  known = list(question)
  for e in solution.equations:
    for n in e.operands:
      for value in sorted(set(known) - {solution.values[n]}):
        yield {n: value}, {}, None, (e,)
    known.append(solution.values[e.result])


def _wrong_operators(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator:
  for e in solution.equations:
    for operator in e.operators:
      if operator.place:
        for symbol in sorted(set('+-*/') - {operator.symbol}):
          yield {}, {operator.place: symbol}, None, (e,)


def _copied_numbers(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator:
  for e in solution.equations:
    for n in sorted(links.copied.intersection(e.operands)):
      for value in sorted(_miscopies(solution.text(n))):
        if value != solution.values[n]:
          yield {n: value}, {}, None, (e,)


def _skipped_steps(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator:
  per_step = [e.step for e in solution.equations]
  for e in solution.equations:
    if per_step.count(e.step) == 1:
      for n in sorted(links.copied.intersection(e.operands)):
        # Later steps take up what the step would have worked on.
        yield {e.result: solution.values[n]}, {}, e.step, (e,)


def _two_errors(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator:
  for i, first in enumerate(solution.equations):
    for value in sorted(_slips(solution, first.result)):
      for last in solution.equations[i + 1 :]:
        if last.step > first.step:
          right = solution.values[last.result]
          written = {first.result: value, last.result: right}
          yield written, {}, None, (first, last)


_PROPOSALS = {
  'wrong_result': _wrong_results,
  'wrong_operand': _wrong_operands,
  'wrong_operator': _wrong_operators,
  'copied_number': _copied_numbers,
  'skipped_step': _skipped_steps,
  'two_errors': _two_errors,
}
