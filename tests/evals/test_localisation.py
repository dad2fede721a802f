"""ProcessBench's protocol, by hand and by trying every threshold."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.evals import localisation as loc
from prm_jax.evals import steps
from prm_jax.runtime.errors import UserError
from tests.shared.real_data import shared


@st.composite
def chains(draw):
  """Chains of both kinds, scores with many ties: scores, mask, labels."""
  score = st.integers(0, 5).map(lambda x: x / 5)
  rows = draw(
    st.lists(st.lists(score, min_size=1, max_size=4), min_size=2, max_size=8)
  )
  labels = [draw(st.integers(-1, len(row) - 1)) for row in rows]
  labels[0], labels[1] = -1, draw(st.integers(0, len(rows[1]) - 1))
  return *steps.pad(rows), np.array(labels)


def test_predictions_by_hand():
  scores, mask = steps.pad([[0.9, 0.2, 0.1], [0.9], [0.4, 0.9], [0.5, 0.6]])
  got = loc.predict_first_error(scores, mask, 0.5)
  np.testing.assert_array_equal(got, [1, -1, 0, -1])  # 0.5 is not < 0.5


def test_padding_is_never_predicted():
  scores = np.array([[0.9, 0.0], [0.9, np.nan]])
  mask = np.array([[True, False], [True, False]])
  got = loc.predict_first_error(scores, mask, 0.5)
  np.testing.assert_array_equal(got, [-1, -1])


def test_localisation_by_hand():
  labels = np.array([2, 0, 1, 3, -1, -1])
  predictions = np.array([2, 1, -1, 0, -1, 0])
  assert loc.localisation(predictions, labels) == {
    'acc_error': 0.25,
    'acc_correct': 0.5,
    'f1': 2 * 0.25 * 0.5 / 0.75,
    'count_error': 4,
    'count_correct': 2,
  }


def test_confusion_by_position_by_hand():
  rows = [[0.9, 0.2, 0.1], [0.3, 0.9], [0.9, 0.8, 0.7], [0.9, 0.5]]
  scores, mask = steps.pad(rows)
  labels = np.array([1, -1, 2, 1])
  read = mask.sum(1)
  found = loc.confusion_by_position(scores, mask, labels, 0.5, read, rows=2)
  names = ('right_kept', 'right_flagged', 'wrong_kept', 'wrong_flagged')
  assert [[row[name] for name in names] for row in found] == [
    [3, 1, 0, 0],  # the second chain's first step is a false alarm
    # Second and third steps: chain 0 is found at 1, its third step is not
    # counted; chain 2 is missed at 2; 0.5 is not < 0.5.
    [2, 0, 2, 1],
  ]
  assert [row['and_later'] for row in found] == [False, True]
  # Of the last chain only the first step was read.
  read[3] = 1
  [_, less] = loc.confusion_by_position(scores, mask, labels, 0.5, read, rows=2)
  assert [less[name] for name in names] == [2, 0, 1, 1]
  every = loc.confusion_by_position(scores, mask, labels, 0.5, read, rows=3)
  assert [row['and_later'] for row in every] == [False] * 3


def test_f1_without_a_match_is_zero_not_a_division_by_zero():
  with np.errstate(all='raise'):
    result = loc.localisation(np.array([1, 0]), np.array([0, -1]))
  assert (result['acc_error'], result['acc_correct']) == (0, 0)
  assert result['f1'] == 0


def test_undefined_is_none():
  only_right = loc.localisation(np.array([-1, 0]), np.array([-1, -1]))
  assert only_right['acc_error'] is None
  assert only_right['acc_correct'] == 0.5
  assert only_right['f1'] is None
  only_wrong = loc.localisation(np.array([0]), np.array([0]))
  assert only_wrong['acc_correct'] is None
  assert only_wrong['f1'] is None


def test_threshold_by_hand():
  # Right for t in (0.3, 0.6]: the first flags step 1, the second nothing.
  scores, mask = steps.pad([[0.8, 0.3], [0.6, 0.7]])
  threshold, f1 = loc.choose_threshold(scores, mask, np.array([1, -1]))
  assert (threshold, f1) == (pytest.approx(0.45), 1)


@pytest.mark.parametrize(
  ('share', 'flagged'), [(0.1, 0), (0.25, 1), (0.5, 1), (0.6, 3), (0.9, 4)]
)
def test_a_share_of_the_chains_is_flagged_by_hand(share, flagged):
  """Two chains have the same lowest score, so both are flagged or none."""
  scores, mask = steps.pad([[0.9, 0.6], [0.2], [0.4, 0.5], [0.4]])
  threshold = loc.threshold_of_share(scores, mask, share)
  found = loc.predict_first_error(scores, mask, threshold)
  assert (found >= 0).sum() == flagged


@settings(deadline=None, max_examples=100)
@given(chains(), st.floats(0.01, 0.99), st.randoms(use_true_random=False))
def test_no_threshold_flags_a_share_that_is_nearer(data, share, random):
  scores, mask, _ = data
  read = np.array([random.randint(0, n) for n in mask.sum(1)])
  if not read.any():
    with pytest.raises(UserError, match='no step was read'):
      loc.threshold_of_share(scores, mask, share, read)
    return

  def miss(threshold):
    guess = loc.predict_first_error(scores, mask, threshold, read)
    return abs((guess >= 0).sum() / (read > 0).sum() - share)

  chosen = miss(loc.threshold_of_share(scores, mask, share, read))
  # Scores are multiples of 0.2, so these thresholds cover all predictions.
  assert chosen <= min(miss(t) for t in np.arange(13) / 10) + 1e-9


def test_equal_f1_goes_to_the_smallest_threshold():
  # No threshold matches both kinds; all have F1 0, the lowest score wins.
  scores, mask = steps.pad([[0.2, 0.8], [0.1]])
  result = loc.choose_threshold(scores, mask, np.array([1, -1]))
  assert result == (0.1, 0)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_threshold_between_adjacent_floats(dtype):
  # The midpoint of one of the two pairs rounds down and that of the other up.
  a = dtype(0.7)
  b = np.nextafter(a, dtype(1))
  c = np.nextafter(b, dtype(1))
  mask, labels = np.ones((2, 2), bool), np.array([1, -1])
  for low, high in ((a, b), (b, c)):
    scores = np.array([[high, low], [high, high]], dtype)
    threshold, f1 = loc.choose_threshold(scores, mask, labels)
    assert f1 == 1
    assert loc.at_threshold(scores, mask, labels, threshold)['f1'] == 1


def test_threshold_is_not_rounded_to_the_scores_precision():
  a = np.float32(0.7)
  b = np.nextafter(a, np.float32(1))
  c = np.nextafter(b, np.float32(1))
  for low, high in ((a, b), (b, c)):
    threshold = (float(low) + float(high)) / 2  # no float32
    scores = np.array([[low], [high]], np.float32)
    got = loc.predict_first_error(scores, np.ones((2, 1), bool), threshold)
    np.testing.assert_array_equal(got, [0, -1])


@settings(deadline=None, max_examples=100)
@given(chains())
def test_threshold_is_the_exact_maximum(data):
  scores, mask, labels = data
  threshold, f1 = loc.choose_threshold(scores, mask, labels)
  chosen = loc.at_threshold(scores, mask, labels, threshold)
  assert chosen['threshold'] == threshold
  assert chosen['f1'] == f1
  # Scores are multiples of 0.2, so these thresholds cover all predictions.
  for t in np.arange(13) / 10:
    other = loc.at_threshold(scores, mask, labels, t)['f1']
    assert 0 <= other <= f1
    if (mask & (scores >= t) & (scores < threshold)).any():
      assert other < f1


def test_baselines_by_hand():
  mask = steps.pad([[1], [1, 1], [1, 1, 1], [1, 1, 1]])[1]
  labels = np.array([0, -1, 1, -1])
  got = loc.baselines(mask, labels, position=2)
  assert got['all_right']['acc_correct'] == 1
  assert got['all_right']['f1'] == 0
  assert got['first_step']['acc_error'] == 0.5
  assert got['first_step']['f1'] == 0
  # Only the two chains of three steps have step 2; the shorter are 'right'.
  assert got['position'] == {
    'acc_error': 0,
    'acc_correct': 0.5,
    'f1': 0,
    'count_error': 2,
    'count_correct': 2,
    'position': 2,
  }
  # Guesses among P + 1: (1/2 + 1/4) / 2 and (1/3 + 1/4) / 2.
  assert got['random']['acc_error'] == pytest.approx(3 / 8)
  assert got['random']['acc_correct'] == pytest.approx(7 / 24)
  assert got['random']['f1'] == pytest.approx(2 * (3 / 8) * (7 / 24) / (2 / 3))


def test_position_by_hand():
  mask = steps.pad([[1], [1, 1], [1, 1, 1], [1]])[1]
  labels = np.array([-1, 1, 1, -1])
  # k = 1: both errors are at step 1 and both right chains are too short.
  assert loc.choose_position(mask, labels) == (1, 1)
  np.testing.assert_array_equal(loc.position_guess(mask, 1), [-1, 1, 1, -1])


@settings(deadline=None, max_examples=40)
@given(chains())
def test_best_position_is_the_best(data):
  _, mask, labels = data
  best, f1 = loc.choose_position(mask, labels)
  every = [
    loc.baselines(mask, labels, k)['position']['f1']
    for k in range(mask.shape[1])
  ]
  assert f1 == max(every)
  assert best == every.index(f1)


def test_f1_interval_follows_the_binomial_law():
  # Every problem has a right chain, which matches, and one with an error: F1 =
  # 2a / (a + 1), and a resampled is Binomial(20, 0.5) / 20 with 95% of its mass
  # in 6..14.
  labels = np.array([0, -1] * 20)
  predictions = np.array([0, -1] * 10 + [1, -1] * 10)
  problems = np.repeat(np.arange(20), 2)
  f1, lo, hi = loc.f1_ci(predictions, labels, problems, 0, resamples=20_000)
  assert f1 == pytest.approx(2 / 3)
  assert lo == pytest.approx(2 * 0.3 / 1.3)
  assert hi == pytest.approx(2 * 0.7 / 1.7)


def test_chains_of_one_problem_count_as_one_draw():
  """Eight chains for each problem, all alike: no narrower than one of each."""
  rng = np.random.default_rng(4)
  labels = np.tile([0, -1], 30)
  predictions = np.where(rng.random(60) < 0.5, labels, 1)
  problems = np.arange(60) // 2
  one = loc.f1_ci(predictions, labels, problems, 0)
  eight = loc.f1_ci(
    *(np.repeat(x, 8) for x in (predictions, labels, problems)), 0
  )
  assert eight == pytest.approx(one)
  alone = loc.f1_ci(
    np.repeat(predictions, 8), np.repeat(labels, 8), np.arange(480), 0
  )
  assert alone[2] - alone[1] < 0.5 * (one[2] - one[1])


def test_f1_interval_of_few_chains_is_defined():
  with np.errstate(all='raise'):
    f1, lo, hi = loc.f1_ci(
      np.array([0, -1, 0]), np.array([0, -1, -1]), np.arange(3), 0
    )
  assert (f1, lo, hi) == (pytest.approx(2 / 3), 0, 1)


def test_paired_f1_difference():
  rng = np.random.default_rng(0)
  labels, problems = np.repeat([0, -1], 100), np.arange(200)
  b = np.where(rng.random(200) < 0.6, labels, 1)
  a = b.copy()
  a[labels != b] = np.where(rng.random((labels != b).sum()) < 0.2, -1, 1)
  got, lo, hi = loc.f1_difference_ci((a, b), labels, problems, 0)
  f1_a, lo_a, hi_a = loc.f1_ci(a, labels, problems, 0)
  assert got == f1_a - loc.f1_ci(b, labels, problems, 0)[0]
  assert lo <= got <= hi
  assert hi - lo < hi_a - lo_a
  assert loc.f1_difference_ci((b, b), labels, problems, 0) == (0, 0, 0)
  back = loc.f1_difference_ci((b, a), labels, problems, 0)
  np.testing.assert_allclose(back, [-got, -hi, -lo], atol=1e-12)


def test_a_threshold_is_chosen_on_one_set_and_used_on_another():
  # The best threshold of gsm8k is 0.45 and that of math 0.15.
  gsm8k = (*steps.pad([[0.8, 0.3], [0.6, 0.7]]), np.array([1, -1]))
  math_ = (
    *steps.pad([[0.8, 0.1], [0.2, 0.9], [0.5, 0.9]]),
    np.array([1, -1, -1]),
  )
  transferred, f1 = loc.choose_threshold(*gsm8k)
  assert (transferred, f1) == (pytest.approx(0.45), 1)
  found = loc.at_threshold(*math_, transferred)
  assert found['threshold'] == transferred
  assert found['f1'] == pytest.approx(2 / 3)
  assert loc.choose_threshold(*math_) == (pytest.approx(0.15), 1)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (
      lambda: loc.choose_threshold([[0.1]], [[True]], np.array([0])),
      '1 chains, 1 with an error: expected chains of both kinds',
    ),
    (
      lambda: loc.choose_position([[True]], np.array([-1])),
      'expected chains of both kinds',
    ),
    (
      lambda: loc.f1_ci(np.array([0]), np.array([0]), np.array([0]), 0),
      'expected chains of both kinds',
    ),
    (
      lambda: loc.f1_ci(np.array([0]), np.array([0]), np.array([0, 1]), 0),
      r'problems \(2,\) for 1 chains',
    ),
    (lambda: loc.localisation([0, 1], [0]), r'predictions \(2,\)'),
    (
      lambda: loc.at_threshold([[0.1]], [[True]], np.array([1]), 0.5),
      'chain 0 has first error 1 and 1 steps',
    ),
  ],
)
def test_errors_name_the_fault(call, message):
  with pytest.raises(UserError, match=message) as info:
    call()
  assert '\n' not in str(info.value)


@pytest.mark.parametrize(
  ('name', 'error', 'right'), [('gsm8k', 207, 193), ('math', 594, 406)]
)
def test_processbench_counts_and_baselines(name, error, right):
  path = shared(f'processbench/{name}.json')
  rows = json.loads(path.read_text())
  _, mask = steps.pad([[1] * len(row['steps']) for row in rows])
  labels = np.array([row['label'] for row in rows])
  # The counts of the released files.
  got = loc.baselines(mask, labels, loc.choose_position(mask, labels)[0])
  for result in got.values():
    assert (result['count_error'], result['count_correct']) == (error, right)
  assert got['all_right']['f1'] == got['first_step']['f1'] == 0
  guesses = np.random.default_rng(0).integers(
    -1, mask.sum(1), size=(2000, len(labels))
  )
  simulated = (guesses == labels)[:, labels >= 0].mean()
  assert got['random']['acc_error'] == pytest.approx(
    simulated, abs=5 * math.sqrt(0.25 / (2000 * error))
  )
