"""Plants errors in worked solutions and carries them on to the answer.

`Links` say which numbers repeat the result of an equation, so every number that
follows from an error is written anew. `equations` reads the solutions;
`planting` turns the result into chains.

    plant(Solution, Links, kind) -> PlantedError: which numbers change
    render(Solution, PlantedError) -> sentences
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from prm_jax.data.domains.equations import (
  Solution,
  StatedEquation,
  consistent,
  evaluate,
  format_number,
  parse,
  parse_number,
)

KINDS = (
  'wrong_result',
  'wrong_operand',
  'wrong_operator',
  'copied_number',
  'skipped_step',
  'two_errors',
)

# Number of errors that are tried before a solution counts as offering none.
MAX_PROPOSALS = 80

# A slip changes a result by one of these, in units of its last digit.
_SLIPS = (1, 2, 5, 10, 20, 50, 100, 1000)


class Links(NamedTuple):
  """Says where the numbers of a solution come from.

  Attributes:
    source: maps the ordinal of a number to the ordinal of the result that it
      repeats.
    copied: ordinals of the numbers that are copied from the question or from a
      result; constants, such as the days of a week, are not among them.
  """

  source: Mapping[int, int]
  copied: frozenset[int]


class PlantedError(NamedTuple):
  """Says how a solution with an error differs from the right one.

  Attributes:
    values: every number as it is written now.
    operators: maps the places of replaced operators to their new symbols.
    dropped: index of the step that is left out; None if no step is.
    steps: indices, in the right solution, of the steps in which an error was
      planted; steps that only carry it on are not among them.
  """

  values: tuple[Fraction, ...]
  operators: Mapping[tuple[int, int], str]
  dropped: int | None
  steps: tuple[int, ...]

  def changed_steps(self, solution: Solution) -> frozenset[int]:
    """Returns the indices, in the right solution, of the steps that changed."""
    pairs = zip(solution.places, solution.values, self.values, strict=True)
    steps = {place[0] for place, right, now in pairs if right != now}
    steps |= {step for step, _ in self.operators}
    return frozenset(steps - {self.dropped})


class _Proposal(NamedTuple):
  """Holds an error to try.

  Attributes:
    equations: the equations at fault, in order.
    written: maps ordinals to the values that are written instead.
    operators: maps the places of replaced operators to their new symbols.
    dropped: index of the step that is left out; None if no step is.
  """

  equations: tuple[StatedEquation, ...]
  written: Mapping[int, Fraction] = {}
  operators: Mapping[tuple[int, int], str] = {}
  dropped: int | None = None


def plant(
  solution: Solution,
  links: Links,
  kind: str,
  question: list[Fraction],
  rng: np.random.Generator,
) -> PlantedError | None:
  """Plants one error of a kind, or two for 'two_errors'.

  Everything after the error is calculated again from what is written, so only
  the planted steps are at fault. No number becomes zero or negative, and whole
  numbers stay whole. The final answer becomes wrong, except with 'two_errors',
  where the second error restores it.

  Args:
    solution: the right solution; its last number is the answer.
    kind: one of KINDS.
    question: the numbers of the question; 'wrong_operand' may use them.

  Returns:
    The error; None if the solution offers none of this kind.
  """
  proposals = list(_PROPOSALS[kind](solution, links, question))
  right, answer = solution.values, len(solution.values) - 1
  for p in rng.permutation(len(proposals))[:MAX_PROPOSALS]:
    at, written, operators, dropped = proposals[p]
    values = _derive(solution, links, written, operators)
    if values is None or values[at[0].result] == right[at[0].result]:
      continue
    steps = tuple(e.step for e in at)
    planted = PlantedError(values, operators, dropped, steps)
    changed = planted.changed_steps(solution)
    if kind == 'two_errors':
      # The second step must be an error, and everything after it must be right.
      last = at[-1]
      carried = evaluate(solution, last, values, operators)
      ends_right = max(changed) <= last.step and carried != right[last.result]
      if ends_right and values[answer] == right[answer]:
        return planted
    elif values[answer] != right[answer]:
      if kind == 'skipped_step':
        return planted._replace(steps=(min(changed),))
      # A new operator may bind in another order than the old one: 2 * 3 * 4 is
      # calculated from the left, 2 + 3 * 4 is not.
      if not operators or consistent(parse(render(solution, planted))):
        return planted
  return None


def render(solution: Solution, planted: PlantedError) -> tuple[str, ...]:
  """Returns the steps with the error, without the dropped step."""
  steps = [list(step) for step in solution.steps]
  for n, (step, token) in enumerate(solution.places):
    if planted.values[n] != solution.values[n]:
      steps[step][token] = format_number(planted.values[n], solution.text(n))
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
  """Calculates all numbers again after some numbers and operators changed.

  Returns:
    The value of every number; None if one of them cannot be written.
  """
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
    now == right or _is_allowed(now, right, solution.text(n))
    for n, (now, right) in enumerate(zip(values, solution.values, strict=True))
  )
  return tuple(values) if writable else None


def _is_allowed(now: Fraction, right: Fraction, text: str) -> bool:
  """Says whether a number is positive and has no more decimals than allowed.

  A whole number must stay whole; others may have two decimals, or as many as
  they had.
  """
  whole = right.denominator == 1
  unit = 1 if whole else 10 ** max(2, len(text.partition('.')[2]))
  return now > 0 and (now * unit).denominator == 1


def _slips(solution: Solution, n: int) -> set[Fraction]:
  """Returns results of a slip: off by a round number or a known number."""
  right = solution.values[n]
  whole = right.denominator == 1
  unit = Fraction(
    1, 1 if whole else 10 ** len(solution.text(n).partition('.')[2])
  )
  near = {unit * s for s in _SLIPS} | set(solution.values)
  near = {d for d in near if d <= max(unit, right / 2)}
  return {right + d for d in near} | {right - d for d in near if d < right}


def _miscopies(text: str) -> set[Fraction]:
  """Returns miscopies of a number.

  One digit is off by 1, two neighbours are swapped, or a final 0 is lost or
  added.
  """
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
  return {parse_number(t) for t in found if t and t.strip('0.')}


def _wrong_results(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator[_Proposal]:
  for e in solution.equations:
    for value in sorted(_slips(solution, e.result)):
      yield _Proposal((e,), {e.result: value})


def _wrong_operands(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator[_Proposal]:
  known = list(question)
  for e in solution.equations:
    for n in e.operands:
      for value in sorted(set(known) - {solution.values[n]}):
        yield _Proposal((e,), {n: value})
    known.append(solution.values[e.result])


def _wrong_operators(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator[_Proposal]:
  for e in solution.equations:
    for operator in e.operators:
      if operator.place:
        for symbol in sorted(set('+-*/') - {operator.symbol}):
          yield _Proposal((e,), operators={operator.place: symbol})


def _copied_numbers(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator[_Proposal]:
  for e in solution.equations:
    for n in sorted(links.copied.intersection(e.operands)):
      for value in sorted(_miscopies(solution.text(n))):
        if value != solution.values[n]:
          yield _Proposal((e,), {n: value})


def _skipped_steps(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator[_Proposal]:
  per_step = [e.step for e in solution.equations]
  for e in solution.equations:
    if per_step.count(e.step) == 1:
      for n in sorted(links.copied.intersection(e.operands)):
        # Later steps take up what the step would have worked on.
        yield _Proposal((e,), {e.result: solution.values[n]}, dropped=e.step)


def _two_errors(
  solution: Solution, links: Links, question: Sequence[Fraction]
) -> Iterator[_Proposal]:
  for i, first in enumerate(solution.equations):
    for value in sorted(_slips(solution, first.result)):
      for last in solution.equations[i + 1 :]:
        if last.step > first.step:
          right = solution.values[last.result]
          written = {first.result: value, last.result: right}
          yield _Proposal((first, last), written)


_PROPOSALS = {
  'wrong_result': _wrong_results,
  'wrong_operand': _wrong_operands,
  'wrong_operator': _wrong_operators,
  'copied_number': _copied_numbers,
  'skipped_step': _skipped_steps,
  'two_errors': _two_errors,
}
