r"""Other ways to write the numbers and units in MATH's answers.

Whole numbers, decimals, fractions and mixed numbers are read into exact
fractions by regular expressions, without any code of the judges. Every function
returns the answer in another form, or None where it does not apply.
"""

import random
import re
from collections.abc import Callable
from fractions import Fraction

Respelling = Callable[[str, random.Random], str | None]
FRACTION = re.compile(r'(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}')
MIXED = re.compile(r'(-?)(\d+) ?\\frac\{(\d+)\}\{(\d+)\}')
INTEGER = re.compile(r'-?\d+')
DECIMAL = re.compile(r'(-?)(\d*)\.(\d+)')
MEASURED = re.compile(
  r'(?P<value>.*[\d}i])\s*(?:\\,)?\\(?:text|mbox) ?\{\s*(?P<unit>[a-z. ]+)\}'
  r'(?P<power>\^[23])?'
)
ABBREVIATED = {
  **{'feet': 'ft', 'inches': 'in', 'miles': 'mi', 'hours': 'hr', 'cm': 'cm'},
  **{'pounds': 'lb', 'gallons': 'gal', 'minutes': 'min', 'seconds': 'sec'},
  **{'km': 'kilometers', 'square inches': 'sq in', 'square feet': 'sq ft'},
}


def whole(pattern: re.Pattern, text: str) -> re.Match | None:
  """Matches a pattern with the whole text."""
  return pattern.fullmatch(text.strip())


def value_of(text: str) -> Fraction | None:
  """Reads an integer, a fraction, a mixed number or a decimal; else None."""
  text = re.sub(r',\\!', '', text.strip())
  if whole(INTEGER, text) or whole(DECIMAL, text):
    return Fraction(text)
  if match := whole(FRACTION, text):
    return Fraction(int(match[1] + match[2]), int(match[3]) or 1)
  if match := whole(MIXED, text):
    part = int(match[2]) + Fraction(int(match[3]), int(match[4]))
    return -part if match[1] else part
  return None


def as_decimal(text: str, rng: random.Random) -> str | None:
  value = value_of(text)
  if value is None or value.denominator == 1 or whole(DECIMAL, text):
    return None
  for places in range(1, 7):
    if (value * 10**places).denominator == 1:
      return f'{float(value):.{places + rng.randrange(2)}f}'
  return None


def as_repeating(text: str, _: random.Random) -> str | None:
  value = value_of(text)
  if value is None or value.denominator not in (3, 9, 11, 99):
    return None
  digits = 1 if value.denominator in (3, 9) else 2
  part = abs(value) % 1 * (10**digits - 1)
  sign = '-' if value < 0 else ''
  return rf'{sign}{abs(value).__floor__()}.\overline{{{int(part):0{digits}}}}'


def as_fraction(text: str, rng: random.Random) -> str | None:
  """Writes a number as one fraction, which may be not reduced."""
  value = value_of(text)
  if value is None or abs(value) > 10**6:
    return None
  k = rng.randint(2, 5)
  if whole(FRACTION, text) or value.denominator == 1:
    sign = '-' if value < 0 else ''
    above, below = abs(value.numerator) * k, value.denominator * k
    return rf'{sign}\frac{{{above}}}{{{below}}}'
  return f'{value.numerator}/{value.denominator}'


def as_mixed(text: str, rng: random.Random) -> str | None:
  value = value_of(text)
  if value is None or abs(value) < 1 or value.denominator == 1:
    return None
  sign, value = '-' if value < 0 else '', abs(value)
  above, below = (value % 1).numerator, value.denominator
  forms = [
    rf'{sign}{value.__floor__()}{gap}\{frac}{{{above}}}{{{below}}}'
    for gap in ('', ' ', r'\,', r'\ ')
    for frac in ('frac', 'dfrac', 'tfrac')
  ]
  forms.append(f'{sign}{value.__floor__()} {above}/{below}')
  if above < 10 and below < 10:
    forms.append(rf'{sign}{value.__floor__()}\frac{above}{below}')
    forms.append(rf'{sign}{value.__floor__()} \frac{above}{below}')
  forms = [form for form in forms if form != text.strip()]
  return rng.choice(forms)


def minus_moved(text: str, _: random.Random) -> str | None:
  match = whole(FRACTION, text)
  if not match or not match[1]:
    return None
  return rf'\frac{{-{match[2]}}}{{{match[3]}}}'


def grouped(text: str, rng: random.Random) -> str | None:
  plain = re.sub(r',\\!', '', text.strip())
  if not whole(INTEGER, plain) or len(plain.strip('-')) < 4:
    return None
  forms = [
    f'{int(plain):,}'.replace(',', comma)
    for comma in (',', '{,}', r',\!', r'\,')
  ]
  forms = [form for form in [*forms, plain] if form != text.strip()]
  return rng.choice(forms)


def with_zeros(text: str, rng: random.Random) -> str | None:
  if whole(DECIMAL, text):
    return rng.choice(
      [f'{text}0', text[1:] if text.startswith('0.') else f'{text}00']
    )
  return (
    text.strip() + rng.choice(['.0', '.00']) if whole(INTEGER, text) else None
  )


def powers_of_ten(text: str, rng: random.Random) -> str | None:
  plain = re.sub(r',\\!', '', text.strip())
  zeros = len(plain) - len(plain.rstrip('0'))
  if not whole(INTEGER, plain) or zeros < 2:
    return None
  form = rng.choice(
    [r'{} \times 10^{{{}}}', r'{} \cdot 10^{}', '{}\u00d710^{}']
  )
  return form.format(plain[:-zeros], zeros)


def no_unit(text: str, _: random.Random) -> str | None:
  match = whole(MEASURED, text)
  if match:
    return match['value'] if 'or' not in match['unit'].split() else None
  found = re.sub(r'\^\{?\\circ\}?$|\\\$', '', text.strip())
  return found if found != text.strip() else None


def other_unit(text: str, rng: random.Random) -> str | None:
  """Writes the same unit in another way."""
  match = whole(MEASURED, text)
  if not match:
    found = [
      re.sub(pattern, replacement, text)
      for pattern, replacement in (
        (r'\^\{?\\circ\}?', ' degrees'),
        (r'\^\{?\\circ\}?', r'\\text{ degrees}'),
        (r'\^\{?\\circ\}?', r'^{\\circ}'),
        (r'\\%', '%'),
        (r' ?\\%', ' percent'),
        (r' ?\\%', r'\\text{ percent}'),
        (r'^\\\$([\d.]+)$', r'\1 dollars'),
        (r'^\\\$([\d.]+)$', r'\1 \\text{ dollars}'),
      )
      if '(' not in text
    ]
    found = [other for other in found if other != text]
    return rng.choice(found) if found else None
  value, unit = match['value'], match['unit'].strip(' .')
  power = match['power'] or ''
  if ' or' in f' {unit}' or unit.startswith('and'):
    return None
  forms = [
    rf'{value} \text{{ {unit}}}{power}',
    rf'{value}\,\mathrm{{{unit}}}{power}' if ' ' not in unit else '',
    rf'{value}\mbox{{ {unit}}}{power}',
    f'{value} {unit}{power}',
    rf'{value}\text{{ {unit[:-1]}}}'
    if re.search('[bcdgklmnrt]s$', unit)
    else '',
    rf'{value} \text{{ {ABBREVIATED[unit]}}}{power}'
    if unit in ABBREVIATED
    else '',
  ]
  return rng.choice([form for form in forms if form and form != text])
