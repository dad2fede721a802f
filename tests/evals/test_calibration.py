"""Ranking and calibration: by hand, over all pairs, on calibrated scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.evals import calibration as cal
from prm_jax.evals import steps
from prm_jax.runtime.errors import UserError


def row(scores, labels):
  """One chain: padded scores, labels and mask."""
  return np.array([scores]), np.array([labels]), np.ones((1, len(scores)), bool)


def test_auroc_by_hand():
  # Of four pairs the right one leads in three and ties in one.
  scores, right = [0.1, 0.4, 0.4, 0.8], [False, True, False, True]
  assert cal.auroc(scores, right) == 3.5 / 4
  assert cal.auroc([0.1, 0.2], [False, True]) == 1
  assert cal.auroc([0.2, 0.1], [False, True]) == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1))
def test_auroc_is_the_share_of_pairs(items):
  scores = np.array([s for s, _ in items]) / 4
  right = np.array([r for _, r in items])
  pairs = [
    (a > b) + 0.5 * (a == b) for a in scores[right] for b in scores[~right]
  ]
  got = cal.auroc(scores, right)
  if not pairs:
    assert got is None
    return
  assert got == pytest.approx(np.mean(pairs))
  assert cal.auroc(-scores, right) == pytest.approx(1 - got)


@given(st.integers(1, 40), st.integers(1, 40))
def test_equal_scores_cannot_rank(positives, negatives):
  right = np.arange(positives + negatives) < positives
  assert cal.auroc(np.full(len(right), 0.3), right) == 0.5


def test_first_error_auc_ignores_later_steps():
  scores, mask = steps.pad([[0.9, 0.2, 0.1], [0.3, 0.8]])
  labels, _ = steps.pad([[1, 0, 1], [1, 1]])
  # Right 0.9, 0.3, 0.8 against the wrong 0.2; then also the right 0.1.
  assert cal.first_error_auc(scores, labels, mask) == 1
  assert cal.step_auroc(scores, labels, mask) == 3 / 4


def test_accuracy_until_first_error_by_hand():
  scores, mask = steps.pad([[0.9, 0.4, 0.1], [0.5, 0.2]])
  labels, _ = steps.pad([[1, 0, 1], [1, 1]])
  # Kept: right-right, wrong-wrong, 0.5 counts as right, 0.2 does not.
  assert cal.accuracy_until_first_error(scores, labels, mask) == 3 / 4
  got = cal.accuracy_until_first_error(scores, labels, mask, threshold=0.2)
  assert got == 3 / 4
  got = cal.accuracy_until_first_error(scores, labels, mask, threshold=0.6)
  assert got == 2 / 4


def test_ece_and_brier_by_hand():
  data = row([0.1, 0.3, 0.8, 1.0], [0, 1, 1, 1])
  # Two bins: score .2 against .5, and .9 against 1; half the steps each.
  assert cal.ece(*data, bins=2) == pytest.approx(0.5 * 0.3 + 0.5 * 0.1)
  assert cal.brier(*data) == pytest.approx((0.01 + 0.49 + 0.04 + 0) / 4)
  curve = cal.reliability(*data, bins=2)
  assert curve['low'] == [0, 0.5]
  assert curve['high'] == [0.5, 1]
  assert curve['score'] == pytest.approx([0.2, 0.9])
  assert curve['accuracy'] == [0.5, 1]
  assert curve['count'] == [2, 2]


def test_bins_have_equal_width_not_equal_count():
  data = row([0.01, 0.02, 0.03, 0.04], [0, 0, 0, 1])
  curve = cal.reliability(*data)
  assert curve['count'] == [4] + [0] * 14
  assert curve['score'][1:] == curve['accuracy'][1:] == [None] * 14
  assert cal.ece(*data) == pytest.approx(0.25 - 0.025)


def test_an_edge_belongs_to_the_upper_bin_and_the_score_1_to_the_last():
  edges = np.arange(16) / 15
  curve = cal.reliability(*row(edges, np.ones(16)))
  assert curve['count'] == [1] * 14 + [2]


def test_soft_labels_stay_probabilities():
  data = row([0.25, 0.25], [0.25, 0.25])
  assert cal.brier(*data) == 0
  assert cal.ece(*data) == 0
  # An int() on the labels (hazard 2) would make both wrong steps.
  assert cal.step_auroc(*row([0.1, 0.9], [0.4, 0.7])) == 1


def test_calibrated_scores_have_a_small_error():
  rng = np.random.default_rng(0)
  scores = rng.random((1000, 20))
  labels = rng.random(scores.shape) < scores
  mask = np.ones(scores.shape, bool)
  # 15 bins of 1,333 steps: mean |gap| about 0.8 * sqrt(1/6 / 1333) = 0.009.
  assert cal.ece(scores, labels, mask) < 0.02
  # E (s - y)^2 = E s (1 - s) = 1/6; AUROC of y ~ s, s uniform, is 5/6.
  assert cal.brier(scores, labels, mask) == pytest.approx(1 / 6, abs=0.01)
  assert cal.step_auroc(scores, labels, mask) == pytest.approx(5 / 6, abs=0.02)
  assert cal.ece(scores**2, labels, mask) > 0.1


def test_calibration_collects_its_parts_and_ignores_padding():
  rng = np.random.default_rng(1)
  scores, labels = rng.random((2, 8, 5))
  mask = rng.random((8, 5)) < 0.7
  got = cal.calibration(scores, labels, mask)
  data = scores, labels, mask
  assert got == {
    'step_auroc': cal.step_auroc(*data),
    'first_error_auc': cal.first_error_auc(*data),
    'accuracy_until_first_error': cal.accuracy_until_first_error(*data),
    'ece': cal.ece(*data),
    'brier': cal.brier(*data),
    'log_loss': cal.log_loss(*data),
    'unsure': cal.unsure(*data),
    'reliability': cal.reliability(*data),
    'count': int(mask.sum()),
  }
  scores, labels = np.where(mask, scores, np.nan), np.where(mask, labels, -100)
  assert cal.calibration(scores, labels, mask) == got


def test_undefined_is_none():
  got = cal.calibration(*row([0.7, 0.9], [1, 1]))
  assert got['step_auroc'] is None
  assert got['first_error_auc'] is None
  assert got['accuracy_until_first_error'] == 1
  empty = cal.calibration(
    np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 2), bool)
  )
  assert empty['count'] == 0
  for key in ('accuracy_until_first_error', 'ece', 'brier', 'step_auroc'):
    assert empty[key] is None


def test_logits_are_rejected():
  with pytest.raises(UserError, match=r'step 1 scores 2\.5.*sigmoid'):
    cal.ece(*row([0.5, 2.5], [1, 1]))
  with pytest.raises(UserError, match=r'step 0 scores -0\.1'):
    cal.brier(*row([-0.1], [1]))
  # A ranking needs no probabilities.
  assert cal.step_auroc(*row([-3.0, 2.5], [0, 1])) == 1


def test_sure_and_right_steps_do_not_hide_what_is_between():
  """Ninety sure steps, all right; ten that score 0.5 and are all wrong."""
  scores = np.array([[0.99] * 90 + [0.5] * 10])
  labels = np.array([[1.0] * 90 + [0.0] * 10])
  found = cal.calibration(scores, labels, np.ones((1, 100), bool))
  assert found['ece'] == pytest.approx(0.9 * 0.01 + 0.1 * 0.5)
  assert found['unsure'] == {'ece': pytest.approx(0.5), 'share': 0.1}
  expected = -(0.9 * np.log(0.99) + 0.1 * np.log(0.5))
  assert found['log_loss'] == pytest.approx(expected)


def test_a_sure_mistake_has_a_finite_log_loss():
  loss = cal.log_loss([[1.0]], [[0.0]], [[True]])
  assert loss == pytest.approx(-np.log(cal.SUREST))
  assert cal.log_loss([[1.0]], [[0.0]], [[False]]) is None
