"""Reads values with units: '$1,000', '3 1/2 cups', '90^{\\circ}', '2112_7'.

`answers.py` passes texts that `spellings.py` has cleaned, and compares the
quantities. The base of a numeral is treated as its unit.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from prm_jax.data.verify import expressions, units

_SCALES = {
  **{'dozen': 12, 'hundred': 10**2, 'thousand': 10**3, 'million': 10**6},
  **{'billion': 10**9, 'trillion': 10**12},
}
_ANGLES = re.compile(r'(?:sin|cos|tan|cot|sec|csc)(?![a-z])')
# Units that may follow a number without a space. Other letters are algebra.
_UNITS_WITHOUT_SPACE = frozenset(
  (
    *('km', 'cm', 'mm', 'kg', 'mg', 'ml', 'lb', 'lbs', 'oz', 'ft', 'mi', 'yd'),
    *('hr', 'hrs', 'min', 'mins', 'sec', 'mph', 'kmh', 'am', 'pm', 'usd'),
  )
)
FUNCTIONS = frozenset(
  (
    *('sqrt', 'pi', 'sin', 'cos', 'tan', 'cot', 'csc', 'arcsin', 'arccos'),
    *('arctan', 'log', 'exp', 'infty', 'mod', 'gcd', 'lcm'),
  )
)
# Words that make a clause, not a unit: "15 is not a solution".
_CLAUSE = frozenset(
  (
    *('is', 'are', 'was', 'not', 'no', 'or', 'and', 'if', 'than', 'but'),
    *('which', 'root', 'radical'),
  )
)
# Right after a number these continue a calculation, or take it back.
_GOES_ON = frozenset(
  (
    *('minus', 'plus', 'divided', 'multiplied', 'raised'),
    *('cannot', 'choose', 'point', 'alpha', 'beta', 'gamma', 'delta'),
    *('epsilon', 'theta', 'lambda', 'sigma', 'phi', 'psi', 'omega'),
  )
)
_NO_UNIT = re.compile(
  r'(?:times|over) [b-z]$|at (?:least|most)\b|quarters of\b|to the \w+ power$'
  r'|(?:wrong|incorrect|undefined|impossible|unknown|negative)$'
  r'|.*\bbelow zero\b'
)
# With these, alone or before "of", the number is not the value: 2 thirds.
_CHANGES_VALUE = frozenset(
  (
    *('half', 'third', 'fourth', 'fifth', 'sixth', 'seventh', 'eighth'),
    *('ninth', 'tenth', 'eleventh', 'twelfth', 'thirteenth', 'fourteenth'),
    *('fifteenth', 'sixteenth', 'seventeenth', 'eighteenth', 'nineteenth'),
    *('twentieth', 'thirtieth', 'fortieth', 'fiftieth', 'sixtieth'),
    *('seventieth', 'eightieth', 'ninetieth', 'hundredth', 'thousandth'),
    *('millionth', 'billionth', 'halve', 'squared', 'cubed', 'factorial'),
  )
)
_VALUE_AND_UNIT = re.compile(
  r'(?P<value>.*?(?:[\d)}\]%]|\\pi|\\infty))(?P<gap>\s*)(?P<per>/ ?)?'
  r'(?P<unit>[A-Za-z][A-Za-z ./-]*(?:\^(?:[23]|\{[23]\}))?)'
)
_NUMERAL = re.compile(r'-?[\d.,/ ]*\d')
_NUMERAL_WITH_BASE = re.compile(
  r'(?P<value>-?(?=[A-Z]*\d)[0-9A-Z]+(?:\.[0-9A-Z]+)?|\([0-9A-Z]+\))'
  r'(?:_|\s+base\s+)\{?\s*(?P<base>\d{1,2})\s*\}?'
)
_POWER_OF_TEN = re.compile(r'(?<=\d)[eE]([-+]?\d{1,3})(?!\d)')
DATE = re.compile(r'\d{1,2}([-/])\d{1,2}\1\d{4}|\d{4}([-/])\d{1,2}\2\d{1,2}')


class Quantity(NamedTuple):
  """Holds a number with its unit.

  Attributes:
    value: the exact number.
    unit: as `units.canonical` gives it; '%' or, for none, ''.
    of: the word after a percentage, as in '20% loss'; '' for none or several.
  """

  value: Fraction
  unit: str
  of: str = ''


def read_quantity(text: str) -> Quantity | None:
  """Reads '$1,000', '3 1/2 cups', '2^10', '12.5%'; None for anything else."""
  value, unit = split_unit(text)
  if not value or value[-1] not in '0123456789)}%':
    return None
  # The comma of (1,234) separates two coordinates.
  if re.search(r'[(\[{][^(\[{)\]}]*,', value) or DATE.fullmatch(value):
    return None
  if unit == 'percent':
    value, unit = f'{value}%', ''
  try:
    exact = expressions.exact_value(_POWER_OF_TEN.sub(r'*10^(\1)', value))
  except expressions.Unreadable:
    return None
  words = []
  for word in unit.split(' '):
    exact *= (factor := _SCALES.get(units.stem(word), 1))
    words += [word] if factor == 1 else []
  unit = ' '.join(words)
  if value.endswith('%'):
    return Quantity(exact, '%', '' if ' ' in unit else units.canonical(unit))
  return Quantity(exact, units.canonical(unit))


def split_unit(text: str) -> tuple[str, str]:
  """Splits a text into value and unit, as ('2\\pi', 'cm'), ('2112', 'base7').

  The unit is in lower case, and '' where there is none.
  """
  based = _NUMERAL_WITH_BASE.fullmatch(text)
  if based:
    return based['value'].strip('()'), f'base{based["base"]}'
  if not _ANGLES.search(text):  # there it is part of the value
    text = re.sub(r'\^\{\\circ\} ?(?=[CF]?$)', ' degrees ', text).strip()
  money = re.findall(r'[$€£¥¢]', text)
  if len(money) > 1:
    return text, ''
  for sign in money:
    text = text.replace(sign, '').strip()
  match, unit = _VALUE_AND_UNIT.fullmatch(text), ''
  if match and match['per']:  # $18/hour, but not 1/ab
    word = re.split('[ /-]', match['unit'].lower())[0]
    if len(word) > 1 and (money or units.is_known(word)):
      text, unit = match['value'], f'per {match["unit"].lower()}'
  elif match and _is_unit(match['value'], match['gap'], match['unit']):
    text, unit = match['value'], match['unit'].strip(' .').lower()
  unit = re.sub(r'\{|\}', '', unit)
  return text, ' '.join([*(units.MONEY[sign] for sign in money), unit]).strip()


def _is_unit(value: str, gap: str, text: str) -> bool:
  """Returns whether a text is the unit of a value, and not algebra."""
  name = re.sub(r'\^.*|\.', '', text.lower()).strip()
  words = re.split('[ /-]+', name)
  if any(word in FUNCTIONS or word in _CLAUSE for word in words):
    return False
  first = units.stem(words[0])
  changes = first in _CHANGES_VALUE and words[1:2] in ([], ['of'])
  if changes or words[0] in _GOES_ON or _NO_UNIT.match(name):
    return False
  if not gap:
    return words[0] in _UNITS_WITHOUT_SPACE
  if len(name) == 1:
    return name in 'mglsh' and bool(_NUMERAL.fullmatch(value))
  return units.is_known(name) or any(
    len(word) > 2
    or (
      len(word) > 1 and (units.is_known(word) or word in _UNITS_WITHOUT_SPACE)
    )
    for word in words
  )


def same_quantity(a: Quantity, b: Quantity) -> bool:
  """Returns whether two quantities are equal.

  50% equals 1/2 and 50. A unit may be missing; none is converted. A loss of 20%
  is no gain of 20%.
  """
  if a.of and b.of and a.of != b.of:
    return False
  percents = [a.unit, b.unit].count('%')
  if percents == 1:
    percent, other = (a, b) if a.unit == '%' else (b, a)
    alike = other.value in (percent.value, percent.value * 100)
    return alike and not other.unit
  return a.value == b.value and units.agree(a.unit, b.unit)


def units_agree(one: str, other: str) -> bool:
  """Returns whether the units of two expressions agree, or one is missing.

  A scale, such as million, must be the same on both sides.
  """
  a, b = ([*map(units.stem, unit.split())] for unit in (one, other))
  if any(word in _SCALES for word in a + b):
    return a == b
  return units.agree(units.canonical(one), units.canonical(other))
