"""Intervals over seeds and problems, against simulations with known truth."""

import numpy as np
import pytest

from prm_jax.evals import over_seeds
from prm_jax.runtime.errors import UserError

TRIALS = 40_000
SEEDS = (3, 5, 10)
# Standard deviation between seeds, in units of that of the problems' sampling.
BETWEEN = (0, 1, 3)


def coverage(estimate, truth):
  """The share of the intervals that hold the truth."""
  return np.mean((estimate.low <= truth) & (truth <= estimate.high))


@pytest.mark.parametrize('seeds', SEEDS)
@pytest.mark.parametrize('between', BETWEEN)
@pytest.mark.parametrize('known', [True, False], ids=['errors', 'no errors'])
def test_independent_seeds_cover_the_mean(seeds, between, known):
  rng = np.random.default_rng([seeds, between])
  values = between * rng.normal(size=(seeds, TRIALS))
  values += rng.normal(size=values.shape)
  errors = np.ones_like(values) if known else None
  found = coverage(over_seeds.independent(values, errors), 0)
  assert 0.945 <= found <= 0.965


@pytest.mark.parametrize('seeds', SEEDS)
@pytest.mark.parametrize('between', BETWEEN)
def test_the_percentile_bootstrap_would_not(seeds, between):
  """Why resampling few seeds is not the method here."""
  rng = np.random.default_rng([seeds, between])
  values = rng.normal(size=(seeds, 500)) * (1 + between**2) ** 0.5
  drawn = rng.integers(seeds, size=(seeds, 400))
  means = values[drawn].mean(0)
  low, high = np.quantile(means, [0.025, 0.975], axis=0)
  assert np.mean((low <= 0) & (high >= 0)) < {3: 0.8, 5: 0.88, 10: 0.94}[seeds]


@pytest.mark.parametrize('seeds', SEEDS)
@pytest.mark.parametrize('between', BETWEEN)
def test_seeds_that_share_problems_cover_the_mean(seeds, between):
  rng = np.random.default_rng([seeds, between])
  values = rng.normal(size=TRIALS)  # the problems move all seeds alike
  values = values + between * rng.normal(size=(seeds, TRIALS))
  found = coverage(over_seeds.crossed(values, np.ones_like(values)), 0)
  assert 0.945 <= found <= 0.98
  # Taken for independent, they cover far too little.
  if between < 3:
    assert coverage(over_seeds.independent(values), 0) < 0.93


@pytest.mark.parametrize('seeds', SEEDS)
def test_problems_that_move_seeds_apart_only_widen_it(seeds):
  rng = np.random.default_rng(seeds)
  values = 0.5**0.5 * rng.normal(size=TRIALS)
  values = values + 0.5**0.5 * rng.normal(size=(seeds, TRIALS))
  assert coverage(over_seeds.crossed(values, np.ones_like(values)), 0) > 0.97


def shares(rng, seeds, mean, between, problems=400):
  """Shares right of each seed, and their standard errors."""
  spread = between * (mean * (1 - mean) / problems) ** 0.5
  chance = np.full((seeds, TRIALS), mean)
  if between:
    count = mean * (1 - mean) / spread**2 - 1
    chance = rng.beta(mean * count, (1 - mean) * count, chance.shape)
  values = rng.binomial(problems, chance) / problems
  return values, (values * (1 - values) / problems) ** 0.5


@pytest.mark.parametrize('seeds', SEEDS)
@pytest.mark.parametrize(
  ('mean', 'between', 'low', 'high'),
  [
    (0.9, 0, 0.945, 0.965),
    (0.9, 1, 0.94, 0.96),
    (0.9, 3, 0.93, 0.96),
    (0.98, 0, 0.945, 0.97),
    (0.98, 1, 0.93, 0.96),
    # Here it does not hold: most seeds are at 1, and a few far below.
    (0.98, 3, 0.85, 0.92),
  ],
)
def test_shares_near_1(seeds, mean, between, low, high):
  rng = np.random.default_rng([seeds, between])
  values, errors = shares(rng, seeds, mean, between)
  found = over_seeds.independent(values, errors)
  assert low <= coverage(found, mean) <= high
  mirrored = over_seeds.independent(1 - values, errors)
  assert coverage(mirrored, 1 - mean) == coverage(found, mean)


def test_an_interval_by_hand():
  # t of 2 degrees of freedom is 4.3027; the seeds' standard error is 25.6.
  found = over_seeds.independent(np.array([0.0, 76.8, 0.0]))
  assert found.mean == pytest.approx(25.6)
  assert found.high - found.mean == pytest.approx(4.3027 * 25.6, rel=1e-4)
  # Equal seeds: the variance is the 5% quantile of chi2 / 2 = 0.0513 times e^2.
  equal = over_seeds.independent(np.full(3, 0.5), np.full(3, 0.1))
  margin = 4.3027 * 0.1 * (0.0513 / 3) ** 0.5
  assert equal.high - 0.5 == pytest.approx(margin, rel=1e-3)
  both = over_seeds.crossed(np.array([1.0, 2.0, 3.0]), np.full(3, 0.5))
  margin = (4.3027**2 / 3 + 1.96**2 * 0.25) ** 0.5
  assert both.high - 2 == pytest.approx(margin, rel=1e-4)
  one = over_seeds.crossed(np.array([1.0]), np.array([0.5]))
  assert (one.low, one.high) == pytest.approx((0.02, 1.98), abs=1e-4)
  assert over_seeds.error_of([[0.0, 0.392]]) == pytest.approx(0.1, rel=1e-4)


def test_bad_seeds_are_rejected():
  with pytest.raises(UserError, match='at least two seeds'):
    over_seeds.independent(np.array([1.0]))
  with pytest.raises(UserError, match='expected a number of each'):
    over_seeds.independent(np.array([1.0, np.nan]))
  with pytest.raises(UserError, match=r'values \(2,\) and errors \(3,\)'):
    over_seeds.crossed(np.ones(2), np.ones(3))
