"""The calculator: tables, Python's Fraction, GSM8K and ProcessBench."""

import collections
import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data.verify import expressions
from prm_jax.data.verify.calculator import (
  CheckedEquation,
  check_equations,
  check_step,
)
from tests.shared.cpu_time import cpu_seconds
from tests.shared.real_data import shared

HOLDS = """
3 + 5 = 8 (1)
3 + 1 = 2(2)
10/3 = 3.33
10/3 = 3.3333
10/4 = 2.5 rounded up = 3
20/3 = 6.7
1/8 = 0.13
-10/3 = -3.33
48 / 2 = 24 clips in May.
20% of 50 = 10
50 / 200 = 25%
2/3 = 67%
40/60 = .667 = 67%
7/8 = 88%
5/6 = 83.3%
1/5 * 100 = 20%
10% + 20% = 30%
3/4 of 20 = 15
1/2% of 200 = 1
1/2% = 0.005
3/4% * 400 = 3
100 * 1/2% = 0.5
2 1/2% of 400 = 10
She pays 1/4% of $400 = $1.
12 / 50% = 24
12/50% = 24
168/20% = 840
1 1/2 + 1/2 = 2
10/4 = 2 1/2
2½ * 2 = 5
$1,000 * 2 = $2,000
12/60 = $0.2 per minute
He pays 3 bags x 4 dollars/bag = $12.
240 boys - (40 boys + 100 girls) = 240 boys - 140 boys = 100
3 \u00d7 4 ÷ 2 \u2212 1 = 5
2^10 = 1024
2**3**2 = 512
-2^2 = -4
-5 + 3 = -2
2 - -3 = 5
(3 + 4) * 2 = 14
2(3 + 4) = 14
- 5 + 3 = 8
Step 1: 3 + 4 = 7
Day 2 - 3 + 4 = 7
2. 3 + 4 = 7
**3 + 4 = 7**
3 + 4 = 7 apples - 2 of them green
24/2 = 12 pages (12 * 2 = 24)
2 + 3 = 5 = 4 + 1
10/3 ≈ 3.33
$\\frac{1}{2} + 1\\frac{1}{2} = 2$
$3 \\times 4 = 12$ and \\(10 \\div 4 = 2.5\\)
0.2 x 50 = $<<0.2*50=10>>10
\\(10 \\div 4 = 2.5\\)
So \\[ 3 + 4 = 7 \\] apples
He ends with a total of \\(3 + 4 = 7\\) apples
$$\\frac{4}{8}=\\frac{1}{2}.$$
So x = 9 * 15 * 4 * 36 = $\\boxed{19440}$.
$\\frac{3}{4} + \\frac18 = \\boxed{\\frac{7}{8}}$
$12 \\cdot 3 = \\boxed{36\\text{ cm}}$ long
So $9 - 3 - 4 = \\boxed{9 - 7}$.
1/7 = 0.\\overline{142857}
\\frac{1}{6} = 0.1\\overline{6}
5\\frac12 - 2 = 3\\frac12
First, 5\\frac12 * 2 = 11
3.2. 1\\frac{1}{3} * 2 = 2\\frac{2}{3}
PM^2 = 3^2 + 4^2 = 25 or PM = 5
7 + 1 + 4 things to do = 12 things
He spent $29x 10 = $290
1/3 * 100 = 0.33 * 100 = 33.33
0.5 - 0.4 = 0.09999999999999998
80 / 26.666666666666668 = 3
"""
FAILS = """
10/3 = 3.34
10/3 = 3
9/4 = 2.3
7/2 = 4
20/3 = 6.66
2/3 = 66%
7/8 = 87%
5/6 = 83.4%
3 + 4 = 8
48 / 2 = 23 clips in May.
20% of 50 = 12
2 + 3 = 5 = 6
-2^2 = 4
3 bags x 4 apples/bag = 13 apples
$1,000 * 2 = $2,001
Step 1: 3 * 4 = 13
3 + 4 = 7 but <<3+4=8>>8
3 + 4 = 7, so 7 * 2 = 15.
(3 + 4 = 8)
1 1/2 + 1/2 = 3
0.1 + 0.2 = 0.31
She pays (3 + 4) = 8 dollars
\\(10 \\div 4 = 2\\)
So \\[ 3 + 4 = 8 \\] apples
He ends with a total of \\(3 + 4 = 8\\) apples
So x = 9 * 15 * 4 * 36 = $\\boxed{29160}$.
$12 \\cdot 3 = \\boxed{\\$35}$
1/7 = 0.\\overline{142856}
1\\frac12 * 2 = 1
First, 5\\frac12 * 2 = 5
Day 2 - 3 + 4 = 8
49 + 49 + 1 = 99 + 1
7 * 24 * 48 = 2^8 * 3^2 * 7
3.25 * 4 = 13.01
2 / 8 = 4
We calculate incorrectly 3(6) - 8 = 12
"""
# An earlier version of the calculator called each of these wrong.
OTHER_NOTATIONS = """
3 + 1 = 2 (2)
6 - 2·(3 + 1) = -1 (2)
f'(3) = 4 + 5
f''(3) = 4 + 5
\\sqrt[9]{10^{72}} = 10^8
\\sqrt[3]{-8} = -2 + 0
0.(3) * 3 = 1
1/3 = 0.\\dot{3}
1 hour and 20 minutes + 50 minutes = 130 minutes
1 hour and 20 minutes + 50 minutes = 2 hours and 10 minutes
80 + 50 = 2 hours and 10 minutes
5 feet 3 inches + 4 inches = 67 inches
90 + 30 = 2 hours
So 10x(3) = 31
So 10x 3 = 31
4 * 3 * 2 * 1 = 4!
a2^4 = 7!
7!(1 + 8 + 8*9) = 408240
\\frac{1}{2} ab = 4
$\\boxed{11} \\times \\boxed{20} = 2 \\times 6$
$5 \\times \\boxed{2 + 1} = 12$
$6 \\cdot 4 = \\boxed{10 - 4} \\cdot 4$
$\\frac{6}{2} = \\boxed{1 + 1} \\times 2 - 1$
$5 + 3 = \\boxed{} + 2$
$5 + 3 = \\boxed{}$ apples, of 5 and 3
$5 \\cdot 3 = \\boxed{}5$
$5 \\cdot 3 = \\boxed{\\quad}$
Here $\\boxed{n}$ is the sum of the factors of n: $1 + 11 = \\boxed{11}$.
a = 1/5 or a = 2
2^{2abcd} = 2^3
3/4Papillon = 12
The sum of weeks 1-2 = 26
(0-2), (1-2), (5-2) = -2, -1, 3
12 + 8 = 20 / 4
Then 7 * 103 = 105. This is false.
Then 2 * 3 = 14, a contradiction.
Is 3 + 4 = 8?
In base 7, we have 44 * 55 = 3506
50 / 8 = 6 each, with 2 remaining
333.33 * 12 = 4000
452 / (1 + 0.05)^14 = 452 / 1.98
2 * 6 = 2^6 + 6^2
3 \\ast 4 = 19
3^25^2 = 15^2
80\\frac{1}{2}(\\frac{1}{5}) = 8
At 5 thousand dollars a day, he loses 5 * 3 = $15,000
The difference is 398 - 540 = 142
Cost (3) = 4 * 5
min (3 + 4) = 3
3/4 = 12 apples, so 1/4 = 4 apples
9 + 5 = 2 o'clock
Suppose 3 + 4 = 8.
"""
NOTHING_TO_CHECK = """

There are no numbers here.
x = 5
2x + 3 = 7
3ab + 2 = 8
the profit - 5 + 3 = 9
half of 10 + 2 = 7
twice 4 + 1 = 9
two + 3 = 5
14 hours = 14 * 60 minutes
5 * 20 cents = $1
500 thousand * 2 = 1 million
100 - 20% = 80
5 / 0 = 0
6 / 2(3) = 1
28 / 1/5 = 140
2/1/2% = 100
1/2% of 200 = 2
4/5% = 80
$6/8% = $75
12/50% = 25
10/100% * 5 = 0.50
4 / 3 = 1 and 1/3
10/3 ≈ 3.4
8 * 0.5 = 16.66...
0900-0130 = 0730
1:30 + 1 = 2:30
f(3) + 1 != 2
sqrt(16) + 1 = 5
2^(1/2) = 1.41
a_1 + 3 = 4
1,00 + 1 = 2
floor(7/2) = 3
floor (7/2) = 3
So ceil(7/2) = 4.
round(10/4) = 3
round (10/4) = 3
abs(3-5) = 2
exp(2-2) = 1
arcsin(1/2) = 30
phi(3*4) = 4
\\lfloor 7/2 \\rfloor = 3
floor(7/2) + 1 = 4
<<floor(7/2)=3>>
10 choose 3 * 2 = 240
2.5 + 0 rounded up = 3
7/2 = 4 (rounded up)
Rounding up, he needs 7/2 = 4 boxes.
7/2 = 3 full weeks
"""


def lines(table):
  return table.strip('\n').split('\n')


@pytest.mark.parametrize('step', lines(HOLDS))
def test_steps_that_hold(step):
  assert check_step(step) is True, check_equations(step)


@pytest.mark.parametrize('step', lines(FAILS))
def test_steps_that_do_not_hold(step):
  assert check_step(step) is False, check_equations(step)


@pytest.mark.parametrize('step', lines(NOTHING_TO_CHECK))
def test_a_step_with_another_reading_gets_no_verdict(step):
  assert check_step(step) is None, check_equations(step)


@pytest.mark.parametrize('step', lines(OTHER_NOTATIONS))
def test_a_right_step_in_another_notation_is_not_called_wrong(step):
  assert check_step(step) is None, check_equations(step)


def test_aligned_lines_are_a_chain():
  step = r"""\begin{align*}
  x &= 2 + 3 \\[2pt]
    &= %d \\
  A - B &= (1 + 3) \\
        &\qquad - (0 + 2) = 2
  \end{align*}"""
  assert check_step(step % 5) is True
  assert check_step(step % 6) is False


def test_a_formula_ends_where_its_delimiters_are():
  step = '\\[ 3 - 10 = -7 \\] Substituting \\(A = 0\\)'
  assert check_equations(step) == [CheckedEquation('3 - 10', '-7', True)]


def test_a_chain_is_checked_pair_by_pair():
  assert check_equations('so 12-3 = 9 = 10-2 dollars') == [
    CheckedEquation('12-3', '9', True),
    CheckedEquation('9', '10-2', False),
  ]


@pytest.mark.parametrize(
  'step',
  [
    '9' * 10_000 + ' + 1 = 5',
    '9' * 99 + '*9' * 10_000 + ' = 1',
    '2^(2^(2^100)) = 5',
    '2' + '^9' * 5_000 + ' = 5',
    '9^9^9^9 = 1',
    '(' * 5_000 + '1+1' + ')' * 5_000 + ' = 2',
    '-' * 10_000 + '1 = 1',
    '1+' * 9_000 + '1 = 9001',
    '\\frac{' * 3_000 + '1+1',
    '=\\boxed{{1' * 2_000 + '1+1',
    '=\\boxed{1' + '{}' * 8_000 + '1+1',
    '1 = ' * 5_000,
    ' ' * 19_000 + '=',
    '\n' * 19_000 + '1+1',
    '1+1 = 2 ' * 1_000_000,
    '1.' * 9_000 + '= 1+1',
    '\\(' * 9_000 + '1+1',
    '$$' * 9_000 + '1+1',
    '\\quad ' * 3_000 + '1+1',
    ('0.25*' * 7 + '0.25 ≈ 1\n') * 400,
  ],
  ids=lambda step: step[:12].strip() or 'blank',
)
def test_hostile_steps_are_unreadable_and_fast(step):
  assert cpu_seconds(lambda: check_step(step)) < 2
  assert check_step(step) in (None, '1 = 1' in step or None)


def expressions_and_values():
  """Draws (text, exact value); the value is None for a division by zero."""
  decimals = st.decimals(0, 999, places=2).map(
    lambda d: (f'{d:.2f}', Fraction(d))
  )
  whole = st.integers(0, 9999).map(lambda n: (f'{n:,}', Fraction(n)))

  def larger(inner):
    return st.tuples(inner, st.sampled_from('+-*/'), inner).map(combine)

  return st.recursive(st.one_of(whole, decimals), larger, max_leaves=8)


def combine(parts):
  (left, a), operator, (right, b) = parts
  text = f'({left} {operator} {right})'
  if a is None or b is None or (operator == '/' and b == 0):
    return text, None
  value = {'+': a + b, '-': a - b, '*': a * b, '/': a / b if b else None}
  return text, value[operator]


@given(expressions_and_values())
@settings(max_examples=200, deadline=None)
def test_expressions_have_the_value_that_fraction_gives(drawn):
  text, exact = drawn
  if exact is None:
    with pytest.raises(expressions.Unreadable):
      expressions.exact_value(text)
  else:
    assert expressions.exact_value(text) == exact


@given(st.text('0123456789.+-*/^()=$% xof\n<>{}\\frac,', max_size=60))
@settings(max_examples=300, deadline=None)
def test_checking_any_text_raises_nothing(text):
  for left, right, holds in check_equations(text):
    assert holds in (True, False, None)
    assert isinstance(left, str) and isinstance(right, str)


@given(st.integers(1, 999), st.integers(1, 999), st.integers(2, 6))
@settings(max_examples=200, deadline=None)
def test_a_decimal_holds_only_if_rounded_correctly(above, below, places):
  exact = Fraction(above, below)
  digits = int(exact * 10**places + Fraction(1, 2))
  for shift in (-1, 0, 1):
    written = f'{(digits + shift) // 10**places}.'
    written += f'{(digits + shift) % 10**places:0{places}}'
    assert check_step(f'{above} / {below} = {written}') is (shift == 0)


def test_worked_answers_of_gsm8k():
  """Checks every tenth answer.

  In all of them 23,714 of 23,716 marks hold; the other two are whole-number
  divisions (//). Of 21,200 plain equations 22 do not hold, and nearly all of
  those are their authors' errors.
  """
  verdicts, in_text = collections.Counter(), collections.Counter()
  lines = shared('gsm8k/train.jsonl').read_text().splitlines()[::10]
  for line in lines:
    for step in json.loads(line)['answer'].split('\n')[:-1]:
      marks = step.count('<<')
      found = check_equations(step)
      verdicts.update(e.holds for e in found[:marks])
      in_text.update(e.holds for e in found[marks:])
  assert verdicts[False] == 0
  assert verdicts[None] <= 0.0002 * verdicts.total()
  assert verdicts[True] > 2300
  assert in_text[False] < 0.003 * in_text[True]
  assert in_text[True] > 2000


@pytest.mark.parametrize(
  ('half', 'called_wrong', 'first_errors'),
  # What is read was tested on the first half while it was written.
  [(0, 3, 29), (1, 0, 18)],
)
def test_steps_of_processbench(half, called_wrong, first_errors):
  """Checks every second chain.

  Before the first error that people found, only three steps of all chains are
  called wrong, each for an equation that is false (C(9, 7) = 9 * 8 * ... * 4 /
  7! = 36), and none for its notation.
  """
  verdicts = {True: collections.Counter(), False: collections.Counter()}
  for name in ('gsm8k', 'math'):
    chains = json.loads(shared(f'processbench/{name}.json').read_text())
    for chain in chains[half::2]:
      first_error = chain['label']
      for i, step in enumerate(chain['steps']):
        if first_error in (-1, i) or i < first_error:
          verdicts[i != first_error][check_step(step)] += 1
  assert verdicts[True][False] <= called_wrong
  # In the first half 348 and 18 before formulas in \( \) were read.
  assert verdicts[True][True] > 600
  assert verdicts[False][False] >= first_errors
