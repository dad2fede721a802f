r"""Writes final answers of several parts, see `answer_forms.py`."""

# ruff: noqa: RUF001 (people write ∪)
from collections.abc import Callable
from fractions import Fraction

from tests.campaigns.answer_forms import (
  VARIABLES,
  Form,
  Rng,
  fraction,
  neighbours,
  pick,
  spell,
  whole,
)


def _distinct(rng: Rng, count: int) -> list[Fraction]:
  found: list[Fraction] = []
  while len(found) < count:
    value = fraction(rng)
    found += [value] if value not in found else []
  return found


def _listed(rng: Rng, values: list[Fraction]) -> str:
  return pick(rng, (', ', ',  ')).join(spell(rng, each) for each in values)


def tuples(rng: Rng) -> Form:
  """Points and longer tuples."""
  values = [fraction(rng) for _ in range(whole(rng, 2, 4))]
  at = whole(rng, 0, len(values) - 1)
  other = [
    [*values[:at], each, *values[at + 1 :]]
    for each in neighbours(rng, values[at])
  ]
  other += [[*values, Fraction(1)], values[::-1], values[1:] + values[:1]]
  return Form(
    [f'({_listed(rng, values)})' for _ in range(3)],
    [f'({_listed(rng, each)})' for each in other if each != values],
  )


def sets(rng: Rng) -> Form:
  """Sets with and without braces, in any order."""
  values = _distinct(rng, whole(rng, 2, 5))

  def write(items: list[Fraction]) -> str:
    items = [items[i] for i in rng.permutation(len(items))]
    if rng.random() < 0.2:
      items = [*items, items[0]]
    inside = _listed(rng, items)
    shapes = [rf'\{{{inside}\}}', f'{{{inside}}}', inside]
    if len(set(items)) == len(items):
      first, _, last = inside.rpartition(',')
      shapes += [f'{first} and {last}', rf'{first}\text{{ or }}{last}']
      shapes.append(' or '.join(f'x = {spell(rng, it)}' for it in items))
    return pick(rng, shapes)

  near = [each for each in neighbours(rng, values[0]) if each not in values]
  other = [[each, *values[1:]] for each in near]
  other.append([*values, max(values) + 1])
  other += [values[1:]] if len(values) > 2 else []
  return Form([write(values) for _ in range(4)], [write(it) for it in other])


def plus_minus(rng: Rng) -> Form:
  r"""Two numbers on either side of a third."""
  middle, far = whole(rng, -20, 20), whole(rng, 1, 20)
  low, high = middle - far, middle + far
  return Form(
    [rf'{middle} \pm {far}', f'{low}, {high}', rf'\{{{high}, {low}\}}'],
    [rf'{middle} \pm {far + 1}', f'{low}, {high + 1}', f'{low}, {low - 1}'],
  )


def intervals(rng: Rng) -> Form:
  """Intervals, also as inequalities; some without an end."""
  low, high = sorted(_distinct(rng, 2))
  left, right = pick(rng, '(['), pick(rng, ')]')
  name, flip = pick(rng, VARIABLES[:3]), {'(': '[', '[': '(', ')': ']'}
  flip |= {']': ')'}

  def write(a: str, low: Fraction, high: Fraction, b: str) -> str:
    return f'{a}{spell(rng, low)}, {spell(rng, high)}{b}'

  same = [write(left, low, high, right) for _ in range(3)]
  same.append(f'{name} \\in {same[0]}')
  if left + right == '()':
    same.append(f'{low} < {name} < {high}')
  if left + right == '[]':
    same.append(rf'{low} \leq {name} \leq {high}')
  return Form(
    same,
    [
      write(flip[left], low, high, right),
      write(left, low, high, flip[right]),
      write(left, low - 1, high, right),
      write(left, low, high + Fraction(1, 3), right),
    ],
  )


def rays(rng: Rng) -> Form:
  """Unions of two rays, in any order."""
  low, high = sorted(_distinct(rng, 2))
  right, left = pick(rng, ')]'), pick(rng, '([')

  def write(low: Fraction, right: str, left: str, high: Fraction) -> str:
    parts = [
      rf'(-\infty, {spell(rng, low)}{right}',
      rf'{left}{spell(rng, high)}, \infty)',
    ]
    if rng.random() < 0.5:
      parts.reverse()
    text = pick(rng, (r' \cup ', r'\cup', ' ∪ ')).join(parts)
    return text.replace(r'\infty', pick(rng, (r'\infty', '∞')))

  return Form(
    [write(low, right, left, high) for _ in range(3)],
    [
      write(low - 1, right, left, high),
      write(low, right, left, high + 1),
      write(low, ')' if right == ']' else ']', left, high),
      rf'(-\infty, {low}{right}',
    ],
  )


def matrices(rng: Rng) -> Form:
  """Matrices and columns."""
  height, width = whole(rng, 1, 3), whole(rng, 1, 3)
  if height == width == 1:
    height = 2
  cells = [[fraction(rng) for _ in range(width)] for _ in range(height)]

  def write(cells: list[list[Fraction]]) -> str:
    kind = pick(rng, ('pmatrix', 'bmatrix', 'pmatrix', 'array'))
    end = pick(rng, (r' \\ ', r'\\', r' \\[4pt] '))
    rows = end.join(
      pick(rng, (' & ', '&')).join(spell(rng, each) for each in row)
      for row in cells
    )
    if kind == 'array':
      columns = 'c' * len(cells[0])
      inside = rf'\begin{{array}}{{{columns}}} {rows} \end{{array}}'
      return rf'\left( {inside} \right)'
    return rf'\begin{{{kind}}} {rows} \end{{{kind}}}'

  changed = [list(row) for row in cells]
  changed[-1][-1] = pick(rng, neighbours(rng, cells[-1][-1]))
  turned = [list(column) for column in zip(*cells, strict=True)]
  other = [changed, [*cells, cells[0]], turned]
  return Form(
    [write(cells) for _ in range(3)],
    [write(each) for each in other if each != cells],
  )


def named(rng: Rng) -> Form:
  """Values with a name, on either side."""
  name, value = pick(rng, ('x', 'y', r'\theta', 'k')), fraction(rng)
  # A bare value equals any name's, so that only named ones are compared.
  return Form(
    [f'{name} = {spell(rng, value)}', f'{name}={spell(rng, value)}'],
    [f'{name} = {spell(rng, it)}' for it in neighbours(rng, value)],
  )


PARTS: tuple[Callable[[Rng], Form], ...] = (
  *(tuples, sets, plus_minus, intervals, rays, matrices, named),
)
