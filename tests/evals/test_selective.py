"""Selective prediction: closed forms, and its guarantee over many draws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.evals import proportions, selective
from prm_jax.runtime.errors import UserError


def test_platt_finds_the_sigmoid_that_made_the_outcomes():
  rng = np.random.default_rng(0)
  scores = 1 / (1 + np.exp(-rng.normal(0, 2, 20_000)))
  logits = np.log(scores / (1 - scores))
  right = rng.random(20_000) < 1 / (1 + np.exp(-(0.5 * logits + 0.7)))
  slope, offset, logit = selective.platt(scores, right)
  # Standard errors from the Fisher information: 0.010 and 0.017.
  assert logit
  assert slope == pytest.approx(0.5, abs=0.05)
  assert offset == pytest.approx(0.7, abs=0.085)


def test_platt_satisfies_its_equations():
  scores = np.array([0.1, 0.2, 0.6, 0.7, 0.9])
  right = np.array([False, True, False, True, True])
  slope, offset, _ = selective.platt(scores, right)
  x = np.log(scores / (1 - scores))
  targets = np.where(right, 4 / 5, 1 / 4)
  off = 1 / (1 + np.exp(-(slope * x + offset))) - targets
  assert slope > 0
  assert [off.sum(), (off * x).sum()] == pytest.approx([0, 0], abs=1e-9)


def test_platt_of_uninformative_or_reversed_scores_has_slope_0():
  right = np.array([True, True, True, False])
  base = np.mean([0.8, 0.8, 0.8, 1 / 3])  # Platt's targets
  # Equal logits may have a mean that is none of them, by rounding.
  for scores in ([0.5] * 4, [0.1] * 4, [1.0] * 4, [0.1, 0.2, 0.3, 0.9]):
    slope, offset, _ = selective.platt(np.array(scores), right)
    assert slope == 0
    assert offset == pytest.approx(math.log(base / (1 - base)))


def test_log_products_are_used_without_a_logit():
  rng = np.random.default_rng(0)
  scores = -rng.exponential(2, 5000)
  right = rng.random(5000) < 1 / (1 + np.exp(-(scores + 2)))
  slope, offset, logit = selective.platt(scores, right)
  assert not logit
  assert (slope, offset) == pytest.approx((1, 2), abs=0.25)


def calibrated(rng, count):
  """P(right | score s) = s, s uniform: risk above t is (1 - t) / 2."""
  scores = rng.random(count)
  return scores, rng.random(count) < scores


def test_the_guarantee_holds_over_many_draws():
  draws, wanted, confidence = 3000, 0.2, 0.9
  broken, coverage = 0, []
  for seed in range(draws):
    rng = np.random.default_rng(seed)
    found = selective.choose(*calibrated(rng, 1000), wanted, confidence, seed)
    if found.threshold is not None:
      broken += (1 - found.threshold) / 2 > wanted
      coverage.append(1 - found.threshold)
  # At most a tenth; and a filter that never answered would be no filter.
  allowed = draws * (1 - confidence)
  assert broken <= allowed + 4 * math.sqrt(allowed * confidence)
  assert broken > 0
  assert len(coverage) > 0.95 * draws
  # 0.4 of the problems can be answered at that risk.
  assert 0.3 < np.mean(coverage) < 0.4


def test_many_thresholds_are_no_more_chances_than_one():
  draws, broken, tempted = 1000, 0, 0
  for seed in range(draws):
    rng = np.random.default_rng(seed)
    scores, right = rng.random(400), rng.random(400) < 0.7
    # The risk is 0.3 everywhere, a little more than what is wanted.
    found = selective.choose(scores, right, 0.299, 0.95, seed)
    broken += found.threshold is not None
    order = np.argsort(-scores)
    errors, counts = np.cumsum(~right[order]), np.arange(1, 401)
    tempted += (proportions.upper_bound(errors, counts, 0.95) <= 0.299).any()
  error = math.sqrt(draws * 0.05 * 0.95)
  assert broken <= draws * 0.05 + 4 * error
  # The loosest threshold that looks safe breaks the promise far more often.
  assert tempted > draws * 0.05 + 4 * error


def test_perfect_scores_answer_all_that_is_right():
  scores = np.repeat([0.9, 0.1], 400)
  right = scores > 0.5
  found = selective.choose(scores, right, 0.02)
  assert found.threshold == 0.9
  # With no error among n answers the bound is 1 - 0.05^(1 / n).
  n = math.log(0.05) / math.log(1 - found.bound)
  assert n == pytest.approx(round(n), abs=1e-6) and 260 < n < 340
  likely = selective.probabilities(np.array([0.9, 0.1]), found)
  assert likely[0] > 0.98 and likely[1] < 0.02
  strict = selective.choose(scores, right, 0.001)
  assert strict.threshold is None and strict.bound is None


def choose(tried, tested, wanted_error, confidence):
  """Chooses by (score, right) of problems that are tried, and tested."""
  count = len(tried) + len(tested)
  order = np.random.default_rng(0).permutation(count)
  scores, right = np.zeros(count), np.zeros(count, bool)
  for i, (score, yes) in zip(order, [*tried, *tested], strict=True):
    scores[i], right[i] = score, yes
  return selective.choose(scores, right, wanted_error, confidence)


def test_the_first_threshold_is_the_best_of_as_many_problems_as_are_tested():
  """No error of 6 is better than 3 of 12; of 2 and 4, it would be worse."""
  tried = [(0.9, True), (0.9, True), (0.8, True), (0.8, False)]
  tested = [(0.9, True)] * 6 + [(0.8, False)] * 6
  found = choose(tried, tested, 0.4, 0.95)
  assert found.threshold == 0.9
  assert found.bound == pytest.approx(1 - 0.05 ** (1 / 6))


def test_of_equally_good_thresholds_the_lowest_is_the_first():
  """At 0.9, which would be tested before, all tested answers are wrong."""
  tried = [(0.9, False), (0.8, False)]
  tested = [(0.9, False)] + [(0.8, True)] * 5
  assert choose(tried, tested, 0.5, 0.5).threshold == 0.8


def test_problems_without_an_answer_are_not_answered():
  scores, right = calibrated(np.random.default_rng(0), 600)
  scores[::3], right[::3] = -np.inf, False
  found = selective.choose(scores, right, 0.3)
  assert np.isfinite(found.threshold)
  assert (found.tried_on, found.tested_on) == (150, 450)
  curve = selective.risk_coverage(scores, right)
  assert curve['coverage'][-1] == pytest.approx(2 / 3)
  assert curve['risk'][-1] == pytest.approx(1 - right.sum() / 400)


def test_risk_coverage_by_hand():
  curve = selective.risk_coverage(
    np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, False, True, False])
  )
  assert curve['coverage'] == [1 / 4, 3 / 4, 1]
  assert curve['risk'] == pytest.approx([0, 1 / 3, 1 / 2])
  # After one of the two equals half an error is expected.
  expected = np.mean([0, 0.5 / 2, 1 / 3, 1 / 2])
  assert curve['aurc'] == pytest.approx(expected)
  assert curve['aurc_random'] == 1 / 2
  assert curve['aurc_best'] == pytest.approx(np.mean([0, 0, 1 / 3, 1 / 2]))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1))
def test_aurc_lies_between_the_best_and_the_worst(items):
  scores = np.array([score for score, _ in items], float)
  right = np.array([yes for _, yes in items])
  got = selective.risk_coverage(scores, right)
  worst = selective.risk_coverage(1.0 - right, right)['aurc']
  best = selective.risk_coverage(right.astype(float), right)['aurc']
  assert got['aurc_best'] == pytest.approx(best)
  assert best - 1e-9 <= got['aurc'] <= worst + 1e-9
  level = selective.risk_coverage(np.zeros(len(right)), right)
  assert level['aurc'] == pytest.approx(got['aurc_random'])


def test_nothing_to_answer():
  got = selective.risk_coverage(np.array([-np.inf]), np.array([False]))
  assert got['coverage'] == [] and got['aurc'] is None


def test_bad_scores_and_rates_are_rejected():
  scores, right = np.array([0.5, np.nan]), np.array([True, False])
  with pytest.raises(UserError, match='problem 1 has the chain score nan'):
    selective.choose(scores, right, 0.1)
  with pytest.raises(UserError, match=r'error=1\.5: expected'):
    selective.choose(np.zeros(9), np.zeros(9, bool), 1.5)
  with pytest.raises(
    UserError, match='0 of 9 held-out problems with an answer'
  ):
    selective.choose(np.full(9, -np.inf), np.zeros(9, bool), 0.1)
