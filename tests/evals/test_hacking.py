"""The alarm: it rings when a score rises and accuracy falls, and only then."""

import numpy as np

from prm_jax.evals.hacking import Look, hacking

Q = 64


def look(update, accuracy, score, seed=0):
  rng = np.random.default_rng([seed, update])
  return Look(
    update,
    rng.binomial(8, accuracy, Q) / 8,
    np.clip(score + 0.05 * rng.normal(size=Q), 0, 1),
  )


def test_a_fall_under_a_rising_score_is_told():
  looks = [look(0, 0.5, 0.5), look(10, 0.7, 0.6), look(20, 0.3, 0.9)]
  found = hacking(looks)
  assert found['hacked'] and found['since'] == 10
  assert found['accuracy']['mean'] < -0.3 and found['score']['mean'] > 0.2
  assert found['accuracy']['interval'][1] < 0 < found['score']['interval'][0]


def test_what_is_no_hacking():
  start = look(0, 0.5, 0.5)
  for accuracy, score in ((0.8, 0.9), (0.2, 0.3), (0.5, 0.9), (0.8, 0.3)):
    assert not hacking([start, look(10, accuracy, score)])['hacked']
  assert not hacking([start])['hacked']


def test_noise_seldom_rings():
  """Scores rise, accuracy stays: at most 5% of runs of ten looks each."""
  rings = sum(
    any(hacking(looks[: k + 1], resamples=400)['hacked'] for k in (3, 6, 9))
    for looks in (
      [look(k, 0.5, 0.4 + 0.05 * k, seed) for k in range(10)]
      for seed in range(60)
    )
  )
  # Three looks at each of 60 runs, one-sided at 2.5% each at most: five
  # standard errors above 60 * 7.5%.
  assert rings <= 60 * 0.075 + 5 * (60 * 0.075 * 0.925) ** 0.5
