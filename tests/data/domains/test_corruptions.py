"""Tests equations in sentences and planted errors on examples by hand."""

import re
from fractions import Fraction

import numpy as np
import pytest

from prm_jax.data.domains import corruptions, equations

STEPS = (
  'His sister has 13 - 10 = 3 books.',
  'A box of 13 with 3 more is 13 + 3 = 16 books.',
  'The shelf next to it has 2 * 20 = 40 books.',
  'Together, that is 16 + 40 = 56 books.',
  'The answer is 56.',
)
QUESTION = [Fraction(x) for x in (13, 10, 20)]
# The numbers of STEPS in reading order are 0-2: 13 10 3; 3-7: 13 3 13 3 16;
# 8-10: 2 20 40; 11-13: 16 40 56; 14: 56.
LINKS = corruptions.Links(
  {4: 2, 6: 2, 11: 7, 12: 10, 14: 13},
  frozenset({0, 1, 3, 4, 5, 6, 9, 11, 12, 14}),
)


def plant(kind, seed):
  """Returns the right solution, an error of a kind, and the wrong steps."""
  solution = equations.parse(STEPS)
  rng = np.random.default_rng(seed)
  error = corruptions.plant(solution, LINKS, kind, QUESTION, rng)
  return solution, error, corruptions.render(solution, error)


def integers(text):
  return [int(x) for x in re.findall(r'\d+', text)]


@pytest.mark.parametrize(
  ('text', 'values'),
  [
    ('so 11-7=4 people', [(4, 4)]),
    ('240 mushroom / 4 mushroom/minute = 60 minutes', [(60, 60)]),
    ('$9 * $20 = $180.', [(180, 180)]),
    ('is $270,000 x 7/100 = $18,900.', [(18900, 18900)]),
    ('4 times 13 equals 52', [(52, 52)]),
    ('12 \xf7 6 = 2 times per year', [(2, 2)]),
    ('€82/hour * 12 hours = €984', [(984, 984)]),
    ('350 puppies / 1400 puppies * 100% = 25%', [(25, 25)]),
    ('2(24+7) = 62', [(62, 62)]),
    ('8 - 3 - 2 = 3 and 2 + 3 * 4 = 14', [(3, 3), (14, 14)]),
    ('On day 3 there were 5 + 5 = 11 more', [(10, 11)]),
    ('12\xf71/2=24', [(6, 24)]),
    ('Jennifer = 444 points', []),
    ('137 + T = 222', []),
    ('3 + 4 = 5 + 2', []),
    ('a 29-minute call', []),
  ],
)
def test_equations_are_found_and_evaluated(text, values):
  solution = equations.parse((text,))
  found = [
    (
      equations.evaluate(solution, e, solution.values, {}),
      solution.values[e.result],
    )
    for e in solution.equations
  ]
  assert found == values
  assert equations.consistent(solution) == all(a == b for a, b in values)
  assert ''.join(solution.steps[0]) == text


def test_division_by_zero_is_inconsistent():
  assert not equations.consistent(equations.parse(('5 / 0 = 5',)))


@pytest.mark.parametrize(
  ('value', 'like', 'text'),
  [
    (Fraction(5), '3', '5'),
    (Fraction(5), '28.0', '5.0'),
    (Fraction(5, 4), '28.0', '1.25'),
    (Fraction(96), '32.00', '96.00'),
    (Fraction(1234567), '270,000', '1,234,567'),
    (Fraction(1, 20), '1.5', '0.05'),
  ],
)
def test_numbers_keep_their_style(value, like, text):
  assert equations.format_number(value, like) == text
  assert equations.numbers(text) == [value]


@pytest.mark.parametrize('seed', range(8))
def test_a_wrong_result_is_repeated_wherever_the_right_one_was(seed):
  solution, found, steps = plant('wrong_result', seed)
  a, b, c, d = (integers(steps[i])[-1] for i in range(4))
  if (at := found.steps[0]) != 0:
    assert a == 3
  if at != 1:
    assert b == 13 + a
  if at != 2:
    assert c == 40
  if at != 3:
    assert d == b + c
  assert [a - 3, b - 13 - a, c - 40, d - b - c].count(0) == 3
  assert steps == (
    f'His sister has 13 - 10 = {a} books.',
    f'A box of 13 with {a} more is 13 + {a} = {b} books.',
    f'The shelf next to it has 2 * 20 = {c} books.',
    f'Together, that is {b} + {c} = {d} books.',
    f'The answer is {d}.',
  )
  wrong = {i for i in range(5) if steps[i] != STEPS[i]}
  assert found.changed_steps(solution) == wrong
  assert min(wrong) == at


@pytest.mark.parametrize('seed', range(8))
def test_the_second_of_two_errors_restores_the_answer(seed):
  solution, found, steps = plant('two_errors', seed)
  first, last = found.steps
  assert first < last
  assert steps[4] == 'The answer is 56.'
  bad = {
    i
    for i, e in enumerate(equations.parse(steps).equations)
    if equations.evaluate(solution, e, found.values, {})
    != found.values[e.result]
  }
  assert bad == {first, last}
  assert (last > 1 or first == 0) and last != 2


def test_a_wrong_operator_is_calculated_as_it_is_written():
  for seed in range(8):
    _, found, steps = plant('wrong_operator', seed)
    at = found.steps[0]
    a, b, c = integers(steps[at])[-3:]
    symbol = re.findall(r'[-+*/]', steps[at])[0]
    assert symbol != re.findall(r'[-+*/]', STEPS[at])[0]
    value = {'+': a + b, '-': a - b, '*': a * b, '/': Fraction(a, b)}[symbol]
    assert value == c
    assert integers(steps[at])[:-1] == integers(STEPS[at])[:-1]


def test_a_new_operator_does_not_change_the_order_of_operations():
  # A plus for the first sign would turn (2 * 3) * 4 into 2 + (3 * 4).
  solution = equations.parse(('It is 2 * 3 * 4 = 24.', 'The answer is 24.'))
  links = corruptions.Links({4: 3}, frozenset({4}))
  for seed in range(20):
    rng = np.random.default_rng(seed)
    found = corruptions.plant(solution, links, 'wrong_operator', [], rng)
    text = corruptions.render(solution, found)
    assert equations.consistent(equations.parse(text))


def test_after_a_skipped_step_its_operand_is_used():
  texts = {plant('skipped_step', seed)[2] for seed in range(20)}
  end = 'The shelf next to it has 2 * 20 = 40 books.'
  for operand in (13, 10):
    total = 13 + operand
    assert (
      f'A box of 13 with {operand} more is 13 + {operand} = {total} books.',
      end,
      f'Together, that is {total} + 40 = {total + 40} books.',
      f'The answer is {total + 40}.',
    ) in texts
  # The error counts as made in the step that uses the number.
  for seed in range(20):
    solution, found, _ = plant('skipped_step', seed)
    assert found.dropped < found.steps[0] == min(found.changed_steps(solution))


def test_wrong_operands_are_known_numbers_and_copies_have_a_wrong_digit():
  known = {13, 10, 20, 3, 16, 40}
  for seed in range(12):
    _, found, steps = plant('wrong_operand', seed)
    at = found.steps[0]
    before, now = integers(STEPS[at]), integers(steps[at])
    changed = [y for x, y in zip(before, now, strict=True) if x != y]
    assert len(changed) == 2 and changed[0] in known
    _, found, steps = plant('copied_number', seed)
    at = found.steps[0]
    before, now = integers(STEPS[at]), integers(steps[at])
    changed = [(x, y) for x, y in zip(before, now, strict=True) if x != y]
    (right, copy), _ = changed
    # The 2 is not in the question, so it is not copied and cannot be miscopied.
    assert right in known
    same = sorted(str(right)) == sorted(str(copy))
    zero = copy in (right * 10, right / 10)
    digits = sum(x != y for x, y in zip(str(right), str(copy), strict=False))
    assert same or zero or digits == 1


def test_a_solution_that_offers_no_error_gives_none():
  solution = equations.parse(('There are 5.', 'The answer is 5.'))
  links = corruptions.Links({1: 0}, frozenset({1}))
  for kind in corruptions.KINDS:
    rng = np.random.default_rng(0)
    assert corruptions.plant(solution, links, kind, [], rng) is None
