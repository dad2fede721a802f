r"""Writes derivations whose equations are all true, as people write them.

    a random sum -> Derivation: its sides, each equal to the next
      -> text, with prose, dates and numbers around it

Every side is evaluated in exact fractions while it is written. `calculator.py`
has them checked.
"""

import dataclasses
from collections.abc import Callable
from fractions import Fraction

from tests.campaigns.answer_forms import Rng, decimal, pick, whole

# Signs are written here as people write them.
# ruff: noqa: RUF001
_PLAIN = {'+': ' + ', '-': ' - ', '*': ' * ', '/': ' / '}
# The signs of a style, by operation.
STYLES = (
  _PLAIN,
  _PLAIN | {'*': ' x '},
  _PLAIN | {'*': ' × ', '/': ' ÷ ', '-': ' − '},
  _PLAIN | {'*': '·', '-': ' – '},
  {'+': '+', '-': '-', '*': '*', '/': '/'},
  _PLAIN | {'*': r' \times ', '/': r' \div '},
  {'+': '+', '-': '-', '*': r' \cdot ', '/': 'frac'},
)
_RANK = {'+': 1, '-': 1, '*': 2, '/': 2}
_UNITS = ('apples', 'km', 'hours', 'pages', 'cookies', 'dollars', 'meters')


@dataclasses.dataclass(frozen=True)
class Tree:
  """Holds a number, or an operation on two trees."""

  value: Fraction
  sign: str = ''
  parts: tuple['Tree', ...] = ()


@dataclasses.dataclass(frozen=True)
class Derivation:
  """Holds texts of one value, joined by equality signs.

  Attributes:
    sides: as written.
    last: writes the last side for any value.
    exact: the value of all sides.
    equals: the equality sign.
  """

  sides: tuple[str, ...]
  last: Callable[[Fraction], str]
  exact: Fraction
  equals: str = ' = '

  def with_last(self, value: Fraction) -> 'Derivation':
    """Returns the derivation with another value on its last side."""
    return dataclasses.replace(self, sides=(*self.sides[:-1], self.last(value)))


def number(value: Fraction, grouped: bool) -> str:
  """Writes a finite decimal; with thousands separators if `grouped`."""
  text = decimal(value)
  assert text is not None
  front, point, places = text.partition('.')
  return (
    f'{int(front):,}{point}{places}' if grouped and abs(value) >= 1000 else text
  )


def _tree(rng: Rng, depth: int) -> Tree:
  if depth == 0 or rng.random() < 0.2:
    high = pick(rng, (9, 9, 99, 999, 4999))
    value = Fraction(whole(rng, 1, high))
    if rng.random() < 0.15:
      value += Fraction(whole(rng, 1, 99), 100)
    return Tree(value)
  while True:
    sign, one, two = (
      pick(rng, '+-*/'),
      _tree(rng, depth - 1),
      _tree(rng, depth - 1),
    )
    value = {
      '+': lambda a, b: a + b,
      '-': lambda a, b: a - b,
      '*': lambda a, b: a * b,
      '/': lambda a, b: a / b if b else Fraction(1, 3),
    }[sign](one.value, two.value)
    # Numbers as in a school book: finite decimals of few places.
    if abs(value) < 10**7 and (value * 10**4).denominator == 1:
      return Tree(value, sign, (one, two))


def _write(
  tree: Tree, style: dict[str, str], leaf: Callable[[Tree], str]
) -> str:
  if not tree.parts:
    return leaf(tree)
  one, two = (_write(part, style, leaf) for part in tree.parts)
  if style[tree.sign] == 'frac':
    return rf'\frac{{{one}}}{{{two}}}'
  rank, (left, right) = _RANK[tree.sign], tree.parts
  opening, closing = (r'\left(', r'\right)') if '\\' in style['*'] else '()'
  if left.sign and _RANK[left.sign] < rank:
    one = f'{opening}{one}{closing}'
  # A negative number on the right is put in brackets, and so is a - (b + c).
  if two.startswith('-') or (right.sign and _RANK[right.sign] <= rank):
    two = f'{opening}{two}{closing}'
  return f'{one}{style[tree.sign]}{two}'


def _reduced(tree: Tree) -> Tree:
  """Carries out the innermost operation on the left."""
  if all(not part.parts for part in tree.parts):
    return Tree(tree.value)
  one, two = tree.parts
  parts = (_reduced(one), two) if one.parts else (one, _reduced(two))
  return dataclasses.replace(tree, parts=parts)


def chains(rng: Rng) -> Derivation:
  """Sums, differences, products and quotients, carried out one by one."""
  tree = _tree(rng, 3)
  while not tree.parts:
    tree = _tree(rng, 3)
  style, grouped = pick(rng, STYLES), rng.random() < 0.4
  sides = []
  while tree.parts:
    sides.append(_write(tree, style, lambda leaf: number(leaf.value, grouped)))
    tree = _reduced(tree)
  if rng.random() < 0.5:
    sides = sides[:1]
  last = lambda value: number(value, grouped)  # noqa: E731
  return Derivation((*sides, last(tree.value)), last, tree.value)


def with_units(rng: Rng) -> Derivation:
  """Sums of amounts with a unit, and multiples of them."""
  unit, style = pick(rng, _UNITS), pick(rng, STYLES[:6])
  tag = rf'\text{{ {unit}}}' if '\\' in style['*'] else f' {unit}'
  a, b, c = (Fraction(whole(rng, 1, 400)) for _ in range(3))
  last = lambda value: f'{number(value, False)}{tag}'  # noqa: E731
  times = style['*']
  left, exact = pick(
    rng,
    (
      (f'{a}{tag}{style["+"]}{b}{tag}', a + b),
      (f'{a}{tag}{style["+"]}{b}{tag}{style["+"]}{c}{tag}', a + b + c),
      (f'{a + b}{tag}{style["-"]}{b}{tag}', a),
      (f'{a}{times}{b}{tag}', a * b),
      (f'{a} boxes{times}{b}{tag}', a * b),
      (f'{a} days{times}{b} {unit}/day', a * b),
    ),
  )
  return Derivation((left, last(exact)), last, exact)


def money(rng: Rng) -> Derivation:
  """Prices, in dollars and cents."""
  sign, style = pick(rng, ('$', r'\$', '€', '£')), pick(rng, STYLES[:6])
  a, b = (Fraction(whole(rng, 1, 99_999), 100) for _ in range(2))
  count, grouped = whole(rng, 2, 60), rng.random() < 0.5

  def last(value: Fraction) -> str:
    text = f'{sign}{float(value):{"," if grouped else ""}.2f}'
    return text.replace(f'{sign}-', f'-{sign}')

  left, exact = pick(
    rng,
    (
      (f'{last(a)}{style["+"]}{last(b)}', a + b),
      (f'{last(a + b)}{style["-"]}{last(b)}', a),
      (f'{count}{style["*"]}{last(a)}', a * count),
      (f'{last(a)}{style["*"]}{count}', a * count),
      (f'{last(a * count)}{style["/"]}{count}', a),
    ),
  )
  return Derivation((left, last(exact)), last, exact)


def percentages(rng: Rng) -> Derivation:
  """Percentages of a number, and numbers as percentages."""
  rate, base = whole(rng, 1, 150), Fraction(whole(rng, 1, 400) * 5)
  exact = base * rate / 100
  mark = pick(rng, ('%', r'\%', ' percent'))
  last = lambda value: number(value, False)  # noqa: E731
  sides = (
    f'{rate}{mark} of {base}',
    f'{rate}{mark} * {base}',
    f'{base} × {rate}{mark}',
    rf'{rate}\% \times {base}',
    f'{rate}/100 * {base}',
    rf'\frac{{{rate}}}{{100}} \times {base}',
  )
  if rng.random() < 0.3:
    above, below = whole(rng, 1, 60), pick(rng, (2, 4, 5, 8, 10, 20, 25))
    exact = Fraction(above * 100, below)
    last = lambda value: f'{number(value, False)}%'  # noqa: E731
    sides = (f'{above}/{below}', f'{above} / {below} * 100')
    sides += (f'{above} ÷ {below}', rf'\frac{{{above}}}{{{below}}}')
  return Derivation((pick(rng, sides), last(exact)), last, exact)


def fractions(rng: Rng) -> Derivation:
  """Sums and products of fractions and mixed numbers."""
  tex, sign = rng.random() < 0.5, pick(rng, '+-*')

  def write(value: Fraction) -> str:
    minus, size = '-' if value < 0 else '', abs(value)
    above, below = size.numerator, size.denominator
    if below == 1:
      return f'{minus}{above}'
    units, rest = divmod(above, below)
    if units and mixed:
      part = rf'\frac{{{rest}}}{{{below}}}' if tex else f' {rest}/{below}'
      return f'{minus}{units}{part}'
    if tex:
      return rf'{minus}\frac{{{above}}}{{{below}}}'
    return f'{minus}{above}/{below}'

  mixed = rng.random() < 0.4
  a, b = (Fraction(whole(rng, 1, 30), whole(rng, 2, 12)) for _ in range(2))
  exact = {'+': a + b, '-': a - b, '*': a * b}[sign]
  one, two = write(a), write(b)
  if sign == '*' and not tex:  # 1/2 * 3/4 has one reading, and so has (1/2)
    one, two = pick(rng, ((one, two), (f'({one})', f'({two})')))
  signs = STYLES[5] if tex else pick(rng, (STYLES[0], STYLES[2]))
  return Derivation((f'{one}{signs[sign]}{two}', write(exact)), write, exact)


def rounded(rng: Rng) -> Derivation:
  """Quotients that are said to be rounded."""
  above, below = whole(rng, 1, 999), pick(rng, (3, 6, 7, 9, 11, 12, 13, 17))
  exact, places = Fraction(above, below), whole(rng, 0, 4)

  def last(value: Fraction) -> str:
    digits = (value * 10**places + Fraction(1, 2)).__floor__()
    text = f'{digits:0{places + 1}d}'
    return f'{text[:-places]}.{text[-places:]}' if places else text

  left = pick(
    rng,
    (
      f'{above} / {below}',
      f'{above}/{below}',
      f'{above} ÷ {below}',
      rf'\frac{{{above}}}{{{below}}}',
      rf'{above} \div {below}',
      f'({above}) / ({below})',
    ),
  )
  # Without a word only cents and more are rounded: 45/12 is not 3.8.
  signs = [' ≈ ', r' \approx ', ' is about ', ' = about ', ' ~= ']
  signs += [' = approximately ', ' = roughly '] + (
    [' = '] if places > 1 else []
  )
  return Derivation((left, last(exact)), last, exact, pick(rng, signs))


def powers(rng: Rng) -> Derivation:
  """Powers."""
  base, power = whole(rng, 2, 15), whole(rng, 2, 5)
  exact = Fraction(base**power)
  low = '⁰¹²³⁴⁵'[power]
  sides = (f'{base}^{power}', f'{base}**{power}', f'{base}{low}')
  sides += (f'{base}^{{{power}}}', '*'.join([str(base)] * power))
  last = lambda value: number(value, False)  # noqa: E731
  return Derivation((pick(rng, sides), last(exact)), last, exact)


KINDS = (
  *(chains, chains, with_units, money, percentages, fractions, rounded, powers),
)
_BEFORE = (
  *('', '', 'So ', 'Therefore, ', 'The total is ', 'First, we get ', 'Thus: '),
  *('Step 3: ', '2) ', '(a) ', '- ', '* ', '7. ', '3.2. ', 'Day 2 - ', '> '),
  *('On 3/4/2020 he has ', 'On 2020-03-04, ', 'In 2019 she paid ', 'x = '),
  *('At 10:30, ', 'Since he has 12 marbles, ', 'For the 3rd day: ', '[2] '),
  *('Equation (3) gives ', 'From (1), ', 'Page 12: ', '**Total:** ', 'y='),
  *('In 2019, 5 people left. ', 'Version 1.2: ', 'No. 5: ', 'There are 4: '),
  *('He was born on 4 May 1990, and now ', 'By 12/31, ', 'Total cost = '),
)
_AFTER = (
  *('', '', '.', '.', ' in total.', ' (see page 12).', ', so 3 are left.'),
  *(' on 5/6/2021.', ' at 9:30.', ' as of 2019.', '; next', '\n', ' [1]'),
  *(', which is 5 more than before.', ', then 7 more come.', ' (2)', '\n\n'),
  *('. In 2020, 4 remain.', '\n2. Next', '\n- 5 are left', '**'),
)


def text(rng: Rng, derivation: Derivation) -> str:
  """Writes a derivation with something around it."""
  joined = derivation.equals.join(derivation.sides)
  tex = '\\' in joined.replace(r'\$', '').replace(r'\%', '')
  simple = len(derivation.sides) == 2 and derivation.equals == ' = '
  shape = pick(rng, ('plain', 'plain', 'formula', 'mark', 'lines'))
  if shape == 'formula' and (tex or '$' not in joined):
    opening, closing = pick(rng, ((r'\(', r'\)'), (r'\[ ', r' \]'), ('$', '$')))
    joined = f'{opening}{joined}{closing}'
  elif shape == 'mark' and simple and not tex and '$' not in joined:
    left, right = derivation.sides
    joined = f'{left} = <<{left}={right}>>{right}'
  elif shape == 'lines' and tex:
    rest = r' \\ '.join(f'&= {side}' for side in derivation.sides[1:])
    if derivation.equals == ' = ':
      joined = rf'\begin{{align*}} {derivation.sides[0]} {rest} \end{{align*}}'
  return f'{pick(rng, _BEFORE)}{joined}{pick(rng, _AFTER)}'
