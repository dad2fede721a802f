r"""Writes final answers with roots and letters, see `answer_forms.py`."""

import math
from collections.abc import Callable
from fractions import Fraction

from tests.campaigns.answer_forms import (
  VARIABLES,
  Form,
  Rng,
  nonzero,
  pick,
  spell,
  whole,
)


def roots(rng: Rng) -> Form:
  """Square roots."""
  inside, factor = pick(rng, (2, 3, 5, 6, 7, 10, 11, 13)), whole(rng, 2, 12)
  square = factor**2 * inside
  return Form(
    [
      rf'{factor}\sqrt{{{inside}}}',
      rf'\sqrt{{{square}}}',
      f'{factor}*sqrt({inside})',
      f'{factor}√{inside}',
      f'sqrt({square})',
      rf'{factor} \cdot \sqrt{{{inside}}}',
      rf'\frac{{{factor * inside}}}{{\sqrt{{{inside}}}}}',
    ],
    [
      rf'{factor + 1}\sqrt{{{inside}}}',
      rf'\sqrt{{{square + 1}}}',
      rf'-{factor}\sqrt{{{inside}}}',
      rf'{factor}\sqrt{{{inside + 1}}}',
      rf'\sqrt[3]{{{square}}}',
      f'{(square**0.5):.4f}',
    ],
  )


def surds(rng: Rng) -> Form:
  """Sums of a number and a root."""
  a, b, below = whole(rng, 1, 30), nonzero(rng, 9), whole(rng, 2, 9)
  inside = pick(rng, (2, 3, 5, 7))
  root = rf'\sqrt{{{inside}}}'
  times = f'{b:+d}{root}'
  front = f'{b}{root}'
  return Form(
    [
      rf'\frac{{{a}{times}}}{{{below}}}',
      rf'\frac{{{front}+{a}}}{{{below}}}',
      f'({a}{times})/{below}',
      rf'\frac{{{a}}}{{{below}}} + \frac{{{front}}}{{{below}}}',
      rf'\frac{{{2 * a}{2 * b:+d}{root}}}{{{2 * below}}}',
    ],
    [
      rf'\frac{{{a}{-b:+d}{root}}}{{{below}}}',
      rf'\frac{{{a + 1}{times}}}{{{below}}}',
      rf'\frac{{{a}{times}}}{{{below + 1}}}',
    ],
  )


def circles(rng: Rng) -> Form:
  r"""Multiples of \pi."""
  a, b = whole(rng, 1, 30), whole(rng, 2, 12)
  value = Fraction(a, b)
  a, b = value.numerator, value.denominator
  return Form(
    [
      rf'\frac{{{a}\pi}}{{{b}}}',
      rf'\frac{{{a}}}{{{b}}}\pi',
      rf'{a}\pi/{b}',
      f'{a}π/{b}',
      rf'\frac{{{3 * a}\pi}}{{{3 * b}}}',
      f'{a}*pi/{b}',
    ],
    [
      rf'\frac{{{a + 1}\pi}}{{{b}}}',
      rf'\frac{{{a}\pi}}{{{b + 1}}}',
      rf'-\frac{{{a}\pi}}{{{b}}}',
      rf'\frac{{{a}}}{{{b}}}',
      rf'\frac{{{a}\pi^2}}{{{b}}}',
    ],
  )


def complexes(rng: Rng) -> Form:
  """Complex numbers."""
  a, b = nonzero(rng, 40), whole(rng, 2, 40)
  return Form(
    [f'{a}+{b}i', f'{b}i{a:+d}', rf'{a} + {b} \cdot i', f'{a} + {b} i'],
    [f'{a}-{b}i', f'{-a}+{b}i', f'{b}{a:+d}i' if a != b else '1', f'{a + b}'],
  )


def _terms(coefficients: list[int], name: str) -> list[str]:
  """Returns the terms of a polynomial, each with its sign."""
  found = []
  for power, number in enumerate(coefficients):
    if number:
      sign = '-' if number < 0 else '+'
      size = str(abs(number)) if abs(number) > 1 or not power else ''
      letter = ('', name)[power] if power < 2 else f'{name}^{power}'
      found.append(f'{sign}{size}{letter}')
  return found


def _sum(rng: Rng, terms: list[str]) -> str:
  terms = [terms[i] for i in rng.permutation(len(terms))]
  text = ''.join(terms).removeprefix('+')
  if rng.random() < 0.5:
    text = text[0] + text[1:].replace('+', ' + ').replace('-', ' - ')
  return text


def polynomials(rng: Rng) -> Form:
  """Polynomials with their terms in any order."""
  name = pick(rng, VARIABLES)
  numbers = [nonzero(rng, 12) for _ in range(whole(rng, 2, 4))]
  at = whole(rng, 0, len(numbers) - 1)

  def changed(by: int) -> list[str]:
    return _terms([n + by * (i == at) for i, n in enumerate(numbers)], name)

  terms = _terms(numbers, name)
  other = [changed(1), changed(-1), _terms([0, *numbers], name)]
  return Form(
    [_sum(rng, terms) for _ in range(4)],
    [_sum(rng, each) for each in other if each],
  )


def products(rng: Rng) -> Form:
  """Products of two linear factors, and the polynomials that they are."""
  name = pick(rng, VARIABLES)
  a, b, c, d = (nonzero(rng, 6) for _ in range(4))
  one, two = _terms([b, a], name), _terms([d, c], name)
  whole_ = [b * d, a * d + b * c, a * c]
  more = [whole_[0] + 1, whole_[1], whole_[2]]

  def factored(one: list[str], two: list[str]) -> str:
    mark = pick(rng, ('', r' \cdot ', '*'))
    return f'({_sum(rng, one)}){mark}({_sum(rng, two)})'

  return Form(
    [
      factored(one, two),
      factored(two, one),
      _sum(rng, _terms(whole_, name)),
    ],
    [
      _sum(rng, _terms(more, name)),
      factored(_terms([b + 7, a], name), two),
      factored(one, one + two),
    ],
  )


def inequalities(rng: Rng) -> Form:
  """Inequalities of one variable."""
  name, value = pick(rng, VARIABLES[:2]), whole(rng, -30, 30)
  sign, back = pick(rng, ((r'\leq', r'\geq'), ('<', '>'), (r'\geq', r'\leq')))
  other = {r'\leq': '<', '<': r'\leq', r'\geq': '>'}[sign]
  return Form(
    [
      f'{name} {sign} {value}',
      f'{value} {back} {name}',
      f'{name}{sign} {value}',
    ],
    [
      f'{name} {back} {value}',
      f'{name} {sign} {value + 1}',
      f'{name} {other} {value}',
    ],
  )


def nested(rng: Rng) -> Form:
  """Points and sets of roots, surds and multiples of \\pi."""
  one, two = pick(rng, (roots, surds, circles))(rng), circles(rng)
  while set(one.same) & set(two.same):  # a set of equals has one element
    two = circles(rng)
  opening, closing = pick(rng, (('(', ')'), (r'\{', r'\}')))

  def write(a: list[str], b: list[str]) -> str:
    items = [pick(rng, a), pick(rng, b)]
    if opening != '(' and rng.random() < 0.5:
      items.reverse()
    return f'{opening}{", ".join(items)}{closing}'

  return Form(
    [write(one.same, two.same) for _ in range(3)],
    [write(one.same, two.other), f'{opening}{one.same[0]}{closing}'],
  )


def measured(rng: Rng) -> Form:
  """Roots and multiples of \\pi with a unit."""
  form = pick(rng, (roots, circles))(rng)
  name, far = pick(rng, (('cm', 'km'), ('feet', 'inches'), ('meters', 'feet')))

  def write(text: str, name: str) -> str:
    return text + pick(rng, (rf'\text{{ {name}}}', rf' \text{{ {name}}}'))

  # In plain text, pi cm and pi/4 cm may be products.
  same = [each for each in form.same if each[-1] in '})i']
  other = [each for each in form.other if each[-1] in '})i']
  return Form(
    [write(each, name) for each in same],
    [write(each, name) for each in other] + [write(same[0], far)],
  )


def counted(rng: Rng) -> Form:
  """Factorials, binomials and logarithms, and their values."""
  n, k = whole(rng, 4, 9), whole(rng, 2, 3)
  ways, base = math.comb(n, k), whole(rng, 2, 9)
  same, value = pick(
    rng,
    (
      ([f'{n}!'], math.factorial(n)),
      ([rf'\binom{{{n}}}{{{k}}}', rf'\dbinom{n}{k}'], ways),
      ([rf'\log_{base} {base**n}', rf'\log_{{{base}}}({base**n})'], n),
      ([rf'\sqrt[3]{{{n**3}}}', rf'|-{n}|', rf'\left|{n}\right|'], n),
    ),
  )
  other = [spell(rng, Fraction(value + by)) for by in (1, -1, n)]
  return Form([*same, str(value)], other)


SYMBOLIC: tuple[Callable[[Rng], Form], ...] = (
  *(roots, surds, circles, complexes, polynomials, products, inequalities),
  *(nested, measured, counted),
)
