"""Exact bounds of shares: the equations that define them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prm_jax.evals import proportions


@given(st.integers(0, 60), st.integers(1, 60), st.sampled_from([0.9, 0.95]))
def test_bound_solves_its_own_equation(count, more, confidence):
  total = count + more
  bound = proportions.upper_bound(count, total, confidence)
  # At the bound, so few are counted with probability 1 - confidence.
  tail = stats.binom.cdf(count, total, bound)
  assert tail == pytest.approx(1 - confidence, rel=1e-6)
  none = proportions.upper_bound(0, total, confidence)
  assert none == pytest.approx(1 - (1 - confidence) ** (1 / total))
  assert proportions.upper_bound(more, more, confidence) == 1
  assert proportions.upper_bound(0, 0, confidence) == 1


@given(st.integers(0, 60), st.integers(0, 60))
def test_interval_is_that_of_the_binomial_test(count, more):
  total = max(count + more, 1)
  exact = stats.binomtest(count, total).proportion_ci()
  expected = pytest.approx([exact.low, exact.high], abs=1e-12)
  assert proportions.interval95(count, total) == expected
