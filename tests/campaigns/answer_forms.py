r"""Writes final answers in many spellings, and others that differ from them.

    a random value -> Form: texts of the value, and texts of other values

Here are single values; `answer_parts.py` has lists, and `answer_algebra.py`
roots and letters. `answers.py` compares them. What a text means is known by
construction, in exact fractions.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

# Signs are written here as people write them.
# ruff: noqa: RUF001
Rng = np.random.Generator
VARIABLES = ('x', 'y', 'a', 'n', 't')


class Form(NamedTuple):
  """Holds texts of one answer, and texts of answers that differ from it."""

  same: list[str]
  other: list[str]


def pick(rng: Rng, choices: Sequence) -> object:
  """Returns one of the choices, as it is."""
  return choices[int(rng.integers(len(choices)))]


def whole(rng: Rng, low: int, high: int) -> int:
  """Returns a whole number from low to high."""
  return int(rng.integers(low, high + 1))


def nonzero(rng: Rng, high: int) -> int:
  """Returns a whole number from -high to high, but not 0."""
  return whole(rng, 1, high) * pick(rng, (-1, 1))


def fraction(rng: Rng, high: int = 40) -> Fraction:
  """Returns a fraction, half of them negative; many are whole."""
  return Fraction(nonzero(rng, high), pick(rng, (1, 2, 3, 4, 5, 7, 8, 12)))


def decimal(value: Fraction) -> str | None:
  """Returns the finite decimal of a value, if it has one of six places."""
  scaled = value * 10**6
  if scaled.denominator != 1:
    return None
  digits = f'{abs(scaled.numerator):07d}'
  text = f'{digits[:-6]}.{digits[-6:]}'.rstrip('0').rstrip('.')
  return f'-{text}' if value < 0 else text


def spell(rng: Rng, value: Fraction) -> str:
  """Writes a value without thousands separators, in one of many ways."""
  sign = '-' if value < 0 else ''
  above, below = abs(value.numerator), value.denominator
  found = []
  if (text := decimal(value)) is not None:
    zeros = '0' * whole(rng, 1, 2)
    found += [text, f'{text}{zeros}' if '.' in text else f'{text}.{zeros}']
  if below == 1:
    return pick(rng, [str(value), str(value), *found])
  for factor in (1, whole(rng, 2, 6)):
    a, b = above * factor, below * factor
    found += [
      f'{sign}{a}/{b}',
      rf'{sign}\frac{{{a}}}{{{b}}}',
      rf'\frac{{{sign}{a}}}{{{b}}}',
    ]
  if above < 10 and below < 10:
    found.append(rf'{sign}\frac{above}{below}')
  if above > below:
    units, rest = divmod(above, below)
    found += [
      f'{sign}{units} {rest}/{below}',
      rf'{sign}{units}\frac{{{rest}}}{{{below}}}',
      rf'{sign}{units} \frac{{{rest}}}{{{below}}}',
    ]
  return pick(rng, found)


def spellings(rng: Rng, value: Fraction, count: int = 3) -> list[str]:
  """Writes a value several times."""
  return [spell(rng, value) for _ in range(count)]


def neighbours(rng: Rng, value: Fraction) -> list[Fraction]:
  """Returns values that differ from a value, but resemble it."""
  below = value.denominator
  found = {
    -value,
    value + 1,
    value * 10,
    value + Fraction(pick(rng, (-1, 1)), below * whole(rng, 1, 3)),
    1 / value if value else Fraction(1),
    Fraction(round(value * 100), 100),
    Fraction(value.numerator),
  }
  return sorted(found - {value})


def numbers(rng: Rng) -> Form:
  """Fractions, mixed numbers and decimals."""
  value = fraction(rng, pick(rng, (9, 40, 3000)))
  other = [spell(rng, each) for each in neighbours(rng, value)]
  return Form(spellings(rng, value, 4), other)


def repeating(rng: Rng) -> Form:
  """Repeating decimals."""
  start, period = whole(rng, 0, 9), whole(rng, 1, 8)
  value = Fraction(period, 9) + start
  tenth = Fraction(start * 10, 10) + Fraction(period, 90)
  return Form(
    [rf'{start}.\overline{{{period}}}', *spellings(rng, value)],
    [
      f'{start}.{str(period) * 4}',
      rf'{start}.0\overline{{{period}}}',
      *spellings(rng, tenth, 1),
    ],
  )


def grouped(value: int, mark: str) -> str:
  """Writes thousands separators."""
  return f'{value:,}'.replace(',', mark)


def thousands(rng: Rng) -> Form:
  """Large numbers, with separators and as powers of ten."""
  size = whole(rng, 3, 9)
  value = whole(rng, 10**size, 10 ** (size + 1) - 1) * pick(rng, (-1, 1))
  if rng.random() < 0.3:
    value = nonzero(rng, 99) * 10**size
  front = decimal(Fraction(value, 10**6))
  digits = [*str(abs(value))]
  digits[0], digits[-1] = digits[-1], digits[0]
  others = {value + 1, -value, value * 10, value // 10, value + 1000}
  others = others | {int(''.join(digits)), -int(''.join(digits))}
  return Form(
    [
      str(value),
      f'{value}.0',
      *(grouped(value, mark) for mark in (',', '{,}', r',\!', r'\,')),
      rf'{front} \times 10^6',
      rf'{front}\cdot 10^{{6}}',
      f'{front}×10⁶',
      f'{front}e6',
      f'{front} million',
    ],
    [
      grouped(each, pick(rng, (',', '{,}', '')))
      for each in sorted(others - {value})
    ],
  )


def percent(rng: Rng) -> Form:
  """Percentages, also as fractions of one."""
  value = Fraction(whole(rng, 1, 999), pick(rng, (1, 1, 2, 4, 10)))
  share, text = value / 100, decimal(value)
  other = {value + 1, value / 10, value * 10, value + Fraction(1, 10)}
  return Form(
    [f'{text}%', rf'{text}\%', f'{text} percent', rf'{text}\text{{ percent}}'],
    [f'{decimal(each)}%' for each in sorted(other)]
    + [rf'{decimal(value + 3)}\%', *spellings(rng, share + 7, 2)],
  )


def share(rng: Rng) -> Form:
  """A percentage and the fraction that it is, but no third number.

  50% equals 1/2 and 50, so that this equality is not transitive.
  """
  value = Fraction(whole(rng, 1, 999), pick(rng, (1, 2, 4)))
  texts = [f'{decimal(value)}%', spell(rng, value / 100)]
  return Form(texts, [spell(rng, value / 100 + pick(rng, (-2, 3, 5)))])


# Spellings of units, one unit a line; no two lines are the same size.
UNITS = [
  line.split(',')
  for line in (
    'km,kilometers,kilometer',
    'm,meters',
    'cm,centimeters',
    'mm,millimeters',
    'kg,kilograms',
    'hours,hrs,hour',
    'minutes,min,minute',
    'sec,s,seconds',
    'cm^2,square centimeters,sq cm',
    'm^3,cubic meters',
    'mph,miles per hour',
    'apples,apple',
    'boxes,box',
    'children,child',
  )
]


def units(rng: Rng) -> Form:
  """Numbers with units; both texts have one, and none is converted."""
  value = abs(fraction(rng, 90))
  one, other = (UNITS[i] for i in rng.choice(len(UNITS), 2, replace=False))

  def write(number: Fraction, names: Sequence[str]) -> str:
    text, name = spell(rng, number), pick(rng, names)
    if len(name.partition('^')[0]) == 1 and '\\' in text:
      name = names[-1]  # the m of \\frac{1}{2} m may be a variable
    if '^' in name:
      base, _, power = name.partition('^')
      shapes = (rf'{text} \text{{ {base}}}^{power}', f'{text} {name}')
    else:
      shapes = (f'{text} {name}', rf'{text}\text{{ {name}}}')
      shapes += (rf'{text}\,\text{{{name}}}', rf'{text} \mathrm{{{name}}}')
    return pick(rng, shapes)

  near = [each for each in neighbours(rng, value) if each > 0]
  return Form(
    [write(value, one) for _ in range(4)],
    [write(each, one) for each in near] + [write(value, other)],
  )


def degrees(rng: Rng) -> Form:
  """Angles in degrees."""
  value = Fraction(whole(rng, 1, 720), pick(rng, (1, 1, 2)))
  signs = (r'^\circ', r'^{\circ}', '°', ' degrees', r'\degree', r' ^ \circ')
  signs = (*signs, r'\text{ degrees}')
  other = [each for each in neighbours(rng, value) if decimal(each)]
  return Form(
    [f'{decimal(value)}{sign}' for sign in signs],
    [f'{decimal(each)}{pick(rng, signs)}' for each in other],
  )


def money(rng: Rng) -> Form:
  """Amounts of money."""
  cents = whole(rng, 1, 9_999_999)
  if rng.random() < 0.4:
    cents *= 100

  def write(amount: int, name: str, sign: str) -> str:
    text = f'{amount // 100:,}'
    if rng.random() < 0.3:
      text = text.replace(',', '')
    elif rng.random() < 0.3:
      text = text.replace(',', '{,}')
    if amount % 100 or rng.random() < 0.3:
      text += f'.{amount % 100:02d}'
    shapes = (f'{sign}{text}', f'{text} {name}', rf'{text}\text{{ {name}}}')
    return pick(rng, shapes)

  name, sign = pick(rng, [('dollars', '$'), ('dollars', r'\$'), ('euros', '€')])
  foreign = ('euros', '€') if name == 'dollars' else ('dollars', r'\$')
  near = {cents + 1, cents + 100, cents * 10, cents + 1000}
  return Form(
    [write(cents, name, sign) for _ in range(4)],
    [write(each, name, sign) for each in sorted(near)]
    + [write(cents, *foreign)],
  )


def based(value: int, base: int) -> str:
  """Writes a value in a base up to ten."""
  digits = ''
  while value:
    value, digit = divmod(value, base)
    digits = f'{digit}{digits}'
  return digits


def bases(rng: Rng) -> Form:
  """Numerals in a base that is not ten, always with the base written."""
  base = whole(rng, 2, 9)
  value = whole(rng, 10, 5000)
  low = str(base).translate(str.maketrans('0123456789', '₀₁₂₃₄₅₆₇₈₉'))
  marks = (f'_{base}', f'_{{{base}}}', low, f' base {base}', f'_{{({base})}}')
  marks = (*marks, rf'_{{\text{{base }}{base}}}', rf' \text{{ (base {base})}}')
  text = based(value, base)
  other = [f'{based(each, base)}_{base}' for each in (value + 1, value * base)]
  # The same numeral in a higher base is a larger number.
  return Form(
    [f'{text}{mark}' for mark in marks],
    [*other, f'{text}_{{{base + 1}}}', f'{text}_{base + 2}'],
  )


def powers(rng: Rng) -> Form:
  """Powers, and their values."""
  base, power = whole(rng, 2, 12), whole(rng, 2, 11)
  value = base**power
  return Form(
    [
      f'{base}^{power}',
      f'{base}^{{{power}}}',
      f'{base}**{power}',
      str(value),
      f'{value:,}',
      rf'{base}^{{{power - 1}}}\cdot {base}',
      rf'\frac{{{base}^{{{power + 1}}}}}{{{base}}}',
      rf'\left({base}^{{{power}}}\right)',
    ],
    [
      f'{base}^{{{power + 1}}}',
      f'{base + 1}^{power}',
      f'-{base}^{power}',
      f'{base}^{{-{power}}}',
      str(value + base),
      str(base) + str(power + 13),
    ],
  )


def text(rng: Rng) -> Form:
  """Words, letters of choices and names."""
  words = (
    *('Tuesday', 'Evelyn', 'odd', 'even', 'yes', 'no', 'neither', 'ellipse'),
    *('parabola', 'hyperbola', 'isosceles triangle', 'Monday', 'blue', 'red'),
    *('no solution', 'infinitely many solutions', 'the first one', 'north'),
  )
  if rng.random() < 0.4:
    words = [*'ABCDEFGH']
  one, other = (str(each) for each in rng.choice(words, 2, replace=False))

  def write(word: str) -> list[str]:
    found = [word, rf'\text{{{word}}}', rf'\textbf{{{word}}}', f' {word} ']
    found += [rf'\mathrm{{{word}}}', word.lower(), word.upper(), f'**{word}**']
    if len(word) == 1:
      found += [f'({word})', rf'\text{{({word})}}', rf'(\mathrm{{{word}}})']
    return found

  return Form(write(one), write(other))


def ratios(rng: Rng) -> Form:
  """Ratios in lowest terms, and ratios of another value."""
  a, b = whole(rng, 1, 40), whole(rng, 1, 40)
  marks = (':', ' : ', r'\colon ', ' to ')
  other = [(a, b + 1), (a + 1, b), (a + 7, b)] + ([(b, a)] if a != b else [])
  return Form(
    [f'{a}{mark}{b}' for mark in marks],
    [f'{c}{pick(rng, marks)}{d}' for c, d in other],
  )


FLAT: tuple[Callable[[Rng], Form], ...] = (
  *(numbers, numbers, repeating, thousands, percent, share, units, degrees),
  *(money, bases, powers, text, ratios),
)
