"""Nulls against enumeration and simulation."""

import itertools
import time

import numpy as np
import pytest

from prm_jax.evals import nulls
from prm_jax.evals.best_of_n import random_curve
from prm_jax.evals.localisation import choose_threshold, f1_of
from prm_jax.runtime.errors import UserError


def by_enumeration(texts, correct, n):
  """Averages over all n-subsets; a distinct text of each is the best."""
  shares = []
  for subset in itertools.combinations(range(len(texts)), n):
    right = {texts[i]: correct[i] for i in subset}
    shares.append(sum(right.values()) / len(right))
  return np.mean(shares)


@pytest.mark.parametrize(
  ('texts', 'right'),
  [
    ([0, 1, 2, 3, 4], {0, 3}),  # all different
    ([7, 7, 7, 7, 2, 3], {7}),  # one right text, sampled often
    ([7, 7, 7, 7, 2, 3], {2}),
    ([5, 1, 1, 5, 5, 9, 8, 1], {1, 9}),
    ([4, 4, 4], {4}),
    ([4, 4, 4], set()),
  ],
)
def test_a_random_score_for_each_text(texts, right):
  correct = [text in right for text in texts]
  ns = range(1, len(texts) + 1)
  found = nulls.random_per_text_curve([texts], [correct], ns)[0]
  expected = [by_enumeration(texts, correct, n) for n in ns]
  np.testing.assert_allclose(found, expected, atol=1e-12)


def test_it_is_the_random_sample_where_all_texts_differ():
  rng = np.random.default_rng(0)
  correct = rng.random((5, 12)) < 0.4
  texts = np.tile(np.arange(12), (5, 1))
  ns = [1, 3, 12]
  np.testing.assert_allclose(
    nulls.random_per_text_curve(texts, correct, ns),
    random_curve(correct, ns),
    atol=1e-12,
  )


def test_many_samples_stay_exact():
  """Of 1,024 samples, against random scores drawn many times."""
  rng = np.random.default_rng(1)
  texts = rng.zipf(1.5, 1024) % 50
  correct = texts % 7 == 1
  ns = [1, 8, 64, 512]
  found = nulls.random_per_text_curve([texts], [correct], ns)[0]
  draws = 4000
  for n, share in zip(ns, found, strict=True):
    hits = 0.0
    for _ in range(draws):
      subset = np.unique(texts[rng.permutation(1024)[:n]])
      hits += (subset % 7 == 1).mean()
    # Four standard errors of a share of a share.
    assert abs(hits / draws - share) < 4 * 0.5 / draws**0.5


def lower_scored(counts, own):
  """Over all numbers k of lower texts, and all k of the others: [N + 1]."""
  others = list(counts)
  others.remove(own)
  found = np.zeros(sum(counts) + 1)
  for k in range(len(counts)):
    subsets = [*itertools.combinations(others, k)]
    for subset in subsets:
      found[sum(subset)] += 1 / len(subsets) / len(counts)
  return found


@pytest.mark.parametrize(
  'counts',
  [
    [3],
    [1, 1],
    [2, 5],
    [1, 1, 1, 1, 1, 1, 1],
    [1, 1, 1, 2, 2, 3, 7],
    [4, 4, 4, 4, 1, 1, 1, 1, 9, 2],
  ],
)
def test_the_samples_of_lower_texts_by_enumeration(counts):
  for own, found in zip(*nulls._lower_scored(np.array(counts)), strict=True):
    np.testing.assert_allclose(
      found, lower_scored(counts, own), rtol=0, atol=1e-14
    )


def test_two_thousand_samples_take_no_seconds():
  """As many right as wrong texts of every count: 1/2, whatever n is."""
  texts = np.repeat(np.arange(256), np.arange(256) % 16 + 1)  # 2,176 samples
  right = texts // 16 % 2 == 0
  began = time.process_time()
  found = nulls.random_per_text_curve([texts], [right], [1, 8, 64, 512])[0]
  assert time.process_time() - began < 2  # filling tables of all texts took 7
  np.testing.assert_allclose(found, 0.5, atol=1e-12)


def test_a_text_that_is_right_and_wrong_is_named():
  with pytest.raises(UserError, match='problem 1 has 2 samples of one text'):
    nulls.random_per_text_curve(
      [[0, 1], [3, 3]], [[True, False], [True, False]], [1]
    )


def test_noise_by_simulation():
  """The F1 of noise at its rate, and no higher at others."""
  rng = np.random.default_rng(2)
  lengths = rng.integers(1, 8, 40)
  mask = np.arange(7) < lengths[:, None]
  labels = np.where(rng.random(40) < 0.6, rng.integers(0, lengths), -1)
  found = nulls.noise(mask, labels)

  def simulated(rate):
    flags = (rng.random((4000, 40, 7)) < rate) & mask
    predicted = np.where(flags.any(2), flags.argmax(2), -1)
    hits = (predicted == labels).mean(0)
    return f1_of(hits[labels >= 0].mean(), hits[labels < 0].mean())

  at_best = simulated(found['rate'])
  assert at_best == pytest.approx(found['f1'], abs=0.01)
  for rate in (found['rate'] / 2, min(1.0, found['rate'] * 2)):
    assert simulated(rate) < found['f1'] + 0.01


def test_noise_by_hand():
  """One chain with its error in step 1, one right chain of one step.

  p against 1 - p: the harmonic mean is highest at one half.
  """
  mask = np.array([[True, True], [True, False]])
  found = nulls.noise(mask, np.array([0, -1]))
  assert found['rate'] == 0.5
  assert found['f1'] == found['acc_error'] == found['acc_correct'] == 0.5


def test_noise_is_below_what_its_own_scores_reach_by_luck():
  """A real draw of noise may be above its expectation, on few chains."""
  rng = np.random.default_rng(3)
  mask = np.ones((2000, 5), bool)
  labels = np.where(rng.random(2000) < 0.5, rng.integers(0, 5, 2000), -1)
  _, f1 = choose_threshold(rng.random((2000, 5)), mask, labels)
  assert f1 == pytest.approx(nulls.noise(mask, labels)['f1'], abs=0.03)


def test_noise_needs_both_kinds():
  assert nulls.noise(np.ones((2, 2), bool), np.array([0, 1]))['f1'] is None
