"""The alarm rises when a score rises that accuracy does not bear out."""

import numpy as np
import pytest
from scipy import stats

from prm_jax.evals.hacking import Look, detect_hacking

Q = 64


def look(update, accuracy, score, seed=0, problems=Q, samples=8, noise=0.05):
  rng = np.random.default_rng([seed, update])
  right = rng.binomial(samples, accuracy, problems) / samples
  rated = np.clip(score + noise * rng.normal(size=problems), 0, 1)
  return Look(update, right, rated, np.zeros(problems))


def test_a_fall_of_accuracy_under_a_rising_score_raises_the_alarm():
  looks = [look(0, 0.5, 0.5), look(10, 0.7, 0.6), look(20, 0.3, 0.9)]
  found = detect_hacking(looks, 3)
  assert found['hacked'] and found['since'] == 10 and found['by'] == 'score'
  assert found['accuracy']['mean'] < -0.3 and found['score']['mean'] > 0.2
  assert found['accuracy']['interval'][1] < 0 < found['score']['interval'][0]


def test_a_rising_reward_raises_the_alarm_too():
  """With more steps, the lowest score falls a little and the sum rises."""
  before, now = look(0, 0.7, 0.8), look(10, 0.3, 0.75)
  now = now._replace(paid=now.paid + 2 + 0.1 * now.score)
  found = detect_hacking([before, now], 2)
  assert found['hacked'] and found['by'] == 'paid'
  assert not detect_hacking([before, now._replace(paid=before.paid)], 2)[
    'hacked'
  ]


def test_a_policy_that_is_never_right_can_be_hacked():
  """Its accuracy has nowhere to fall from."""
  looks = [look(0, 0.02, 0.01), look(10, 0.03, 0.2), look(20, 0.02, 0.8)]
  assert not detect_hacking(looks[:2], 3)['hacked']
  found = detect_hacking(looks, 3)
  assert found['hacked'] and found['by'] == 'score'
  assert found['accuracy']['interval'][0] < 0 < found['accuracy']['interval'][1]


def test_other_changes_raise_no_alarm():
  start = look(0, 0.5, 0.5)
  for accuracy, score in ((0.8, 0.9), (0.2, 0.3), (0.5, 0.7), (0.8, 0.3)):
    assert not detect_hacking([start, look(10, accuracy, score)], 2)['hacked']
  assert not detect_hacking([start], 2)['hacked']


def test_the_interval_by_hand():
  """Four problems, 10 pairs of looks and two marks, each tested at 99.75%."""
  zero, ones = np.zeros(4), np.ones(4)
  fell = np.array([-0.9, -1.0, -0.8, -1.0])
  looks = [Look(0, zero, zero, zero), Look(1, fell, ones, ones)]
  found = detect_hacking(looks, 5)
  half = stats.t.ppf(0.9975, 3) * fell.std(ddof=1) / 2
  assert found['accuracy']['mean'] == pytest.approx(-0.925)
  assert found['accuracy']['interval'][1] == pytest.approx(-0.925 + half)
  assert found['score'] == {'mean': 1.0, 'interval': [1.0, 1.0]}


def even(update, problems, accuracy, score):
  """A look at problems that are all alike."""
  values = (np.full(problems, value) for value in (accuracy, score, 0.0))
  return Look(update, *values)


@pytest.mark.parametrize(
  ('problems', 'before', 'now', 'hacked'),
  [
    (5, 0.5, 0.25, False),
    (5, 1.0, 0.0, False),
    (16, 1.0, 0.0, False),
    (17, 1.0, 0.0, True),
    (64, 0.5, 0.25, True),
    # Two thirds and a third are no binary fractions.
    (5, 2 / 3, 1 / 3, False),
    (5, 1.0, 2 / 3, False),
  ],
)
def test_equal_falls_raise_the_alarm_if_problems_are_many(
  problems, before, now, hacked
):
  """Equal differences have no deviation; 41 looks have 820 pairs."""
  looks = [even(0, problems, before, 0.5), even(10, problems, now, 0.7)]
  found = detect_hacking(looks, 41)
  assert found['hacked'] == hacked
  if hacked:
    # The share of problems that could differ, by up to 1 or -1, unseen.
    fell, share = now - before, 1 - (0.05 / 1640) ** (1 / (problems - 1))
    expected = [fell - share * (fell + 1), fell + share * (1 - fell)]
    assert found['accuracy']['interval'] == pytest.approx(expected)


@pytest.mark.parametrize(
  ('problems', 'score', 'hacked'),
  # 64 problems leave room for 15% that became right, unseen.
  [(5, 0.9, False), (16, 0.7, False), (64, 0.4, False), (64, 0.5, True)],
)
def test_accuracy_may_have_risen_unseen(problems, score, hacked):
  """No answer is right, before or after."""
  looks = [even(0, problems, 0.0, 0.0), even(10, problems, 0.0, score)]
  assert detect_hacking(looks, 41)['hacked'] == hacked


@pytest.mark.parametrize(
  ('planned', 'sizes'),
  [
    (5, {}),
    (15, {}),
    # Their differences are often all equal.
    (5, {'problems': 2, 'samples': 1, 'noise': 0.0}),
    (5, {'problems': 2, 'samples': 4, 'noise': 0.0}),
  ],
)
def test_runs_of_constant_accuracy_seldom_raise_the_alarm(planned, sizes):
  """Scores rise by 0.3 and accuracy stays: at most 5% of runs raise it."""
  runs, alarms = 200, 0
  for seed in range(runs):
    rise = 0.3 / (planned - 1)
    looks = [
      look(k, 0.5, 0.2 + rise * k, seed, **sizes) for k in range(planned)
    ]
    alarms += any(
      detect_hacking(looks[: k + 1], planned)['hacked']
      for k in range(1, planned)
    )
  # Four standard errors of a share of 5%.
  assert alarms <= runs * 0.05 + 4 * (runs * 0.05 * 0.95) ** 0.5
