r"""Changes to an answer of MATH that alter its meaning.

Every function returns another answer, or None where its change does not apply
or could leave the meaning as it was: 0 has no sign, and 1 to any power is 1.
"""

import random
import re
from fractions import Fraction

from experiments.answer_equality.number_forms import (
  DECIMAL,
  FRACTION,
  MEASURED,
  MIXED,
  Respelling,
  value_of,
  whole,
)
from experiments.answer_equality.respellings import items_of, sum_reordered

TUPLE = re.compile(r'(\\left)?\(([^()\[\]]*,[^()\[\]]*?)(\\right)?\)')
RANGE = re.compile(
  r'(?P<open>[(\[])(?P<inside>[^()\[\]]*,[^()\[\]]*)(?P<close>[)\]])'
)
OTHER_UNITS = {
  'feet': 'inches',
  'inches': 'feet',
  'miles': 'feet',
  'cm': 'mm',
  'hours': 'minutes',
  'minutes': 'hours',
  'min': 'hours',
  'days': 'hours',
  'pounds': 'ounces',
  'cents': 'dollars',
  'dollars': 'cents',
  'ft': 'cm',
  'km': 'miles',
  'square feet': 'square inches',
  'square inches': 'square feet',
  'square units': 'cubic units',
  'gallons': 'liters',
}
LETTER = re.compile(r'(?<![\\a-zA-Z{])([a-z])(?![a-z])')


def digit(text: str, rng: random.Random) -> str | None:
  """Replaces a digit by another from 2 to 9, where that changes the value."""
  if re.search(
    r'text|mbox|overline|phantom|[=:]|\\c?dot|log|!|(?<!\d)0(?![.\d])', text
  ):
    return None
  places = [
    m.start()
    for m in re.finditer(r'[2-9]', text)
    # In 1^2 the exponent has no effect; in 2112_7 the base has its own change.
    if not re.search(r'1\^\{?\d*$|_\{?\d*$', text[: m.start()])
  ]
  if not places:
    return None
  at = rng.choice(places)
  other = rng.choice([d for d in '23456789' if d != text[at]])
  return text[:at] + other + text[at + 1 :]


def sign(text: str, rng: random.Random) -> str | None:
  value = value_of(text)
  if value is not None:
    stripped = text.strip()
    if value:
      return stripped[1:] if stripped.startswith('-') else f'-{stripped}'
    return None
  if re.search(r'text|mbox|=|begin|pm|infty|<|>|\||:|_', text):
    return None
  inner = [
    m.start() for m in re.finditer(r'(?<=[\w})]) ?([-+]) ?(?=[\d\\a-z(])', text)
  ]
  if inner:
    at = rng.choice(inner)
    at += text[at] == ' '
    return text[:at] + ('-' if text[at] == '+' else '+') + text[at + 1 :]
  if re.fullmatch(r'\d*\\(?:sqrt|pi).*|\\[dt]?frac.*', text.strip()):
    return f'-{text.strip()}'
  return None


def inverted(text: str, _: random.Random) -> str | None:
  match = whole(FRACTION, text)
  if not match or match[2] in ('0', match[3]):
    return None
  return rf'{match[1]}\frac{{{match[3]}}}{{{match[2]}}}'


def numerator(text: str, rng: random.Random) -> str | None:
  match = re.search(r'\\([dt]?frac)\{(\d+)\}', text)
  if not match or '=' in text:
    return None
  above = int(match[2]) + rng.choice([1, 2, 3])
  if not re.fullmatch(r'-?[^a-z]*', text.replace(match[0], '')):
    return None
  return text.replace(match[0], rf'\{match[1]}{{{above}}}', 1)


def mixed_as_product(text: str, rng: random.Random) -> str | None:
  match = whole(MIXED, text)
  if not match:
    return None
  whole_part, above, below = (int(match[k]) for k in (2, 3, 4))
  return rng.choice(
    [
      rf'{match[1]}\frac{{{whole_part * above}}}{{{below}}}',
      rf'{match[1]}\frac{{{above}}}{{{below}}}',
      rf'{match[1]}{whole_part} \cdot \frac{{{above}}}{{{below}}}',
    ]
  )


def rounded(text: str, _: random.Random) -> str | None:
  value = value_of(text)
  if value is None or (value * 10**8).denominator == 1:
    return None
  return f'{float(value):.4f}'


def rounded_root(text: str, rng: random.Random) -> str | None:
  text = text.strip()
  if match := re.fullmatch(r'(\d*) ?\\sqrt\{(\d+)\}', text):
    exact = int(match[1] or 1) * int(match[2]) ** 0.5
  elif match := re.fullmatch(r'(\d*) ?\\pi', text):
    exact = int(match[1] or 1) * 3.141592653589793
  else:
    return None
  return f'{exact:.{rng.randint(2, 6)}f}' if exact % 1 else None


def ten_times(text: str, rng: random.Random) -> str | None:
  value = value_of(text)
  if not value:
    return None
  if whole(DECIMAL, text):
    return f'{float(value * rng.choice([10, 100])):g}'
  return (
    f'{text.strip()}0' if value.denominator == 1 and ',' not in text else None
  )


def swapped(text: str, rng: random.Random) -> str | None:
  match = whole(TUPLE, text)
  if not match:
    return None
  items = [item.strip() for item in match[2].split(',')]
  others = [items[1:] + items[:1], items[::-1]]
  others = [other for other in others if other != items]
  return f'({", ".join(rng.choice(others))})' if others else None


def brackets(text: str, rng: random.Random) -> str | None:
  plain = re.sub(r'\\left|\\right', '', text).strip()
  found = list(RANGE.finditer(plain))
  if not found or plain[0] not in '([' or plain[-1] not in ')]':
    return None
  match = rng.choice(found)
  below, *_, above = match['inside'].split(',')
  # A bracket at infinity is always open, however it is written.
  sides = {'open': below, 'close': above}
  sides = [side for side, end in sides.items() if 'infty' not in end]
  if not sides:
    return None
  at = match.start(rng.choice(sides))
  swap = {'(': '[', '[': '(', ')': ']', ']': ')'}
  return plain[:at] + swap[plain[at]] + plain[at + 1 :]


def one_less(text: str, rng: random.Random) -> str | None:
  items = items_of(text)
  if not items or len(set(items)) < 2:
    return None
  gone = rng.choice(sorted(set(items)))
  return ', '.join(item for item in items if item != gone)


def one_more(text: str, _: random.Random) -> str | None:
  items = items_of(text)
  value = value_of(text)
  if items:
    return ', '.join([*items, '1009'])
  return f'{text.strip()}, 1009' if value is not None else None


def as_list(text: str, _: random.Random) -> str | None:
  """Turns 10,\\!080 into the list of 10 and 080."""
  plain = re.sub(r',\\!', '', text.strip())
  if not re.fullmatch(r'[1-9]\d{3,5}', plain):
    return None
  return f'{plain[:-3]}, {plain[-3:]}'


def base(text: str, rng: random.Random) -> str | None:
  match = re.fullmatch(r'(-?[\d.]+)_\{?(\d+)\}?', text.strip())
  if not match:
    return None
  other = rng.choice([b for b in range(2, 13) if b != int(match[2])])
  return rng.choice([f'{match[1]}_{{{other}}}', f'{match[1]}_{{1{match[2]}}}'])


def unit(text: str, _: random.Random) -> str | None:
  if re.fullmatch(r'[\d.]+\^\{?\\circ\}?', text.strip()):
    return re.sub(r'\^\{?\\circ\}?', r'\\text{ minutes}', text)
  if re.fullmatch(r'\\\$[\d.]+', text.strip()):
    return text.strip()[2:] + r'\text{ cents}'
  match = whole(MEASURED, text)
  other = match and OTHER_UNITS.get(match['unit'].strip(' .'))
  return rf'{match["value"]}\text{{ {other}}}' if other else None


def dimension(text: str, _: random.Random) -> str | None:
  """Turns feet into square feet, and square feet into cubic feet."""
  match = whole(MEASURED, text)
  if not match or match['unit'].strip() not in (
    'feet',
    'inches',
    'cm',
    'units',
  ):
    return None
  power = '^3' if match['power'] == '^2' else '^2'
  return rf'{match["value"]}\text{{ {match["unit"].strip()}}}{power}'


def variable(text: str, rng: random.Random) -> str | None:
  if re.search(r'text|mbox|begin|=', text):
    return None
  letters = sorted(set(LETTER.findall(text)) - {'e', 'i'})
  if not letters:
    return None
  one = rng.choice(letters)
  other = rng.choice([x for x in 'tuvwz' if x not in text])
  return re.sub(rf'(?<![\\a-zA-Z]){one}(?![a-z])', other, text)


def letter_added(text: str, rng: random.Random) -> str | None:
  """Turns 4 into 4t, whose letter is a variable and no unit."""
  if value_of(text) is None or not re.search(r'[1-9]', text):
    return None
  return text.strip() + rng.choice(['t', 'x', 'm', 'h', 's', 'c', ' xy'])


def exponent(text: str, rng: random.Random) -> str | None:
  found = list(re.finditer(r'(?<=[a-z)2-9])\^(\{?)(\d+)(\}?)', text))
  if not found or re.search(r'text|mbox|=', text):
    return None
  match = rng.choice(found)
  other = int(match[2]) + rng.choice([1, 2])
  return f'{text[: match.start()]}^{{{other}}}{text[match.end() :]}'


def cells(text: str, _: random.Random) -> str | None:
  match = re.fullmatch(
    r'\s*\\begin\{pmatrix\}(.*)\\end\{pmatrix\}\s*', text, re.S
  )
  if not match:
    return None
  rows = [row.strip() for row in match[1].split(r'\\')]
  rows = [row for row in rows if row]
  other = r' \\ '.join(reversed(rows))
  if len(rows) < 2 or rows == rows[::-1]:
    return None
  return rf'\begin{{pmatrix}} {other} \end{{pmatrix}}'


def percent(text: str, _: random.Random) -> str | None:
  match = re.fullmatch(r'(\d+(?:\.\d+)?) ?\\%', text.strip())
  if not match:
    return None
  return rf'{float(Fraction(match[1]) / 10):g}\%'


def right_side(text: str, rng: random.Random) -> str | None:
  match = re.fullmatch(r'([a-z]) ?= ?(.*)', text.strip())
  if not match or not re.search(r'\d', match[2]):
    return None
  return rng.choice(
    [
      f'{match[1]} = {match[2]} + 1',
      f'{"u" if match[1] != "u" else "v"} = {match[2]}',
    ]
  )


def ratio(text: str, _: random.Random) -> str | None:
  match = re.fullmatch(r'(\d+) ?: ?(\d+)', text.strip())
  return f'{match[2]}:{match[1]}' if match and match[1] != match[2] else None


def one_term_less(text: str, rng: random.Random) -> str | None:
  other = sum_reordered(text, rng)
  terms = re.split(r' (?=[-+])', other) if other else []
  return terms[0] if len(terms) > 1 and '(' not in other else None


DIFFERENT: dict[str, Respelling] = {
  'another digit': digit,
  'another sign': sign,
  'fraction inverted': inverted,
  'another numerator': numerator,
  'mixed number as a product': mixed_as_product,
  'rounded fraction': rounded,
  'rounded root or pi': rounded_root,
  'ten times': ten_times,
  'coordinates swapped': swapped,
  'another bracket': brackets,
  'one of a list left out': one_less,
  'one more in a list': one_more,
  'thousands as a list': as_list,
  'another base': base,
  'another unit': unit,
  'another dimension': dimension,
  'another variable': variable,
  'a letter added': letter_added,
  'another exponent': exponent,
  'rows swapped': cells,
  'a tenth of a percentage': percent,
  'another right side': right_side,
  'ratio turned round': ratio,
  'a term left out': one_term_less,
}
