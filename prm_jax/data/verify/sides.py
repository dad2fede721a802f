"""The two expressions at an equality sign, cut out of the prose around them.

`calculator.py` gives the tokens on both sides of a sign; what comes back is the
expression that ends the left one or begins the right one, the units in it, and
whether it surely ends there: "f'(3) = 4" states nothing of (3).
"""

from typing import NamedTuple

from prm_jax.data.verify.expressions import Token


def words(text: str) -> frozenset[str]:
  return frozenset(text.split())


# Words that change the value of what stands beside them.
WORKING = words(
  'plus minus times less more over by of divided multiplied half twice double '
  'triple thrice third thirds quarter quarters sum difference product square '
  'squared cube cubed root per mod modulo remainder than from one two three '
  'four five six seven eight nine ten eleven twelve twenty hundred thousand '
  'million billion trillion dozen dozens k to about approximately almost '
  'nearly roughly around sin cos tan log ln sqrt gcd lcm base arcsin arccos '
  'arctan exp abs floor ceil ceiling phi choose factorial'
)
# "Suppose 3 + 4 = 8" claims nothing.
_SUPPOSING = words('if suppose assume whether')
# What comes between two clauses is no unit of the number before it.
_CLAUSE = words(
  'then so and or if because since but while when where which that is are was '
  'were be has have had makes leaves gives equals becomes he she they it we '
  'you i now'
)
# Units of one kind a line.
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
  """One side of an equality sign.

  Attributes:
    tokens: the expression, without units and currency.
    sure: False where what stands beside it may belong to it.
    units: in lower case, those after it included.
  """

  tokens: list[Token]
  sure: bool
  units: set[str]


def whole(segment: list[Token]) -> bool:
  """Is a segment between two equality signs one expression and its units?"""
  kept, _ = _without_units(segment, ends=True)
  return bool(kept) and not any(t.kind in ('word', 'mark') for t in kept)


def last(segment: list[Token]) -> Side:
  """The side that ends a segment."""
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


def first(segment: list[Token]) -> Side:
  """The side that begins a segment."""
  kept, units = _without_units(segment, ends=whole(segment))
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
    units |= {_unit(token)}
  return Side(expression, _may_end(after), units)


def _may_begin(before: list[Token], begin: Token, units: set[str]) -> bool:
  """May an expression begin at a token, after these?"""
  if not before:
    return True
  near, *farther = before[-1], *before[-2:-1]
  sure = _is_border(near) and near.text.lower() not in _SUPPOSING
  sure &= not (near.text in ('min', 'max') and begin.kind == 'open')
  if near.end == begin.start:
    # "floor(7/2)": whatever stands directly before "(" may be a function.
    sure &= not (near.kind == 'word' and begin.kind == 'open')
    # f'(3), 7!(8), \sqrt[3]{8}, 5'3, 0.(3)
    joined = farther and farther[0].end == near.start
    sure &= not (joined and near.text in ("'", '"', '!', ']'))
    sure &= not (joined and near.text == '.' and begin.kind == 'open')
  # "3 and 4 + 5", "14, 400 / 80", "(1-2), (5-2)"
  if farther and near.text.lower() in ('and', ','):
    sure &= farther[0].kind != 'number'
    listed = near.text == ',' and farther[0].kind == 'close'
    sure &= not (listed and begin.kind == 'open')
  if begin.kind == 'operator' and begin.text in '-+':
    # "profit - 5 + 3 = 8" takes away from the profit; a line that begins with
    # a sign may go on with the line before it.
    sure &= near.text in '({[:,;\n'
    values = ('number', 'percent', 'close')
    sure &= not (near.text == '\n' and farther and farther[0].kind in values)
  sure &= not (farther and farther[0].kind in ('operator', 'power'))
  return sure and not _is_compound(before[::-1], units)


def _may_end(after: list[Token]) -> bool:
  """May an expression end before these tokens?"""
  if not after:
    return True
  near, *farther = after[:2]
  # "3 + 4 = 8?", "3 * 2 = 3!"
  sure = _is_border(near) and near.text not in '?!'
  for token in farther:
    # "16.66..." and "5 and 2/3"
    sure &= near.text != '.' or token.text != '.'
    sure &= near.text.lower() != 'and' or token.kind not in _VALUES
    # 0.(3), 0.\dot{3}
    glued = near.text == '.' and near.end == token.start
    digits = token.kind == 'open' or token.text[:2] in ('\\d', '\\b', '\\o')
    sure &= not (glued and digits)
    # The next line goes on with this one.
    sure &= near.text != '\n' or token.kind != 'operator'
  return sure and not _is_compound(after, set())


def _is_compound(beside: list[Token], units: set[str]) -> bool:
  """Does a quantity go on, as in 1 hour and 20 minutes?

  Args:
    beside: the tokens beside an expression, the nearest first.
    units: of the expression, where it is the second part.
  """
  kinds = {KIND[unit] for unit in units if unit in KIND}
  beside = [t for t in beside[:5] if t.text.lower() not in ('and', ',')]
  if not kinds and beside and beside[0].kind == 'word':
    # The first part: its unit and a number follow, and then the second's unit.
    kinds = {KIND.get(_unit(t), -1) for t in beside[2:3] if t.kind == 'word'}
  return (
    len(beside) > 1
    and beside[1].kind == 'number'
    and KIND.get(_unit(beside[0])) in kinds
  )


def _without_units(
  segment: list[Token], ends: bool
) -> tuple[list[Token], set[str]]:
  """Drops currency, and words between a value and what ends or continues it.

  Args:
    ends: the segment ends at an equality sign, so its last words are a unit.
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
    # "4 becomes A = 2", "1/2 ab = 4"
    and (len(name.text) > (1 if more else 2) or name.text.lower() in KIND)
  )


def _unit(token: Token) -> str:
  return token.text.strip('/- ').lower()


def _is_word(token: Token) -> bool:
  """A word of the language; a letter alone may be a variable."""
  text = token.text
  if text.startswith('\\'):
    return False
  # 3ab is algebra, 3kg is not: written together, only known units are units.
  if not token.spaced and text[0].isalpha():
    return text.lower() in KIND
  return len(text) > 1 or text in ('a', 'A', 'I')


def _is_border(token: Token) -> bool:
  """May an expression end beside this token?"""
  if token.kind == 'mark':
    return token.text in ',.;:?!"\'()[]—\n`*'
  if token.kind == 'word':
    return _is_word(token) and token.text.lower() not in WORKING
  return token.kind in ('open', 'close')
