"""Accuracy against compute: interpolation, ratios and over-optimisation."""

import numpy as np
import pytest

from prm_jax.evals import compute
from prm_jax.report.compare import list_numbers
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
  # The same problems are right at a fifth of the compute.
  assert got['ratio'] == pytest.approx(5)
  assert got['ci95'] == pytest.approx([5, 5], rel=0.02)
  assert got['open'] == [False, False] and not got['smallest']
  assert got['wanted'] == right[:, 1].mean()
  other = (rng.random(400) < 0.5).astype(float)
  got = compute.times_less((cost / 5, right), (cost[:, 1], other))
  # Of an object, the interval is that of its first number.
  shown = {name: ci95 for name, _, ci95 in list_numbers({'against': got})}
  assert shown['against.ratio'] == tuple(got['ci95'])
  assert shown['against.wanted'] is None
  low, high = got['ci95']
  assert low < 5 < high and low > 2 and got['open'] == [False, False]


def test_ends_beyond_our_budgets_are_open():
  cost = np.tile([10.0, 100.0, 1000.0], (400, 1))
  rng = np.random.default_rng(0)
  right = (rng.random((400, 1)) < [0.2, 0.5, 0.8]).astype(float)
  # Our smallest budget already has the wanted accuracy, beyond noise.
  got = compute.times_less((cost, right), (cost[:, 2], right[:, 0] * 0.5))
  assert got['smallest'] and got['ratio'] == pytest.approx(100)
  assert got['ci95'] == pytest.approx([100, 100])
  assert got['open'] == [False, True]
  # We never reach it, beyond noise.
  never = compute.times_less((cost, right * 0), (cost[:, 1], right[:, 1]))
  assert never['ratio'] is None
  assert never['ci95'] == pytest.approx([0.1, 0.1])
  assert never['open'] == [True, False]
  # The interval is of the ratio that there is not, and of no other number.
  assert [*list_numbers(never)] == [('wanted', right[:, 1].mean(), None)]
  # Two seeds do not tell. t of 1 degree of freedom is 12.7, so +0.04 and 0
  # give 0.02 -+ 0.25 at our largest budget, and -0.58 -+ 0.25 at our smallest.
  seeds = np.array([[0.2, 0.5, 0.84], [0.2, 0.5, 0.8]])
  got = compute.times_less((cost[:2], seeds), (cost[:2, 2], [0.8, 0.8]))
  assert got['open'] == [True, False]
  assert got['ci95'][0] == pytest.approx(1) and 1 < got['ci95'][1] < 10
  one = compute.times_less((cost[:1], seeds[:1]), (cost[:1, 2], [0.8]))
  assert one['ratio'] and (one['ci95'], one['open']) == (None, None)


@pytest.mark.parametrize('seeds', [3, 5, 10])
@pytest.mark.parametrize('gain', [-0.5, 0.0, 0.1, 0.3, 2.0])
def test_ratios_of_seeds_cover_the_truth(seeds, gain):
  """Accuracy grows by 0.1 with each factor e of compute; ours is `gain` ahead.

  Seeds differ in how well they do, and a curve has noise. At a gain of 0 half
  of the trials do not reach what theirs ends with, and below it hardly any do.
  No trial is left out.
  """
  rng, trials = np.random.default_rng([seeds, 7]), 1500
  budgets = np.geomspace(100, 10_000, 8)
  truth, never, below, above = np.exp(gain), 0, 0, 0
  for _ in range(trials):
    curve = np.log(budgets / 100) * 0.1 + 0.1
    theirs = curve[-1] + rng.normal(0, 0.03, seeds)
    noise = rng.normal(0, 0.03, (seeds, 1)) + rng.normal(0, 0.01, (seeds, 8))
    got = compute.times_less(
      (np.tile(budgets, (seeds, 1)), curve + 0.1 * gain + noise),
      (np.full(seeds, budgets[-1]), theirs),
    )
    (low, high), (low_open, high_open) = got['ci95'], got['open']
    never += got['ratio'] is None
    below += not high_open and high < truth
    above += not low_open and low > truth
  # 2.5% each; five standard errors.
  assert max(below, above) / trials < 0.025 + 5 * (0.025 / trials) ** 0.5
  if gain > 0:
    assert 0.93 <= 1 - (below + above) / trials <= 0.97
  else:
    # The true ratio is at the budget's end or beyond: only one side can miss.
    assert never / trials > 0.4 and not below


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
  with pytest.raises(UserError, match=r'same shape \[units, budgets\]'):
    compute.times_less((ones, np.ones((2, 3))), (ones[0], ones[0]))
  with pytest.raises(UserError, match='unit 0 at budget 1 took -1'):
    compute.times_less((np.array([[1.0, -1.0]]), ones[:1]), (ones[0], ones[0]))
  with pytest.raises(UserError, match='nothing was spent at budget 1'):
    compute.times_less((np.array([[1.0, 0.0]]), ones[:1]), (ones[0], ones[0]))
  with pytest.raises(UserError, match='2 and 3 units'):
    compute.times_less((ones, ones), (np.ones(3), np.ones(3)))
  with pytest.raises(UserError, match='two ascending numbers'):
    compute.over_optimisation(ones, ones, [2, 1])
