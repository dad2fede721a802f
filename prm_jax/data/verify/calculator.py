"""Checks the arithmetic of a step exactly.

Reads GSM8K's marks (`<<48/2=24>>`) and plain equations in prose ("48 / 2 = $24
a day"). `labels/verifier.py` turns the verdicts into step labels. An equation
that can be read in two ways therefore gets no verdict: False means that no
reasonable reader would accept it.
"""

import dataclasses
import re
from fractions import Fraction
from typing import NamedTuple

from prm_jax.data.verify import expressions, sides
from prm_jax.data.verify.expressions import Token, Unreadable
from prm_jax.data.verify.sides import KIND

# A longer text is no step of reasoning, and gives no equations.
MAX_TEXT = 20_000
_MARK = re.compile(r'<<([^<>]*)>>')
_LIST_MARK = re.compile(
  r'^[^\S\n]{0,8}(?:[-*•]\s+|(?:(?:step|case|part|line)\s*)?\d+\s*[.):]\s+'
  r'|(?:step|case|part|line|day|week|month|year|round|stage|question|problem|'
  r'option|method|example)\s*\d+\s*-\s+)',
  re.IGNORECASE | re.MULTILINE,
)


# Beside an equation these words may announce rounding: 10/4 = 3.
_ROUNDING = sides.word_set(
  'round rounds rounded rounding floor ceil ceiling truncate truncated nearest'
)
_FULL = sides.word_set('whole full complete')
# Beside an equation these may announce division with remainder: 13 / 4 = 3.
_REMAINDER = sides.word_set(
  'remain remains remainder remainders remaining quotient leftover left'
)
# Words after an equation that reject it, as in a proof by contradiction.
_RETRACTION = re.compile(
  r'\b(?:false|untrue|contradict\w*|impossible|incorrect\w*|wrong\w*|invalid|'
  r"mistaken?|(?:not|n't|never|cannot|no) (?:[a-z]+ ){0,2}(?:true|possible|"
  r'equals?|hold|work|satisf\w+|valid|correct|match))\b',
  re.IGNORECASE,
)
_OTHER_BASE = re.compile(
  r'\b(?:in|to) (?:base|binary|octal|hexadecimal)\b', re.IGNORECASE
)
_CLOCK = sides.word_set("am pm o'clock")
_SCALES = sides.word_set(
  'hundred thousand thousands k million millions billion'
)
# Conversion factors between units of one kind, in the order of sides.KIND.
_FACTORS = (
  {7, 12, 24, 52, 60, 365, 3600},
  {12, 36, 100, 1000, 1760, 5280},
  {100},
  {16, 1000, 2000},
  {1000, 1024},
)
_FLOAT_PLACES = 12  # so many decimals are the output of floating point
_EQUALS, _NEARLY = ('=', '=='), ('≈', '~=')


class CheckedEquation(NamedTuple):
  """Holds an equation of a step and its verdict.

  Attributes:
    left: the left side as written.
    right: the right side as written.
    holds: whether the sides are equal; None where that is uncertain.
  """

  left: str
  right: str
  holds: bool | None


def check_step(step: str) -> bool | None:
  """Checks all equations of a step.

  Returns:
    True if at least one equation has a verdict and all verdicts are True, False
    if one is False, None if there is no verdict.
  """
  verdicts = [equation.holds for equation in check_equations(step)]
  if False in verdicts:
    return False
  return True if True in verdicts else None


def check_equations(step: str) -> list[CheckedEquation]:
  """Finds and checks every equation of a step.

  A chain a = b = c gives a = b and b = c. Rounding is accepted as people write
  it: a side that is one decimal number equals the other side rounded (half up)
  to as many places. An infinite decimal may be rounded to one place or more
  (10/3 = 3.3), a finite one to two or more (1/8 = 0.13, as with cents, but not
  9/4 = 2.3), and none to a whole number (10/3 = 3 does not hold). A percent
  sign on the right may stand for the number before it (1/5 * 100 = 20%).

  An "≈" that does not hold gets no verdict, and neither does an equation that
  does not hold and is rejected later in the step ("which is false").

  Args:
    step: any text; more than MAX_TEXT characters give no equations.

  Returns:
    The equations in GSM8K's marks, then those of the text around them.
  """
  if len(step) > MAX_TEXT:
    return []
  marks = _MARK.findall(step)
  plain = _LIST_MARK.sub('', _MARK.sub('', step))
  inside = [e for mark in marks for e in _check_text(mark, marked=True)]
  return inside + _check_text(plain, marked=False)


def _check_text(text: str, marked: bool) -> list[CheckedEquation]:
  text = expressions.normalise(text)
  tokens = expressions.mark_operators(expressions.tokenize(text))
  relations = [i for i, t in enumerate(tokens) if t.kind == 'relation']
  segments = [
    tokens[a + 1 : b]
    for a, b in zip([-1, *relations], [*relations, len(tokens)], strict=True)
  ]
  pairs = zip(segments, segments[1:], relations, strict=False)
  retracted = max((m.start() for m in _RETRACTION.finditer(text)), default=-1)
  if _OTHER_BASE.search(text):
    retracted = len(text)
  checked, chained, exact = [], marked, None
  for left, right, relation in pairs:
    equation, sign = None, tokens[relation]
    if sign.text in _EQUALS + _NEARLY:
      equation, exact = _check_pair(text, left, right, chained, exact)
    uncertain = sign.text in _NEARLY or sign.start < retracted
    if equation and equation.holds is False and uncertain:
      equation = equation._replace(holds=None)
    # In a = b = c, b = c is checked even where b is a single number: the first
    # equation has shown that it is the whole expression.
    chained = marked or (
      equation is not None and sides.is_one_expression(right)
    )
    if not chained:
      exact = None
    if equation:
      checked.append(equation)
  return checked


def _check_pair(
  text: str,
  left: list[Token],
  right: list[Token],
  chained: bool,
  exact: Fraction | None,
) -> tuple[CheckedEquation | None, Fraction | None]:
  """Checks the equation at one equality sign.

  Args:
    text: the normalised text that the tokens come from.
    left: all tokens between the equality sign before and this one.
    right: all tokens between this equality sign and the next.
    chained: whether the left side is the right side of an equation before.
    exact: the unrounded value of the left side, where it was rounded.

  Returns:
    The equation, or None where there is nothing to calculate; and the unrounded
    value of the right side, or None where it is not rounded.
  """
  first, first_sure, first_units = sides.left_side(left)
  second, second_sure, second_units = sides.right_side(right)
  works = any(
    t.kind in ('operator', 'power', 'percent') for t in [*first, *second]
  )
  if not first or not second or not (works or chained):
    return None, None
  holds, exact = None, exact if chained else None
  try:
    a, first_ambiguous = expressions.evaluate(first)
    b, second_ambiguous = expressions.evaluate(second)
  except Unreadable:
    first_sure = False
  if first_sure and second_sure:
    holds, exact = _compare_sides(first, second, a, b, exact)
    carried = not holds and _may_carry_rounding(first, second, a, b)
    exact = a if carried else exact
    ambiguous = (
      carried
      or first_ambiguous
      or second_ambiguous
      or (_is_single_number(first) and not chained)
      or _has_other_reading(first, second, a, b)
      or _words_give_other_reading(
        [*left, *right], first_units | second_units, a, b
      )
    )
    holds = holds or (None if ambiguous else False)
    # "6 - 2 = 2 (2)": a product, or the equation's number after a result.
    if holds and _ends_in_label(second):
      result, _ = expressions.evaluate(second[:-3])
      holds, exact = _compare_sides(first, second[:-3], a, result, exact)
      holds = holds or None
  written = _source_text(text, first), _source_text(text, second)
  return CheckedEquation(*written, holds), exact


def _compare_sides(
  first: list[Token],
  second: list[Token],
  a: Fraction,
  b: Fraction,
  exact: Fraction | None,
) -> tuple[bool, Fraction | None]:
  """Compares the values a and b of two sides, rounding included.

  Returns:
    Whether they are equal, and the unrounded value of the right side or None.
  """
  # Floating point prints 0.5 - 0.4 = 0.09999999999999998.
  floats = any(
    len(_significant_decimals(t)) >= _FLOAT_PLACES for t in [*first, *second]
  )
  if a == b or (floats and abs(a - b) <= abs(a) / 10**_FLOAT_PLACES):
    return True, exact
  for value in (a, a if exact is None else exact):
    if value == b or _is_rounding_of(value, second):
      return True, value
  percent = [t.kind for t in second] == ['number', 'percent']
  alike = percent and (_is_rounding_of(a, second[:1]) or a == b * 100)
  return alike or _is_rounding_of(b, first), None


def _ends_in_label(side: list[Token]) -> bool:
  """Returns whether a side may end in an equation's number: "14 (2)"."""
  if len(side) < 4:
    return False
  result, before, number, after = side[-4:]
  return (
    [before.kind, number.kind, after.kind] == ['open', 'number', 'close']
    and result.kind in ('number', 'close')
    and before.start > result.end
    and number.text.isdigit()
  )


def _is_single_number(side: list[Token]) -> bool:
  """Returns whether a side is one number: "14 hours = 14 * 60 minutes"."""
  return sum(t.kind not in ('open', 'close') for t in side) == 1


def _has_other_reading(
  first: list[Token], second: list[Token], a: Fraction, b: Fraction
) -> bool:
  """Returns whether the notation of two sides allows another reading."""
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
    a * 100 == b or _is_rounding_of(a * 100, second)
  )
  # "12 + 8 = 20 / 4 = 5" continues after a right result. "9 + 2 + 1 = 12 + 1"
  # repeats its last term, which is an error.
  writes_on = (
    len(second) > 1
    and second[0].kind == 'number'
    and second[1].kind == 'operator'
    and a == expressions.literal(second[0])
    and [t.text for t in second[1:]] != [t.text for t in first[-2:]]
  )
  # "3 * 10 = 2(3) + 5(10)" defines an operation *.
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


def _words_give_other_reading(
  beside: list[Token], units: set[str], a: Fraction, b: Fraction
) -> bool:
  """Returns whether the words beside two sides allow another reading."""
  words = {t.text.lower() for t in beside}
  kinds = [KIND[unit] for unit in units if unit in KIND]
  ratio = max(abs(a / b), abs(b / a)) if a and b else 0
  return (
    len(set(kinds)) < len(kinds)
    or bool(units & (sides.WORKING | _FULL))
    or bool(words & _ROUNDING)
    or any(ratio in _FACTORS[kind] for kind in kinds)
    or (bool(words & _SCALES) and ratio in (100, 1000, 10**6, 10**9))
    or ('difference' in words and a == -b)
    or (bool(words & _CLOCK) and (a - b) % 12 == 0)
    or (bool(words & _REMAINDER) and a.__floor__() == b)
  )


def _may_carry_rounding(
  first: list[Token], second: list[Token], a: Fraction, b: Fraction
) -> bool:
  """Returns whether rounded decimals in two sides explain their difference.

  333.33 * 3 = 1000 holds if 333.33 is 1000/3 rounded; the result must then have
  fewer decimals. 5 / 1.05^2 = 5 / 1.1 rounds an intermediate result. Decimals
  with two places or more count as possibly rounded.
  """
  result = _is_single_number(second)
  side, exact = (first, a) if result else (second, b)
  rounded = [i for i, t in enumerate(side) if len(_significant_decimals(t)) > 1]
  places = max(
    (len(_significant_decimals(side[i])) for i in rounded), default=0
  )
  shown = max(len(_significant_decimals(t)) for t in second)
  if len(rounded) > 8 or (result and shown >= places):
    return False
  allowed = Fraction(0)
  for i in rounded:
    # A 5 appended to the decimals adds half a unit of their last place.
    moved = dataclasses.replace(side[i], text=side[i].text + '5')
    try:
      value, _ = expressions.evaluate([*side[:i], moved, *side[i + 1 :]])
    except Unreadable:
      return False
    allowed += abs(value - exact)
  return abs(a - b) <= allowed


def _significant_decimals(token: Token) -> str:
  """Returns a number's decimals without final zeros; '' for other tokens."""
  return token.text.partition('.')[2].rstrip('0')


def _is_rounding_of(exact: Fraction, side: list[Token]) -> bool:
  """Returns whether a side is one decimal number, and `exact` rounded to it."""
  kinds = [t.kind for t in side]
  if kinds and kinds[0] == 'operator' and side[0].text == '-':
    return exact < 0 and _is_rounding_of(-exact, side[1:])
  if kinds not in (['number'], ['number', 'percent']):
    return False
  decimals = len(side[0].text.partition('.')[2])
  places = decimals + 2 * (len(kinds) - 1)  # 67% has the places of 0.67
  if not places:
    return False
  shift = exact * 10**places
  rest = shift.denominator
  for prime in (2, 5):
    while rest % prime == 0:
      rest //= prime
  if rest == 1 and places < 2:  # a finite decimal
    return False
  rounded = (shift + Fraction(1, 2)).__floor__()
  return rounded == expressions.literal(side[0]) * 10**decimals


def _source_text(text: str, side: list[Token]) -> str:
  return text[side[0].start : side[-1].start + len(side[-1].text)].strip()
