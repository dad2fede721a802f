"""The exact calculator: does the arithmetic that a step writes down hold?

Reads GSM8K's marks (`<<48/2=24>>`) and plain equations in text ("48 / 2 = $24 a
day"). Verdicts become step labels, so what has a second reading gets none: a
False is an equation that no reasonable reader would let pass.
"""

import dataclasses
import re
from fractions import Fraction
from typing import NamedTuple

from prm_jax.data.verify import expressions, sides
from prm_jax.data.verify.expressions import Token, Unreadable
from prm_jax.data.verify.sides import KIND

# Longer texts are no steps of reasoning; they are unreadable as a whole.
MAX_TEXT = 20_000
_MARK = re.compile(r'<<([^<>]*)>>')
_LIST_MARK = re.compile(
  r'^[^\S\n]{0,8}(?:[-*•]\s+|(?:(?:step|case|part|line)\s*)?\d+\s*[.):]\s+'
  r'|(?:step|case|part|line)\s*\d+\s*-\s+)',
  re.IGNORECASE | re.MULTILINE,
)


# Anywhere beside an equation: 10/4 = 3 holds for who rounds.
_ROUNDING = sides.words(
  'round rounds rounded rounding floor ceil ceiling truncate truncated nearest'
)
_FULL = sides.words('whole full complete')
# 13 / 4 = 3 holds for who divides with a remainder.
_REMAINDER = sides.words(
  'remain remains remainder remainders remaining quotient leftover left'
)
# Behind an equation: it is tried, or taken back.
_RETRACTION = re.compile(
  r'\b(?:false|untrue|contradict\w*|impossible|incorrect\w*|wrong\w*|invalid|'
  r"mistaken?|(?:not|n't|never|cannot|no) (?:[a-z]+ ){0,2}(?:true|possible|"
  r'equals?|hold|work|satisf\w+|valid|correct|match))\b',
  re.IGNORECASE,
)
_OTHER_BASE = re.compile(
  r'\b(?:in|to) (?:base|binary|octal|hexadecimal)\b', re.IGNORECASE
)
_CLOCK = sides.words("am pm o'clock")
_SCALES = sides.words('hundred thousand thousands k million millions billion')
# What two units of one kind may differ by, in the order of the kinds.
_FACTORS = (
  {7, 12, 24, 52, 60, 365, 3600},
  {12, 36, 100, 1000, 1760, 5280},
  {100},
  {16, 1000, 2000},
  {1000, 1024},
)
_FLOAT_PLACES = 12  # more decimals come from floating point
_EQUALS, _NEARLY = ('=', '=='), ('≈', '~=')


class Equation(NamedTuple):
  """Two sides as written, and whether they are equal (None: unreadable)."""

  left: str
  right: str
  holds: bool | None


def check_step(step: str) -> bool | None:
  """True: every equation holds; False: one does not; None: none to check."""
  verdicts = [equation.holds for equation in equations(step)]
  if False in verdicts:
    return False
  return True if True in verdicts else None


def equations(step: str) -> list[Equation]:
  """Every equation of a step: those in marks first, then those in the text.

  A chain a = b = c gives a = b and b = c. Rounding is accepted as people write
  it: a side that is one decimal number equals the other side rounded (half up)
  to as many places. One place suffices for an endless decimal (10/3 = 3.3), two
  are needed for one that ends (1/8 = 0.13, as cents, but not 9/4 = 2.3); whole
  numbers are exact (10/3 = 3 does not hold). An "≈" that does not hold gets no
  verdict. A percent sign on the right may stand for the number before it
  (1/5 * 100 = 20%). What a step takes back ("which is false") gets no verdict
  either.

  Args:
    step: any text; more than MAX_TEXT characters give no equations.
  """
  if len(step) > MAX_TEXT:
    return []
  marks = _MARK.findall(step)
  plain = _LIST_MARK.sub('', _MARK.sub('', step))
  inside = [e for mark in marks for e in _equations(mark, marked=True)]
  return inside + _equations(plain, marked=False)


def _equations(text: str, marked: bool) -> list[Equation]:
  text = expressions.normalise(text)
  found = expressions.operators(expressions.tokens(text))
  bounds = [i for i, t in enumerate(found) if t.kind == 'relation']
  segments = [
    found[a + 1 : b]
    for a, b in zip([-1, *bounds], [*bounds, len(found)], strict=True)
  ]
  pairs = zip(segments, segments[1:], bounds, strict=False)
  retracted = max((m.start() for m in _RETRACTION.finditer(text)), default=-1)
  if _OTHER_BASE.search(text):
    retracted = len(text)
  read, chained, exact = [], marked, None
  for left, right, bound in pairs:
    equation = None
    if found[bound].text in _EQUALS + _NEARLY:
      equation, exact = _equation(text, left, right, chained, exact)
    nearly = found[bound].text in _NEARLY or found[bound].start < retracted
    if equation and equation.holds is False and nearly:
      equation = equation._replace(holds=None)
    # In a = b = c a bare b is checked: the equation before it named it whole.
    chained = marked or (equation is not None and sides.whole(right))
    if not chained:
      exact = None
    if equation:
      read.append(equation)
  return read


def _equation(
  text: str,
  left: list[Token],
  right: list[Token],
  chained: bool,
  exact: Fraction | None,
) -> tuple[Equation | None, Fraction | None]:
  """The equation at one sign, and what its right side is exactly.

  Args:
    chained: the left side is the right one of the equation before.
    exact: what the left side stands for, where it was rounded.

  Returns:
    None for the equation where nothing is worked out; None for the value where
    the right side is not rounded.
  """
  first, first_sure, first_units = sides.last(left)
  second, second_sure, second_units = sides.first(right)
  works = any(
    t.kind in ('operator', 'power', 'percent') for t in [*first, *second]
  )
  if not first or not second or not (works or chained):
    return None, None
  holds, exact = None, exact if chained else None
  try:
    a, first_doubtful = expressions.evaluate(first)
    b, second_doubtful = expressions.evaluate(second)
  except Unreadable:
    first_sure = False
  if first_sure and second_sure:
    holds, exact = _holds(first, second, a, b, exact)
    carried = not holds and _carries_rounding(first, second, a, b)
    exact = a if carried else exact
    doubtful = (
      carried
      or first_doubtful
      or second_doubtful
      or (_is_lone(first) and not chained)
      or _is_read_otherwise(first, second, a, b)
      or _is_put_otherwise([*left, *right], first_units | second_units, a, b)
    )
    holds = holds or (None if doubtful else False)
  return Equation(_written(text, first), _written(text, second), holds), exact


def _holds(
  first: list[Token],
  second: list[Token],
  a: Fraction,
  b: Fraction,
  exact: Fraction | None,
) -> tuple[bool, Fraction | None]:
  """Are two sides equal or rounded, and what is the right one exactly?"""
  # 0.5 - 0.4 = 0.09999999999999998, as computers add
  floats = any(len(_decimals(t)) >= _FLOAT_PLACES for t in [*first, *second])
  if a == b or (floats and abs(a - b) <= abs(a) / 10**_FLOAT_PLACES):
    return True, exact
  for value in (a, a if exact is None else exact):
    if value == b or _rounds(value, second):
      return True, value
  percent = [t.kind for t in second] == ['number', 'percent']
  alike = percent and (_rounds(a, second[:1]) or a == b * 100)
  return alike or _rounds(b, first), None


def _is_lone(side: list[Token]) -> bool:
  """One number: "14 hours = 14 * 60 minutes", "(3) = 2 + 2"."""
  return sum(t.kind not in ('open', 'close') for t in side) == 1


def _is_read_otherwise(
  first: list[Token], second: list[Token], a: Fraction, b: Fraction
) -> bool:
  """Can two sides, by how they are written, be meant otherwise?"""
  kinds = [t.kind for t in first]
  binary = kinds == ['number', 'operator', 'number']
  glued = binary and first[0].end == first[1].start
  # "weeks 1-2 = 96 - 70", "3/4 = 12 apples, so 1/4 = 4 apples"
  spans = glued and first[1].text == '-' and a < 0
  shares = (
    glued
    and first[1].text == '/'
    and len(first[2].text) < 3
    and a <= 1 <= b
    and b.denominator == 1
  )
  hundredfold = 'percent' in kinds and (
    a * 100 == b or _rounds(a * 100, second)
  )
  # "12 + 8 = 20 / 4 = 5" writes on behind its result; "9 + 2 + 1 = 12 + 1" is
  # an error.
  writes_on = (
    len(second) > 1
    and second[0].kind == 'number'
    and second[1].kind == 'operator'
    and a == expressions.literal(second[0])
    and [t.text for t in second[1:]] != [t.text for t in first[-2:]]
  )
  # "3 * 10 = 2(3) + 5(10)" says what * shall mean.
  defines = (
    binary
    and first[1].text == '*'
    and len(second) > 3
    and {first[0].text, first[2].text} <= {t.text for t in second}
  )
  return (
    spans
    or shares
    or any(t.text == 'of' for t in second)  # "3/3 - 2/3 = 1/3 of $150"
    or hundredfold  # "9 / 21 * 100% = 42.857"
    or writes_on
    or defines
  )


def _is_put_otherwise(
  beside: list[Token], units: set[str], a: Fraction, b: Fraction
) -> bool:
  """Can two sides, by the words beside them, be meant otherwise?"""
  found = {t.text.lower() for t in beside}
  kinds = [KIND[unit] for unit in units if unit in KIND]
  ratio = max(abs(a / b), abs(b / a)) if a and b else 0
  return (
    len(set(kinds)) < len(kinds)
    or bool(units & (sides.WORKING | _FULL))
    or bool(found & _ROUNDING)
    or any(ratio in _FACTORS[kind] for kind in kinds)
    or (bool(found & _SCALES) and ratio in (100, 1000, 10**6, 10**9))
    or ('difference' in found and a == -b)
    or (bool(found & _CLOCK) and (a - b) % 12 == 0)
    or (bool(found & _REMAINDER) and a.__floor__() == b)
  )


def _carries_rounding(
  first: list[Token], second: list[Token], a: Fraction, b: Fraction
) -> bool:
  """Do two sides differ by no more than rounded decimals in them allow?

  333.33 * 3 = 1000 holds for who divided before: a result on the right has
  fewer places. 5 / 1.05^2 = 5 / 1.1 rounds on the way. Decimals of two places
  or more may be rounded.
  """
  result = _is_lone(second)
  side, exact = (first, a) if result else (second, b)
  rounded = [i for i, t in enumerate(side) if len(_decimals(t)) > 1]
  places = max((len(_decimals(side[i])) for i in rounded), default=0)
  shown = max(len(_decimals(t)) for t in second)
  if len(rounded) > 8 or (result and shown >= places):
    return False
  allowed = Fraction(0)
  for i in rounded:
    # One more 5 is half of the last place more.
    moved = dataclasses.replace(side[i], text=side[i].text + '5')
    try:
      value, _ = expressions.evaluate([*side[:i], moved, *side[i + 1 :]])
    except Unreadable:
      return False
    allowed += abs(value - exact)
  return abs(a - b) <= allowed


def _decimals(token: Token) -> str:
  """The decimals of a number, without zeros at the end; '' of other tokens."""
  return token.text.partition('.')[2].rstrip('0')


def _rounds(exact: Fraction, side: list[Token]) -> bool:
  """Is a side that is one decimal number the exact value, rounded to it?"""
  kinds = [t.kind for t in side]
  if kinds and kinds[0] == 'operator' and side[0].text == '-':
    return exact < 0 and _rounds(-exact, side[1:])
  if kinds == ['number', 'percent']:
    exact *= 100
  elif kinds != ['number']:
    return False
  places = len(side[0].text.partition('.')[2])
  if not places:
    return False
  shift = exact * 10**places
  rest = shift.denominator
  for prime in (2, 5):
    while rest % prime == 0:
      rest //= prime
  if rest == 1 and places < 2:  # the decimal ends
    return False
  rounded = (shift + Fraction(1, 2)).__floor__()
  return rounded == expressions.literal(side[0]) * 10**places


def _written(text: str, side: list[Token]) -> str:
  return text[side[0].start : side[-1].start + len(side[-1].text)].strip()
