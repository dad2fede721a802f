"""Finds the equations in worked solutions and checks them exactly.

    sentences -> parse -> Solution (numbers, equations) -> corruptions, planting

Domains whose chains are sentences (`words`, `worked_answers`) read solutions
with it. A number is identified by its ordinal, its place in reading order, so
two texts of one template can be compared number by number whatever their words.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

# Units may stand between a number and the next operator, as in '19 skeins per
# pair of leg warmers + 4'. No template of `words` has longer ones.
MAX_UNIT_WORDS = 7

_TOKEN = re.compile(
  r'\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?'
  r"|/?[^\W\d_]+(?:[/'\u2019-][^\W\d_]+)*|\s+|."
)

# Written solutions stay far below these limits, and the time to parse a text
# grows faster than the square of its length.
MAX_TEXT = 3_000
MAX_STEP = 800
MAX_PARENTHESES = 100
_LONG_NUMBER = re.compile(r'[\d,.]{60}')

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
  """Holds an operator of an equation and its place in the text."""

  symbol: str  # one of + - * /
  place: tuple[int, int] | None  # step and token; None if implied, as in 4(23)


class StatedEquation(NamedTuple):
  """Holds an equation that a step states: an expression and its result."""

  step: int  # index of the step
  postfix: tuple[int | Operator, ...]  # ordinals of numbers, and operators
  result: int  # ordinal of the number after the equals sign

  @property
  def operands(self) -> tuple[int, ...]:
    """Ordinals of the numbers on the left side."""
    return tuple(item for item in self.postfix if isinstance(item, int))

  @property
  def operators(self) -> tuple[Operator, ...]:
    """Operators of the left side."""
    return tuple(item for item in self.postfix if isinstance(item, Operator))


class Solution(NamedTuple):
  """Holds the tokens of steps, with numbers and equations in reading order."""

  steps: tuple[tuple[str, ...], ...]  # tokens of each step
  places: tuple[tuple[int, int], ...]  # step and token of each number
  values: tuple[Fraction, ...]  # each number as printed: 35 for '35%'
  equations: tuple[StatedEquation, ...]

  def text(self, n: int) -> str:
    """Returns number `n` as it is written."""
    step, token = self.places[n]
    return self.steps[step][token]

  def scale(self, n: int) -> Fraction:
    """Returns the worth of one printed unit: 1/100 for a percentage, else 1."""
    step, token = self.places[n]
    percent = self.steps[step][token + 1 : token + 2] == ('%',)
    return Fraction(1, 100 if percent else 1)

  def signature(self) -> tuple:
    """Returns a value that texts with corresponding numbers share.

    It holds the steps of all numbers and the form of all equations.
    """
    return tuple(step for step, _ in self.places), tuple(
      (
        e.step,
        e.result,
        tuple(i if isinstance(i, int) else i.symbol for i in e.postfix),
      )
      for e in self.equations
    )


def numbers(text: str) -> list[Fraction]:
  """Returns the numbers of a text as printed."""
  return [parse_number(t) for t in _TOKEN.findall(text) if t[0].isdecimal()]


def can_be_parsed(steps: Sequence[str], others: Sequence[str] = ()) -> bool:
  """Says whether steps are short and flat enough to be parsed in time.

  Args:
    others: texts whose numbers are read, too.
  """
  text = ' '.join(steps)
  return (
    len(text) <= MAX_TEXT
    and max(map(len, steps)) <= MAX_STEP
    and text.count('(') <= MAX_PARENTHESES
    and not _LONG_NUMBER.search(' '.join([text, *others]))
  )


def parse(steps: tuple[str, ...]) -> Solution:
  """Finds the numbers and equations of a solution.

  An equation is an expression of two or more numbers, `=` or `equals`, and
  one number. Numbers may have a currency, units or a percent sign. Any other
  text is left alone.
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
        equations.append(StatedEquation(s, located, ordinals[s, result]))
  values = tuple(parse_number(tokens[s][t]) for s, t in places)
  return Solution(tokens, places, values, tuple(equations))


def evaluate(
  solution: Solution,
  equation: StatedEquation,
  values: tuple[Fraction, ...] | list[Fraction],
  operators: Mapping[tuple[int, int], str],
) -> Fraction:
  """Calculates the left side, in the printed unit of the right side.

  Args:
    values: the value of every number; it replaces `solution.values`.
    operators: symbols that replace the operators at these places.

  Raises:
    ZeroDivisionError: the left side divides by zero.
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
  """Says whether all equations hold exactly; rounded results do not."""
  try:
    return all(
      evaluate(solution, e, solution.values, {}) == solution.values[e.result]
      for e in solution.equations
    )
  except ZeroDivisionError:
    return False


def format_number(value: Fraction, like: str) -> str:
  """Writes a finite decimal with the commas and decimal places of `like`."""
  places = len(like.partition('.')[2])
  while (value * 10**places).denominator != 1:
    places += 1
  whole, part = divmod(int(value * 10**places), 10**places)
  text = f'{whole:,}' if ',' in like else str(whole)
  return f'{text}.{part:0{places}d}' if places else text


def parse_number(token: str) -> Fraction:
  """Reads a number that may have commas between thousands."""
  return Fraction(token.replace(',', ''))


def _skip(
  step: tuple[str, ...],
  at: int,
  kinds: Callable[[str], bool],
  limit: int = MAX_UNIT_WORDS,
) -> int:
  """Returns the token after spaces and up to `limit` tokens of these kinds."""
  while at < len(step) and (step[at].isspace() or (limit and kinds(step[at]))):
    limit -= not step[at].isspace()
    at += 1
  return at


def _is_unit(token: str) -> bool:
  return token[-1].isalpha() and token not in (*_OPERATORS, *_EQUALS)


def _result(step: tuple[str, ...], sign: int) -> int | None:
  """Returns the token of the number after an equals sign, if it is alone."""
  at = _skip(step, sign + 1, _CURRENCIES.__contains__, 1)
  if at == len(step) or not step[at][0].isdecimal():
    return None
  after = at + 1 + (step[at + 1 : at + 2] == ('%',))
  after = _skip(step, after, _is_unit)
  # The right side goes on in '= 137 + T = 222' and '= 1/2', but not in '= 3
  # times per year'.
  goes_on = after < len(step) and step[after] in _OPERATORS
  if goes_on and step[after].isalpha():
    goes_on = step[after + 2 : after + 3] and step[after + 2][0].isdecimal()
  return None if goes_on else at


def _left_side(step: tuple[str, ...], start: int, end: int) -> list | None:
  """Returns the longest expression that ends before token `end`, as postfix."""
  for at in range(start, end):
    if step[at][0].isdecimal() or step[at] == '(':
      parsed = _expression(step[:end], at, 1)
      if parsed and parsed[1] == end and len(parsed[0]) > 1:
        return parsed[0]
  return None


def _expression(
  step: tuple[str, ...], at: int, lowest: int
) -> tuple[list, int] | None:
  """Parses an expression by precedence climbing.

  Returns:
    The expression as postfix and the token after it; None if there is none.
  """
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
    implied = step[at] == '('  # as in 4(23)
    symbol = '*' if implied else _OPERATORS.get(step[at])
    if symbol is None or _PRECEDENCE[symbol] < lowest:
      break
    right = _expression(step, at + (not implied), _PRECEDENCE[symbol] + 1)
    if right is None:
      return None
    postfix = [*postfix, *right[0], (symbol, None if implied else at)]
    at = right[1]
  return postfix, at
