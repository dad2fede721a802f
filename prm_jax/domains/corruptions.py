"""Worked solutions as graphs of equations, and errors planted in them.

Stands behind a domain whose chains are sentences (`words`): it finds the
equations in the text, knows which number is whose result, and rewrites every
number that follows from an error, in exact arithmetic.

    parse       sentences -> Solution: numbers, and equations over them
    consistent  do all equations hold as written?
    plant       Solution, Links, kind -> Planted: what is written instead
    render      Solution, Planted -> sentences

A number is known by its ordinal in the solution, so that two texts of one
template can be compared number by number whatever their words are.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

KINDS = (
  'wrong_result',
  'wrong_operand',
  'wrong_operator',
  'copied_number',
  'skipped_step',
  'two_errors',
)

# Units stand between a number and the next operator ('19 skeins per pair of
# leg warmers + 4'); no template has more words than this.
MAX_UNIT_WORDS = 7
# Proposals looked at before a kind is given up on one solution.
MAX_PROPOSALS = 80

_TOKEN = re.compile(
  r'\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?'
  r"|/?[^\W\d_]+(?:[/'\u2019-][^\W\d_]+)*|\s+|."
)
_OPERATORS = {
  **dict.fromkeys(('+', 'plus'), '+'),
  **dict.fromkeys(('-', '\u2212', 'minus'), '-'),
  **dict.fromkeys(('*', 'x', '\xd7', 'times'), '*'),
  **dict.fromkeys(('/', '\xf7'), '/'),
}
_EQUALS = ('=', 'equals')
_CURRENCIES = '$\u20ac\xa3'
_PRECEDENCE = {'+': 1, '-': 1, '*': 2, '/': 2}
_SLIPS = (1, 2, 5, 10, 20, 50, 100, 1000)


class Operator(NamedTuple):
  symbol: str  # + - * /
  place: tuple[int, int] | None  # step and token; None where it is implied


class Equation(NamedTuple):
  step: int
  postfix: tuple[int | Operator, ...]  # ordinals of numbers, and operators
  result: int  # ordinal

  @property
  def operands(self) -> tuple[int, ...]:
    return tuple(item for item in self.postfix if isinstance(item, int))

  @property
  def operators(self) -> tuple[Operator, ...]:
    return tuple(item for item in self.postfix if isinstance(item, Operator))


class Solution(NamedTuple):
  """Steps as tokens, with their numbers and equations in reading order."""

  steps: tuple[tuple[str, ...], ...]
  places: tuple[tuple[int, int], ...]  # of number n: step and token
  values: tuple[Fraction, ...]  # as printed: 35 for '35%'
  equations: tuple[Equation, ...]

  def text(self, n: int) -> str:
    step, token = self.places[n]
    return self.steps[step][token]

  def scale(self, n: int) -> Fraction:
    """What one printed unit of number n is worth: 1/100 for a percentage."""
    step, token = self.places[n]
    percent = self.steps[step][token + 1 : token + 2] == ('%',)
    return Fraction(1, 100 if percent else 1)

  def signature(self) -> tuple:
    """Equal for two texts whose numbers and equations correspond."""
    return tuple(step for step, _ in self.places), tuple(
      (
        e.step,
        e.result,
        tuple(i if isinstance(i, int) else i.symbol for i in e.postfix),
      )
      for e in self.equations
    )


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


def numbers(text: str) -> list[Fraction]:
  """The numbers of a text as printed."""
  return [_value(t) for t in _TOKEN.findall(text) if t[0].isdecimal()]


def parse(steps: tuple[str, ...]) -> Solution:
  """Finds numbers and equations; text that is no equation is left alone.

  An equation is an expression of two or more numbers, `=` or `equals`, and
  one number. Numbers may carry a currency, units or a percent sign.
  """
  tokens = tuple(tuple(_TOKEN.findall(step)) for step in steps)
  places = tuple(
    (s, t)
    for s, step in enumerate(tokens)
    for t, token in enumerate(step)
    if token[0].isdecimal()
  )
  ordinals = {place: n for n, place in enumerate(places)}
  equations = []
  for s, step in enumerate(tokens):
    start = 0
    for sign in (t for t, token in enumerate(step) if token in _EQUALS):
      result = _result(step, sign)
      postfix = _left_side(step, start, sign)
      start = sign + 1
      if result is not None and postfix is not None:
        located = tuple(
          ordinals[s, item]
          if isinstance(item, int)
          else Operator(item[0], None if item[1] is None else (s, item[1]))
          for item in postfix
        )
        equations.append(Equation(s, located, ordinals[s, result]))
  values = tuple(_value(tokens[s][t]) for s, t in places)
  return Solution(tokens, places, values, tuple(equations))


def evaluate(
  solution: Solution,
  equation: Equation,
  values: tuple[Fraction, ...] | list[Fraction],
  operators: Mapping[tuple[int, int], str],
) -> Fraction:
  """The left side, in the printed unit of the right side.

  Raises:
    ZeroDivisionError: it divides by zero.
  """
  stack = []
  for item in equation.postfix:
    if isinstance(item, int):
      stack.append(values[item] * solution.scale(item))
      continue
    right, left = stack.pop(), stack.pop()
    match operators.get(item.place, item.symbol):
      case '+':
        stack.append(left + right)
      case '-':
        stack.append(left - right)
      case '*':
        stack.append(left * right)
      case '/':
        stack.append(left / right)
  return stack.pop() / solution.scale(equation.result)


def consistent(solution: Solution) -> bool:
  """Do all equations hold exactly as written? Rounded ones do not."""
  try:
    return all(
      evaluate(solution, e, solution.values, {}) == solution.values[e.result]
      for e in solution.equations
    )
  except ZeroDivisionError:
    return False


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


def number_text(value: Fraction, like: str) -> str:
  """A finite decimal in the style of another: commas, decimal places."""
  places = len(like.partition('.')[2])
  while (value * 10**places).denominator != 1:
    places += 1
  whole, part = divmod(int(value * 10**places), 10**places)
  text = f'{whole:,}' if ',' in like else str(whole)
  return f'{text}.{part:0{places}d}' if places else text


def _value(token: str) -> Fraction:
  return Fraction(token.replace(',', ''))


def _skip(
  step: tuple[str, ...],
  at: int,
  kinds: Callable[[str], bool],
  limit: int = MAX_UNIT_WORDS,
) -> int:
  """Past spaces and at most `limit` tokens that `kinds` accepts."""
  while at < len(step) and (step[at].isspace() or (limit and kinds(step[at]))):
    limit -= not step[at].isspace()
    at += 1
  return at


def _is_unit(token: str) -> bool:
  return token[-1].isalpha() and token not in (*_OPERATORS, *_EQUALS)


def _result(step: tuple[str, ...], sign: int) -> int | None:
  """Token of the number right of an equals sign, if it stands alone there."""
  at = _skip(step, sign + 1, _CURRENCIES.__contains__, 1)
  if at == len(step) or not step[at][0].isdecimal():
    return None
  after = at + 1 + (step[at + 1 : at + 2] == ('%',))
  after = _skip(step, after, _is_unit)
  # '= 137 + T = 222' and '= 1/2' go on, '= 3 times per year' does not.
  goes_on = after < len(step) and step[after] in _OPERATORS
  if goes_on and step[after].isalpha():
    goes_on = step[after + 2 : after + 3] and step[after + 2][0].isdecimal()
  return None if goes_on else at


def _left_side(step: tuple[str, ...], start: int, end: int) -> list | None:
  """The longest expression that ends right before token `end`, as postfix."""
  for at in range(start, end):
    if step[at][0].isdecimal() or step[at] == '(':
      parsed = _expression(step[:end], at, 1)
      if parsed and parsed[1] == end and len(parsed[0]) > 1:
        return parsed[0]
  return None


def _expression(
  step: tuple[str, ...], at: int, lowest: int
) -> tuple[list, int] | None:
  """Precedence climbing: (postfix, next token), None where nothing parses."""
  at = _skip(step, at, _CURRENCIES.__contains__, 1)
  if at == len(step):
    return None
  if step[at] == '(':
    inner = _expression(step, at + 1, 1)
    if inner is None or step[inner[1] : inner[1] + 1] != (')',):
      return None
    postfix, at = inner[0], inner[1] + 1
  elif step[at][0].isdecimal():
    postfix, at = [at], at + 1
    at += step[at : at + 1] == ('%',)
  else:
    return None
  at = _skip(step, at, _is_unit)
  while at < len(step):
    implied = step[at] == '('  # '4(23)'
    symbol = '*' if implied else _OPERATORS.get(step[at])
    if symbol is None or _PRECEDENCE[symbol] < lowest:
      break
    right = _expression(step, at + (not implied), _PRECEDENCE[symbol] + 1)
    if right is None:
      return None
    postfix = [*postfix, *right[0], (symbol, None if implied else at)]
    at = right[1]
  return postfix, at


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
  return {_value(t) for t in found if t and t.strip('0.')}


# Each proposes (numbers written, operators written, step dropped, equations in
# which an error is planted); `plant` calculates and judges.


def _wrong_results(solution, links, question) -> Iterator:
  for e in solution.equations:
    for value in sorted(_slips(solution, e.result)):
      yield {e.result: value}, {}, None, (e,)


def _wrong_operands(solution, links, question) -> Iterator:
  known = list(question)
  for e in solution.equations:
    for n in e.operands:
      for value in sorted(set(known) - {solution.values[n]}):
        yield {n: value}, {}, None, (e,)
    known.append(solution.values[e.result])


def _wrong_operators(solution, links, question) -> Iterator:
  for e in solution.equations:
    for operator in e.operators:
      if operator.place:
        for symbol in sorted(set('+-*/') - {operator.symbol}):
          yield {}, {operator.place: symbol}, None, (e,)


def _copied_numbers(solution, links, question) -> Iterator:
  for e in solution.equations:
    for n in sorted(links.copied.intersection(e.operands)):
      for value in sorted(_miscopies(solution.text(n))):
        if value != solution.values[n]:
          yield {n: value}, {}, None, (e,)


def _skipped_steps(solution, links, question) -> Iterator:
  per_step = [e.step for e in solution.equations]
  for e in solution.equations:
    if per_step.count(e.step) == 1:
      for n in sorted(links.copied.intersection(e.operands)):
        # Later steps take up what the step would have worked on.
        yield {e.result: solution.values[n]}, {}, e.step, (e,)


def _two_errors(solution, links, question) -> Iterator:
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
