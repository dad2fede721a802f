"""Worked solutions as equations over numbers, in exact arithmetic.

Stands behind chains that are sentences (`words`, `worked_answers`): it finds
the equations in the text.

    parse       sentences -> Solution: numbers, and equations over them
    consistent  do all equations hold as written?

A number is known by its ordinal in the solution, so that two texts of one
template can be compared number by number whatever their words are.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

# Units stand between a number and the next operator ('19 skeins per pair of
# leg warmers + 4'); no template of `words` has more words than this.
MAX_UNIT_WORDS = 7

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


def numbers(text: str) -> list[Fraction]:
  """The numbers of a text as printed."""
  return [number_of(t) for t in _TOKEN.findall(text) if t[0].isdecimal()]


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
  values = tuple(number_of(tokens[s][t]) for s, t in places)
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


def number_text(value: Fraction, like: str) -> str:
  """A finite decimal in the style of another: commas, decimal places."""
  places = len(like.partition('.')[2])
  while (value * 10**places).denominator != 1:
    places += 1
  whole, part = divmod(int(value * 10**places), 10**places)
  text = f'{whole:,}' if ',' in like else str(whole)
  return f'{text}.{part:0{places}d}' if places else text


def number_of(token: str) -> Fraction:
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
