"""Accuracy against compute: interpolation, ratios and over-optimisation."""

import numpy as np
import pytest

from prm_jax.evals import compute
from prm_jax.runtime.errors import UserError


def test_compute_to_reach_is_linear_in_the_logarithm():
  cost, accuracy = [1.0, 100.0, 10_000.0], [0.2, 0.4, 0.8]
  assert compute.compute_to_reach(cost, accuracy, 0.3) == pytest.approx(10)
  assert compute.compute_to_reach(cost, accuracy, 0.7) == pytest.approx(
    100 * 100**0.75
  )
  assert compute.compute_to_reach(cost, accuracy, 0.4) == pytest.approx(100)
  assert compute.compute_to_reach(cost, accuracy, 0.1) == pytest.approx(1)
  assert compute.compute_to_reach(cost, accuracy, 0.81) is None
  backwards = compute.compute_to_reach(cost[::-1], accuracy[::-1], 0.3)
  assert backwards == pytest.approx(10)


def test_a_dip_does_not_hide_an_accuracy_reached_before():
  assert compute.compute_to_reach(
    [1.0, 4.0, 16.0, 64.0], [0.0, 0.6, 0.4, 0.7], 0.6
  ) == pytest.approx(4)


def test_a_method_that_needs_a_fifth_of_the_compute():
  rng = np.random.default_rng(0)
  accuracy = np.array([0.2, 0.5, 0.8])
  right = (rng.random((400, 1)) < accuracy).astype(float)
  cost = np.tile([10.0, 100.0, 1000.0], (400, 1))
  theirs = cost[:, 1], right[:, 1]
  got = compute.times_less((cost / 5, right), theirs)
  # The same problems are right at a fifth of the compute, in every resample.
  assert got['ratio'] == pytest.approx(5)
  assert got['ci95'] == pytest.approx([5, 5])
  assert got['reached'] == 1 and not got['smallest']
  assert got['wanted'] == right[:, 1].mean()
  other = (rng.random(400) < 0.5).astype(float)
  got = compute.times_less((cost / 5, right), (cost[:, 1], other))
  low, high = got['ci95']
  assert low < 5 < high and low > 2
  # Our smallest budget already has the wanted accuracy.
  got = compute.times_less((cost, right), (cost[:, 2], right[:, 0] * 0.5))
  assert got['smallest'] and got['ratio'] == pytest.approx(100)
  never = compute.times_less((cost, right * 0), theirs)
  assert (never['ratio'], never['ci95'], never['reached']) == (None, None, 0)


def test_over_optimisation_is_found_where_it_is_and_only_there():
  rng = np.random.default_rng(1)
  quality = rng.random((2000, 64))
  correct = (rng.random((2000, 64)) < 0.2 + 0.6 * quality).astype(float)
  good = compute.over_optimisation(quality, correct, [1, 4, 16, 64])
  assert not good['over_optimised']
  assert good['peak'] == 64 and good['fall']['mean'] == 0
  assert good['level'] == pytest.approx(1 - 0.05 / 3)
  # One chain in sixteen exploits the PRM: it scores highest and is wrong.
  holes = rng.random((2000, 64)) < 1 / 16
  hacked = np.where(holes, 2.0, quality)
  got = compute.over_optimisation(
    hacked, np.where(holes, 0.0, correct), [1, 4, 16, 64]
  )
  assert got['over_optimised'] and got['peak'] < 64
  assert got['fall']['interval'][0] > 0
  assert got['fall']['mean'] == pytest.approx(
    max(got['accuracy']) - got['accuracy'][-1]
  )


def test_noise_is_seldom_called_over_optimisation():
  found = 0
  for seed in range(100):
    rng = np.random.default_rng(seed)
    scores = rng.random((100, 16))
    correct = (rng.random((100, 16)) < 0.5).astype(float)
    got = compute.over_optimisation(
      scores, correct, [1, 2, 4, 8, 16], seed, 400
    )
    found += got['over_optimised']
  # One-sided: at most 2.5% in all; five standard errors above.
  assert found <= 100 * 0.025 + 5 * (100 * 0.025 * 0.975) ** 0.5


def test_bad_arrays_are_rejected():
  ones = np.ones((2, 2))
  with pytest.raises(UserError, match=r'same shape \[problems, budgets\]'):
    compute.times_less((ones, np.ones((2, 3))), (ones[0], ones[0]))
  with pytest.raises(UserError, match='problem 0 at budget 1 took -1'):
    compute.times_less((np.array([[1.0, -1.0]]), ones[:1]), (ones[0], ones[0]))
  with pytest.raises(UserError, match='nothing was spent at budget 1'):
    compute.times_less((np.array([[1.0, 0.0]]), ones[:1]), (ones[0], ones[0]))
  with pytest.raises(UserError, match='2 and 3 problems'):
    compute.times_less((ones, ones), (np.ones(3), np.ones(3)))
  with pytest.raises(UserError, match='two ascending numbers'):
    compute.over_optimisation(ones, ones, [2, 1])
