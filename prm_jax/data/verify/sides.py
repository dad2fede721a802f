"""Cuts the two expressions at an equality sign out of the prose around them.

`calculator.py` passes the tokens on either side of the sign. It gets back the
expression next to the sign, the units in it, and whether the expression surely
ends where it was cut: "f'(3) = 4" says nothing about (3).
"""

from typing import NamedTuple

from prm_jax.data.verify.expressions import Token


def word_set(text: str) -> frozenset[str]:
  """Returns the words of a text."""
  return frozenset(text.split())


# Words that change the value of what stands beside them.
WORKING = word_set(
  'plus minus times less more over by of divided multiplied half twice double '
  'triple thrice third thirds quarter quarters sum difference product square '
  'squared cube cubed root per mod modulo remainder than from one two three '
  'four five six seven eight nine ten eleven twelve twenty hundred thousand '
  'million billion trillion dozen dozens k to about approximately almost '
  'nearly roughly around sin cos tan log ln sqrt gcd lcm base arcsin arccos '
  'arctan exp abs floor ceil ceiling phi choose factorial'
)
# After these words an equation is not claimed: "Suppose 3 + 4 = 8".
_SUPPOSING = word_set('if suppose assume whether')
# These words begin a new clause, and are no unit of the number before them.
_CLAUSE = word_set(
  'then so and or if because since but while when where which that is are was '
  'were be has have had makes leaves gives equals becomes he she they it we '
  'you i now'
)
# Units, one string for each kind: time, length, money, weight and volume, data.
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
  'byte bytes kb mb gb tb',
)
KIND = {unit: i for i, kind in enumerate(_KINDS) for unit in kind.split()}
_VALUES = ('number', 'open', 'money')


class Side(NamedTuple):
  """Holds one side of an equality sign.

  Attributes:
    tokens: the expression, without units and currency signs.
    sure: False where the words or signs beside the expression may belong to it.
    units: the units in and after the expression, in lower case.
  """

  tokens: list[Token]
  sure: bool
  units: set[str]


def is_one_expression(segment: list[Token]) -> bool:
  """Returns whether a segment is one expression with its units, no prose."""
  kept, _ = _without_units(segment, ends=True)
  return bool(kept) and not any(t.kind in ('word', 'mark') for t in kept)


def left_side(segment: list[Token]) -> Side:
  """Returns the expression at the end of the segment left of a sign."""
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
    return Side([], False, units)
  return Side(expression, _may_begin(before, expression[0], units), units)


def right_side(segment: list[Token]) -> Side:
  """Returns the expression at the start of the segment right of a sign."""
  kept, units = _without_units(segment, ends=is_one_expression(segment))
  end = depth = 0
  while end < len(kept) and kept[end].kind not in ('word', 'mark', 'bad'):
    depth += {'open': 1, 'close': -1}.get(kept[end].kind, 0)
    if depth < 0:
      break
    end += 1
  expression, after = kept[:end], kept[end:]
  # The "-" of "= 7 - which is less" is a dash, not a minus sign.
  if expression and expression[-1].text == '-':
    expression = expression[:-1]
  for token in after[:4]:
    if token.kind != 'word':
      break
    units |= {_unit(token)}
  return Side(expression, _may_end(after), units)


def _may_begin(before: list[Token], begin: Token, units: set[str]) -> bool:
  """Returns whether an expression may begin at a token, after `before`."""
  if not before:
    return True
  near, *farther = before[-1], *before[-2:-1]
  sure = _is_border(near) and near.text.lower() not in _SUPPOSING
  sure &= not (near.text in ('min', 'max') and begin.kind == 'open')
  if near.end == begin.start:
    # A word directly before "(" may be a function: "floor(7/2)".
    sure &= not (near.kind == 'word' and begin.kind == 'open')
    # These marks belong to the expression: f'(3), 7!(8), \sqrt[3]{8}, 0.(3).
    joined = farther and farther[0].end == near.start
    sure &= not (joined and near.text in ("'", '"', '!', ']'))
    sure &= not (joined and near.text == '.' and begin.kind == 'open')
  # The items of a list: "3 and 4 + 5", "14, 400 / 80", "(1-2), (5-2)".
  if farther and near.text.lower() in ('and', ','):
    sure &= farther[0].kind != 'number'
    listed = near.text == ',' and farther[0].kind == 'close'
    sure &= not (listed and begin.kind == 'open')
  if begin.kind == 'operator' and begin.text in '-+':
    # In "profit - 5 + 3 = 8" the sign subtracts from the profit. A line that
    # begins with a sign may continue the line before it.
    sure &= near.text in '({[:,;\n'
    values = ('number', 'percent', 'close')
    sure &= not (near.text == '\n' and farther and farther[0].kind in values)
  sure &= not (farther and farther[0].kind in ('operator', 'power'))
  return sure and not _is_compound(before[::-1], units)


def _may_end(after: list[Token]) -> bool:
  """Returns whether an expression may end before these tokens."""
  if not after:
    return True
  near, *farther = after[:2]
  # A question, "3 + 4 = 8?", or a factorial, "3 * 2 = 3!".
  sure = _is_border(near) and near.text not in '?!'
  for token in farther:
    # The number continues: "16.66...", "5 and 2/3".
    sure &= near.text != '.' or token.text != '.'
    sure &= near.text.lower() != 'and' or token.kind not in _VALUES
    # A repeating decimal: 0.(3), 0.\dot{3}.
    glued = near.text == '.' and near.end == token.start
    digits = token.kind == 'open' or token.text[:2] in ('\\d', '\\b', '\\o')
    sure &= not (glued and digits)
    # A sign at the start of the next line continues this one.
    sure &= near.text != '\n' or token.kind != 'operator'
  return sure and not _is_compound(after, set())


def _is_compound(beside: list[Token], units: set[str]) -> bool:
  """Returns whether a quantity has two units, as in "1 hour and 20 minutes".

  Args:
    beside: the tokens beside an expression, the nearest first.
    units: the expression's units, if it may be the second part of a quantity.
  """
  kinds = {KIND[unit] for unit in units if unit in KIND}
  beside = [t for t in beside[:5] if t.text.lower() not in ('and', ',')]
  if not kinds and beside and beside[0].kind == 'word':
    # The expression may be the first part: its unit, a number and the unit of
    # the second part follow.
    kinds = {KIND.get(_unit(t), -1) for t in beside[2:3] if t.kind == 'word'}
  return (
    len(beside) > 1
    and beside[1].kind == 'number'
    and KIND.get(_unit(beside[0])) in kinds
  )


def _without_units(
  segment: list[Token], ends: bool
) -> tuple[list[Token], set[str]]:
  """Splits tokens into an expression and the units of its values.

  Currency signs are units, and so are words after a value if an operator, a
  bracket or the end of the expression follows.

  Args:
    ends: whether the segment ends at an equality sign; its last words may then
      be a unit.

  Returns:
    The tokens that are kept, and the units in lower case.
  """
  kept, units, pending = [], set(), []
  for token in segment:
    if token.kind == 'money':
      units.add(token.text)
      continue
    if token.kind == 'word':
      pending.append(token)
      continue
    closes = token.kind in ('operator', 'close') and not (
      token.text == '-' and not ends
    )
    if pending and closes and _are_unit(kept, pending):
      units |= {_unit(t) for t in pending}
      pending = []
    kept += [*pending, token]
    pending = []
  if pending and _are_unit(kept, pending) and ends:
    units |= {_unit(t) for t in pending}
    pending = []
  return [*kept, *pending], units


def _are_unit(kept: list[Token], pending: list[Token]) -> bool:
  *more, name = pending
  return (
    bool(kept)
    and kept[-1].kind in ('number', 'percent', 'close')
    and len(pending) <= 4
    and pending[0].text != 'of'
    and all(_is_word(t) and t.text.lower() not in _CLAUSE for t in pending)
    # A short name is a variable: "1/2 ab = 4", "4 becomes A = 2".
    and (len(name.text) > (1 if more else 2) or name.text.lower() in KIND)
  )


def _unit(token: Token) -> str:
  return token.text.strip('/- ').lower()


def _is_word(token: Token) -> bool:
  """Returns whether a token is a word; a single letter may be a variable."""
  text = token.text
  if text.startswith('\\'):
    return False
  # 3ab is algebra and 3kg is not: without a space, only known units count.
  if not token.spaced and text[0].isalpha():
    return text.lower() in KIND
  return len(text) > 1 or text in ('a', 'A', 'I')


def _is_border(token: Token) -> bool:
  """Returns whether an expression may begin or end beside this token."""
  if token.kind == 'mark':
    return token.text in ',.;:?!"\'()[]—\n`*'
  if token.kind == 'word':
    return _is_word(token) and token.text.lower() not in WORKING
  return token.kind in ('open', 'close')
