"""Equality of answers: a table of pairs, hostile texts, a pool of answers."""

import json
import pathlib
import signal
import threading
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data.verify import expressions, symbolic
from prm_jax.data.verify.answers import compare, equal
from prm_jax.data.verify.calculator import check_step
from prm_jax.data.verify.quantities import read_quantity
from tests.shared.cpu_time import cpu_seconds
from tests.shared.real_data import shared

pytest.importorskip('math_verify', reason="pip install 'prm_jax[verify]'")

TABLE = pathlib.Path(__file__).with_name('answer_pairs.tsv')
PAIRS = [line.split('\t') for line in TABLE.read_text().splitlines()]
SECONDS = 1.0
PAIR_SECONDS = 3.0  # a busy machine takes more than one for some pairs


def test_the_table_is_large_and_has_both_kinds():
  same = sum(sign == '=' for sign, _, _ in PAIRS)
  assert same > 150
  assert len(PAIRS) - same > 130
  assert len({tuple(pair) for pair in PAIRS}) == len(PAIRS)


def test_pairs_of_the_table_have_their_verdict_in_both_orders():
  wrong = set()
  for sign, a, b in PAIRS:
    verdict = compare(a, b, PAIR_SECONDS)
    backwards = verdict  # a pair at the time limit is not tried twice
    if verdict.how != 'time limit':
      backwards = compare(b, a, PAIR_SECONDS)
    if {verdict.equal, backwards.equal} != {sign == '='}:
      wrong.add((a, b))
  assert wrong == set()


@pytest.mark.parametrize(
  ('text', 'value'),
  [
    (r'12 \frac{3}{5}', Fraction(63, 5)),
    (r'12\,\frac{3}{5}', Fraction(63, 5)),
    (r'-15\frac{3}{5}', Fraction(-78, 5)),
    (r'6\frac15', Fraction(31, 5)),
    (r'1,234\frac12', Fraction(2469, 2)),
    (r'\frac{15}4', Fraction(15, 4)),
    (r'2^3\frac{1}{2}', Fraction(4)),
    (r'2\frac{7}{2}', Fraction(7)),
    (r'\frac12\frac13', Fraction(1, 6)),
  ],
)
def test_a_whole_number_before_a_proper_fraction_is_added(text, value):
  assert expressions.exact_value(text) == value


def test_the_calculator_reads_mixed_numbers():
  assert check_step(r'5\frac12 - 2 = 3\frac12') is True
  assert check_step(r'1\frac12 * 2 = 1') is False


def test_a_long_text_equals_only_itself():
  assert equal('9' * 10_000, '9' * 10_000)
  assert not equal('9' * 10_000, '9' * 9_999)
  assert not equal('((((' * 400, '))))' * 400, SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize(
  'piece',
  [
    *('1', 'A1', '½', '<½', '1,', '\\frac{', '\\sqrt(', '\\text{', '(', '$'),
    *('^', '\\,', 'x=', '\\pm ', '.\\overline{1}', '1%', '\\cup ', '|', '&'),
    '1 a',
  ],
)
def test_hostile_texts_take_little_time_to_read(piece):
  text = (piece * 2_000)[:2_000]
  found = []

  def ask():
    found.append(equal(text, '0', seconds=0.3))
    found.append(equal('0', text, seconds=0.3))

  # The time of math-verify, another process, is limited and does not count.
  assert cpu_seconds(ask) < 0.25
  assert found == [False, False]


@pytest.mark.parametrize(
  ('tower', 'other'), [('9^{9^{9^9}}', '9^{9^9}'), ('10^{10^{10}}', '10')]
)
def test_after_a_pair_at_the_time_limit_the_next_is_decided(tower, other):
  assert equal('2\\sqrt{2}', '\\sqrt{8}')  # math-verify runs
  start = time.monotonic()
  assert compare(tower, other, SECONDS) == (False, 'time limit')
  assert time.monotonic() - start < SECONDS + 2
  assert compare('2\\sqrt{2}', '\\sqrt{8}') == (True, 'math-verify')


def test_the_time_limit_holds_for_sets_of_sets():
  inner = '\\{' + ','.join(str(i) for i in range(10, 22)) + '\\}'
  a = '\\{' + ','.join([inner] * 40) + '\\}'

  def ask():
    assert compare(a, a.replace('21', '22'), 0.02) == (False, 'time limit')

  assert cpu_seconds(ask) < 1


@given(st.text('0123456789.,/%$()[]{}\\ ^x=abcorn', max_size=40))
@settings(max_examples=300, deadline=None)
def test_reading_any_text_raises_nothing_and_it_equals_itself(text):
  found = read_quantity(text)
  assert found is None or isinstance(found.value, Fraction)
  if text.strip() and not set(text) & set('.\\$'):
    assert equal(text, text, SECONDS)


# Pieces of answers, so that two random texts often nearly agree.
PIECES = st.lists(
  st.sampled_from(
    (
      *('1', '2', '12', '0.5', ',', ', ', '+', '-', '/', '=', ':', ' ', '^2'),
      *('x', 'i', 'y = ', 'x = ', ' = x'),
      *('(', ')', '[', ']', '\\{', '\\}', '|'),
      *('\\frac12', '\\sqrt{2}', '\\pi', '\\pm ', '_7', '<', '\\leq ', '%'),
      *(' or ', ' and ', ' cm', '^\\circ', '\\text{ m}', '\\cup ', '\\infty'),
    )
  ),
  min_size=1,
  max_size=6,
).map(''.join)


@given(PIECES, PIECES)
@settings(max_examples=300, deadline=None)
def test_equality_is_symmetric(a, b):
  assert compare(a, b) == compare(b, a)


@given(st.fractions(), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_a_fraction_equals_its_expansions(number, factor):
  above, below = number.numerator * factor, number.denominator * factor
  assert equal(
    f'{above}/{below}', f'\\frac{{{number.numerator}}}{{{number.denominator}}}'
  )
  assert not equal(f'{above}/{below}', f'{above + 1}/{below}')


def test_the_verdict_names_the_comparison_that_decided():
  assert compare('$1,000', '1000') == (True, 'number')
  assert compare('(1, 0.5)', '(1,1/2)') == (True, 'parts')
  assert compare('No solution.', 'no solutions') == (True, 'text')
  assert compare('x+1', '1+x') == (True, 'math-verify')


def test_a_closed_child_starts_again():
  worker = symbolic.Worker()
  assert worker.equal('x+1', '1+x', 60)
  child = worker._process
  worker.close()
  assert child.returncode is not None
  assert not worker.equal('x+1', '2+x', 60)
  worker.close()


def test_after_an_interrupt_the_next_pair_gets_its_own_reply():
  worker = symbolic.Worker()
  assert worker.equal('x+1', '1+x', 60)
  child = worker._process
  child.send_signal(signal.SIGSTOP)  # its reply is then late

  def interrupt():
    while not worker._lock.locked():
      time.sleep(0.01)
    time.sleep(0.1)  # it waits for the reply
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

  # In the background of a shell Python starts with this signal ignored.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with pytest.raises(KeyboardInterrupt):
      threading.Thread(target=interrupt).start()
      worker.equal('x+1', '1+x', 60)
  finally:
    signal.signal(signal.SIGINT, before)
  child.send_signal(signal.SIGCONT)
  assert not worker.equal('x+1', '2+x', 60)
  assert child.returncode is not None
  worker.close()


def test_a_child_that_was_killed_from_outside_starts_again():
  worker = symbolic.Worker()
  assert worker.equal('x+1', '1+x', 60)
  worker._process.kill()
  worker._process.wait()
  with pytest.raises(symbolic.TimedOut):
    worker.equal('x+1', '2+x', 60)
  assert worker.equal('x+1', '1+x', 60)
  worker.close()


def test_stored_verdicts_of_a_gsm8k_pool():
  """Our verdicts on the extracted numbers equal the stored ones.

  With the text that the solutions themselves give after "A:" or "The answer
  is", 7,724 of 7,730 agree. The other six ("520 - 480 = 40." for 40) are right;
  the stored answers took the first number.
  """
  differ, count = [], 0
  for line in (
    shared('best_of_n/gsm8k_test_pool.jsonl').read_text().splitlines()
  ):
    row = json.loads(line)
    for candidate in row['candidates']:
      if candidate['answer'] is not None:
        count += 1
        ours = equal(candidate['answer'], row['gold'], SECONDS)
        if ours != candidate['correct']:
          differ.append((candidate['answer'], row['gold'], ours))
  assert count > 7000
  assert differ == []
