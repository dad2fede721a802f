"""The exact calculator: does the arithmetic that a step writes down hold?

Reads GSM8K's marks (`<<48/2=24>>`) and plain equations in text ("48 / 2 = $24 a
day"). Verdicts become step labels, so what has a second reading gets none: a
False is an equation that no reasonable reader would let pass.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from prm_jax.verify import expressions
from prm_jax.verify.expressions import Token, Unreadable

# Longer texts are no steps of reasoning; they are unreadable as a whole.
MAX_TEXT = 20_000
_MARK = re.compile(r'<<([^<>]*)>>')
_LIST_MARK = re.compile(
  r'^[^\S\n]{0,8}(?:[-*•]\s+|(?:(?:step|case|part|line)\s*)?\d+\s*[.):]\s+'
  r'|(?:step|case|part|line)\s*\d+\s*-\s+)',
  re.IGNORECASE | re.MULTILINE,
)


def _words(text: str) -> frozenset[str]:
  return frozenset(text.split())


# Words that change the value of what stands beside them.
_WORKING = _words(
  'plus minus times less more over by of divided multiplied half twice double '
  'triple thrice third thirds quarter quarters sum difference product square '
  'squared cube cubed root per mod modulo remainder than from one two three '
  'four five six seven eight nine ten eleven twelve twenty hundred thousand '
  'million billion trillion dozen dozens k to about approximately almost '
  'nearly roughly around sin cos tan log ln sqrt gcd lcm base arcsin arccos '
  'arctan exp abs floor ceil ceiling phi choose factorial'
)
# Anywhere beside an equation: 10/4 = 3 holds for who rounds.
_ROUNDING = _words(
  'round rounds rounded rounding floor ceil ceiling truncate truncated nearest'
)
_WHOLE = _words('whole full complete')
# What comes between two clauses is no unit of the number before it.
_CLAUSE = _words(
  'then so and if because since but while when which that is are was were be '
  'has have had makes leaves gives equals he she they it we you i now'
)
# Two units of one kind in an equation, and the numbers may rightly differ.
_KINDS = (
  'second seconds sec secs minute minutes min mins hour hours hr hrs day days '
  'week weeks month months year years decade decades century centuries am pm',
  'inch inches in foot feet ft yard yards yd mile miles mm cm km meter meters '
  'metre metres centimeter centimeters kilometer kilometers millimeters',
  '$ ¢ € £ cent cents dollar dollars penny pennies nickel nickels dime dimes '
  'quarter quarters buck bucks',
  'gram grams mg kg kilogram kilograms ounce ounces oz pound pounds lb lbs ton '
  'tons tonne tonnes ml liter liters litre litres cup cups pint pints quart '
  'quarts gallon gallons teaspoon teaspoons tablespoon tablespoons',
)
_VALUES = ('number', 'open', 'money')
_KIND = {unit: i for i, kind in enumerate(_KINDS) for unit in kind.split()}


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
  (1/5 * 100 = 20%).

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
  read, chained = [], marked
  for left, right, bound in pairs:
    relation = found[bound].text
    equation = None
    if relation in ('=', '==', '≈', '~='):
      equation = _equation(text, left, right, chained)
    if equation and equation.holds is False and relation in ('≈', '~='):
      equation = equation._replace(holds=None)
    # In a = b = c a bare b is checked: the equation before it named it whole.
    chained = marked or (equation is not None and _whole(right))
    if equation:
      read.append(equation)
  return read


def _equation(
  text: str, left: list[Token], right: list[Token], chained: bool
) -> Equation | None:
  """The equation at one sign; None where nothing is worked out."""
  first, first_sure, first_units = _last_expression(left)
  second, second_sure, second_units = _first_expression(right)
  works = any(
    t.kind in ('operator', 'power', 'percent') for t in [*first, *second]
  )
  if not first or not second or not (works or chained):
    return None
  written = _written(text, first), _written(text, second)
  try:
    a, first_doubtful = expressions.evaluate(first)
    b, second_doubtful = expressions.evaluate(second)
  except Unreadable:
    return Equation(*written, None)
  if not (first_sure and second_sure):
    return Equation(*written, None)
  holds = a == b or _rounds(a, second) or _rounds(b, first)
  if not holds and [t.kind for t in second] == ['number', 'percent']:
    holds = _rounds(a, second[:1]) or a == b * 100
  hundredfold = any(t.kind == 'percent' for t in first) and (
    a * 100 == b or _rounds(a * 100, second)
  )
  units = first_units | second_units
  kinds = [_KIND[unit] for unit in units if unit in _KIND]
  doubtful = (
    first_doubtful
    or second_doubtful
    # "14 hours = 14 * 60 minutes" and "3/3 - 2/3 = 1/3 of $150"
    or (len(first) == 1 and not chained)
    or any(t.text == 'of' for t in second)
    or hundredfold  # "9 / 21 * 100% = 42.857"
    or len(set(kinds)) < len(kinds)
    or bool(units & (_WORKING | _WHOLE))
    or any(t.text.lower() in _ROUNDING for t in [*left, *right])
  )
  return Equation(*written, holds or (None if doubtful else False))


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


def _whole(segment: list[Token]) -> bool:
  """Is a segment between two equality signs one expression and its units?"""
  kept, _ = _without_units(segment, ends=True)
  return bool(kept) and not any(t.kind in ('word', 'mark') for t in kept)


def _without_units(
  segment: list[Token], ends: bool
) -> tuple[list[Token], set[str]]:
  """Drops currency, and words between a value and what ends or continues it.

  Args:
    ends: the segment ends at an equality sign, so its last words are a unit.
  """
  kept, units, words = [], set(), []
  for token in segment:
    if token.kind == 'money':
      units.add(token.text)
      continue
    if token.kind == 'word':
      words.append(token)
      continue
    closes = token.kind in ('operator', 'close') and not (
      token.text == '-' and not ends
    )
    if words and closes and _is_unit(kept, words):
      units |= {t.text.strip('/- ').lower() for t in words}
      words = []
    kept += [*words, token]
    words = []
  if words and _is_unit(kept, words) and ends:
    units |= {t.text.strip('/- ').lower() for t in words}
    words = []
  return [*kept, *words], units


def _is_unit(kept: list[Token], words: list[Token]) -> bool:
  return (
    bool(kept)
    and kept[-1].kind in ('number', 'percent', 'close')
    and len(words) <= 4
    and words[0].text != 'of'
    and all(_is_word(t) and t.text.lower() not in _CLAUSE for t in words)
  )


def _is_word(token: Token) -> bool:
  """A word of the language; a letter alone may be a variable."""
  text = token.text
  if text.startswith('\\'):
    return False
  # 3ab is algebra, 3kg is not: written together, only known units are units.
  glued = not token.spaced and text[0].isalpha()
  if glued and text.lower() not in _KIND:
    return len(text) > 3
  return len(text) > 1 or text in ('a', 'A', 'I')


def _last_expression(
  segment: list[Token],
) -> tuple[list[Token], bool, set[str]]:
  """The expression that ends a segment, is it sure, the units in it."""
  kept, units = _without_units(segment, ends=True)
  start = len(kept)
  depth = 0
  while start and kept[start - 1].kind not in ('word', 'mark', 'bad'):
    depth += {'close': 1, 'open': -1}.get(kept[start - 1].kind, 0)
    if depth < 0:
      break
    start -= 1
  expression, before = kept[start:], kept[:start]
  if not expression:
    return [], False, units
  sure = not before or _is_border(before[-1])
  if before and expression[0].kind == 'open' and before[-1].kind == 'word':
    # "floor(7/2)": whatever stands directly before "(" may be a function.
    sure &= before[-1].start + len(before[-1].text) < expression[0].start
  # "3 and 4 + 5", "14, 400 / 80"
  if len(before) > 1 and before[-1].text.lower() in ('and', ','):
    sure &= before[-2].kind != 'number'
  lone = expression[0].text in ('-', '+') and expression[0].kind == 'operator'
  # "profit - 5 + 3 = 8" takes away from the profit.
  sure &= not (lone and before and before[-1].text not in '({[:,;\n')
  sure &= len(before) < 2 or before[-2].kind not in ('operator', 'power')
  return expression, sure, units


def _first_expression(
  segment: list[Token],
) -> tuple[list[Token], bool, set[str]]:
  """The expression that begins a segment, is it sure, the units in it."""
  kept, units = _without_units(segment, ends=_whole(segment))
  end = depth = 0
  while end < len(kept) and kept[end].kind not in ('word', 'mark', 'bad'):
    depth += {'open': 1, 'close': -1}.get(kept[end].kind, 0)
    if depth < 0:
      break
    end += 1
  expression, after = kept[:end], kept[end:]
  # "= 7 - which is less": a dash, not a minus.
  if expression and expression[-1].text == '-':
    expression = expression[:-1]
  for token in after[:4]:
    if token.kind != 'word':
      break
    units |= {token.text.strip('/- ').lower()}
  sure = not after or _is_border(after[0])
  if len(after) > 1:
    # "16.66..." and "5 and 2/3"
    sure &= after[0].text != '.' or after[1].text != '.'
    sure &= after[0].text.lower() != 'and' or after[1].kind not in _VALUES
  return expression, sure, units


def _is_border(token: Token) -> bool:
  """May an expression end beside this token?"""
  if token.kind == 'mark':
    return token.text in ',.;:?!"\'()[]—\n`*'
  if token.kind == 'word':
    return _is_word(token) and token.text.lower() not in _WORKING
  return token.kind in ('open', 'close')


def _written(text: str, side: list[Token]) -> str:
  return text[side[0].start : side[-1].start + len(side[-1].text)].strip()
