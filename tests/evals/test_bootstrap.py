"""Bootstrap intervals against the binomial law they must follow."""

import math

import numpy as np
import pytest
from scipy import stats

from prm_jax.evals import bootstrap
from prm_jax.runtime.errors import UserError


@pytest.mark.parametrize(('ones', 'count'), [(3, 10), (1, 40), (150, 300)])
@pytest.mark.parametrize('level', [0.95, 0.8])
def test_interval_of_a_share_is_binomial(ones, count, level):
  # The mean of resampled 0/1 values is Binomial(Q, k / Q) / Q exactly.
  values = np.arange(count) < ones
  resamples = 20_000
  mean, lo, hi = bootstrap.mean_ci(values, 0, resamples, level)
  assert mean == ones / count
  tail = (1 - level) / 2
  error = 5 * math.sqrt(tail * (1 - tail) / resamples)
  for edge, probability in ((lo, tail), (hi, 1 - tail)):
    successes = round(edge * count)
    assert stats.binom.cdf(successes, count, ones / count) > probability - error
    assert (
      stats.binom.cdf(successes - 1, count, ones / count) < probability + error
    )


def test_interval_narrows_like_the_standard_error():
  values = np.random.default_rng(0).normal(size=4000)
  _, lo, hi = bootstrap.mean_ci(values, 1)
  expected = 2 * 1.96 * values.std() / math.sqrt(len(values))
  # A percentile end of 2,000 resamples is off by about 3% of the width.
  assert abs((hi - lo) / expected - 1) < 0.1


def test_trailing_shape_and_plain_floats():
  values = np.arange(12.0).reshape(3, 2, 2)
  mean, lo, hi = bootstrap.mean_ci(values, 0)
  assert mean == [[4.0, 5.0], [6.0, 7.0]]
  assert np.shape(lo) == np.shape(hi) == (2, 2)
  assert all(type(x) is float for x in np.ravel(lo).tolist())
  assert [type(x) for x in bootstrap.mean_ci([1.0, 2.0], 0)] == [float] * 3


def test_columns_are_resampled_together():
  values = np.random.default_rng(0).random(30)
  means = bootstrap.resample_means(np.stack([values, 1 - values], 1), 4)
  np.testing.assert_allclose(means.sum(1), 1)
  assert means[:, 0].std() > 0.01


def test_equal_seeds_give_equal_intervals():
  values = np.random.default_rng(0).random(30)
  assert bootstrap.mean_ci(values, 4) == bootstrap.mean_ci(values, 4)
  assert bootstrap.mean_ci(values, 4) != bootstrap.mean_ci(values, 5)


def test_draws_in_several_chunks(monkeypatch):
  monkeypatch.setattr(bootstrap, '_DRAWS_AT_ONCE', 100)
  means = bootstrap.resample_means(np.arange(30) < 15, 0, 2000)
  assert len(np.unique(means[:3])) > 1  # the first chunk has three resamples
  assert abs(means.mean() - 0.5) < 5 * math.sqrt(0.25 / 30 / 2000)
  assert abs(means.std() / math.sqrt(0.25 / 30) - 1) < 5 / math.sqrt(2 * 2000)


def test_bad_values_are_rejected():
  with pytest.raises(UserError, match='problem 2 has the value NaN'):
    bootstrap.mean_ci([0.0, 1.0, np.nan], 0)
  with pytest.raises(UserError, match='no problems'):
    bootstrap.mean_ci(np.zeros((0, 3)), 0)
