"""Best-of-N: closed forms against every subset, votes within their error."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data.chains import Chain
from prm_jax.evals import best_of_n, suite
from prm_jax.runtime.errors import UserError
from tests.shared.real_data import shared


@st.composite
def problems(draw, max_samples=7):
  """One problem with ties in scores: [1, N] scores, correct, answers."""
  samples = draw(st.integers(1, max_samples))
  rows = st.lists(st.integers(0, 3), min_size=samples, max_size=samples)
  scores, answers = np.array(draw(rows)) / 4, np.array(draw(rows))
  right = draw(st.integers(0, 4))
  return scores[None], (answers == right)[None], answers[None]


def every_subset(samples, n, value):
  """Mean and variance of value(indices) over all n-subsets."""
  values = [value(list(s)) for s in itertools.combinations(range(samples), n)]
  return np.mean(values), np.var(values)


def best_share(scores, correct):
  best = scores == scores.max()
  return correct[best].mean()


def vote_share(weights, correct, answers):
  """Expected correctness of the winning answer, ties shared evenly."""
  totals = {a: weights[answers == a].sum() for a in set(answers.tolist())}
  top = max(totals.values())
  winners = [a for a, t in totals.items() if math.isclose(t, top)]
  return np.mean([correct[answers == a].all() for a in winners])


def test_best_of_n_by_hand():
  # Ranks (wrong, right, right): n = 2 weighs them 2/3, 1/3, 0.
  curve = best_of_n.best_of_n_curve(
    [[0.9, 0.5, 0.1]], [[False, True, True]], [1, 2, 3]
  )
  np.testing.assert_allclose(curve, [[2 / 3, 1 / 3, 0]], atol=1e-15)


def test_best_of_n_averages_ties_by_hand():
  # The two best tie, one of them is right: half, once both can be drawn.
  curve = best_of_n.best_of_n_curve(
    [[0.1, 0.9, 0.9]], [[True, False, True]], [3, 1, 2]
  )
  np.testing.assert_allclose(curve, [[1 / 2, 2 / 3, 1 / 2]])


@settings(deadline=None, max_examples=60)
@given(problems())
def test_best_of_n_equals_every_subset(problem):
  scores, correct, _ = problem
  samples = correct.shape[1]
  ns = list(range(1, samples + 1))
  expected = [
    every_subset(samples, n, lambda s: best_share(scores[0, s], correct[0, s]))[
      0
    ]
    for n in ns
  ]
  curve = best_of_n.best_of_n_curve(scores, correct, ns)
  np.testing.assert_allclose(curve[0], expected, atol=1e-12)


@pytest.mark.parametrize('n', [1, 2, 31, 512, 1000, 1023, 1024])
def test_best_of_n_is_exact_at_1024(n):
  rng = np.random.default_rng(3)
  samples = 1024
  correct = rng.random((1, samples)) < 0.3
  scores = rng.permutation(samples)[None]
  by_rank = correct[0, np.argsort(-scores[0])]
  exact = sum(
    Fraction(math.comb(samples - i, n - 1), math.comb(samples, n))
    for i in range(1, samples + 1)
    if by_rank[i - 1]
  )
  curve = best_of_n.best_of_n_curve(scores, correct, [n])
  np.testing.assert_allclose(curve[0, 0], float(exact), rtol=1e-11)


@pytest.mark.parametrize('right', [0, 1, 5, 600, 1024])
def test_oracle_is_exact_at_1024(right):
  correct = (np.arange(1024) < right)[None]
  ns = [1, 7, 424, 425, 1024]
  exact = [
    1 - Fraction(math.comb(1024 - right, n), math.comb(1024, n)) for n in ns
  ]
  curve = best_of_n.oracle_curve(correct, ns)
  np.testing.assert_allclose(curve[0], [float(x) for x in exact], rtol=1e-11)


def test_oracle_by_hand():
  correct = [[True, False, False, False], [False] * 4]
  curve = best_of_n.oracle_curve(correct, [1, 2, 4])
  np.testing.assert_allclose(curve, [[0.25, 0.5, 1], [0, 0, 0]])


@settings(deadline=None, max_examples=60)
@given(problems(12), st.randoms(use_true_random=False))
def test_invariants(problem, random):
  scores, correct, answers = problem
  samples = correct.shape[1]
  ns = list(range(1, samples + 1))
  curve = best_of_n.best_of_n_curve(scores, correct, ns)
  oracle = best_of_n.oracle_curve(correct, ns)
  chance = best_of_n.random_curve(correct, ns)
  majority = best_of_n.majority_curve(correct, answers, ns, 0, 5)
  weighted = best_of_n.weighted_vote_curve(scores, correct, answers, ns, 0, 5)
  np.testing.assert_allclose(curve[:, 0], chance[:, 0], atol=1e-12)
  np.testing.assert_allclose(majority[:, 0], chance[:, 0], atol=1e-12)
  assert (np.diff(oracle) >= 0).all()
  assert (oracle >= curve - 1e-12).all()
  for values in (curve, majority, weighted):
    assert ((values >= 0) & (values <= 1 + 1e-12)).all()
  # The vote over all N samples is one subset, which the oracle contains.
  assert oracle[0, -1] >= max(majority[0, -1], weighted[0, -1])

  order = random.sample(range(samples), samples)
  shuffled = best_of_n.best_of_n_curve(scores[:, order], correct[:, order], ns)
  np.testing.assert_allclose(shuffled, curve, atol=1e-12)
  # Only the order of the scores matters, so logs of 0 do too.
  with np.errstate(divide='ignore'):
    logs = np.log(scores)
  np.testing.assert_array_equal(
    best_of_n.best_of_n_curve(logs, correct, ns), curve
  )
  np.testing.assert_allclose(
    best_of_n.best_of_n_curve(correct, correct, ns), oracle, atol=1e-12
  )
  np.testing.assert_allclose(
    best_of_n.best_of_n_curve(0 * scores, correct, ns), chance, atol=1e-12
  )


def test_curves_are_over_random_subsets_not_the_first_n():
  # The one right sample comes last, with the best score. The first n samples
  # miss it until n = N; a random n-subset has it n / N of the time.
  samples = 16
  correct = (np.arange(samples) == samples - 1)[None]
  ns = [1, 4, 8, 16]
  share = [[n / samples for n in ns]]
  curve = best_of_n.best_of_n_curve(np.arange(samples)[None], correct, ns)
  np.testing.assert_allclose(curve, share)
  answers = np.where(correct, 1, 0)
  weights = np.where(correct, 100.0, 1.0)
  weighted = best_of_n.weighted_vote_curve(
    weights, correct, answers, ns, 0, 40_000
  )
  # Five standard errors of 40,000 subsets; n = 1 and n = N are exact.
  np.testing.assert_allclose(weighted, share, atol=5 * 0.5 / 200)
  np.testing.assert_array_equal(weighted[:, [0, -1]], [[1 / 16, 1]])


def test_majority_by_hand():
  correct, answers = [[True, True, False]], [[7, 7, 2]]
  curve = best_of_n.majority_curve(correct, answers, [3, 1, 2], 0, 20_000)
  assert curve[0, 0] == 1
  assert curve[0, 1] == 2 / 3
  # {a, a'} is right, each of two {a, b} is a tie: (1 + 1/2 + 1/2) / 3, with
  # the variance 1/18 per subset.
  assert abs(curve[0, 2] - 2 / 3) < 5 * math.sqrt(1 / 18 / 20_000)


def test_weighted_vote_by_hand():
  correct = np.array([[True, True, False]] * 4)
  answers = np.array([[0, 0, 1]] * 4)
  scores = [[0.2, 0.3, 0.6], [0.1, 0.2, 0.3], [0.4, 0.3, 0.6], [0, 0, 0]]
  curve = best_of_n.weighted_vote_curve(scores, correct, answers, [3], 0)
  # 0.1 + 0.2 > 0.3 in floating point is still a tie; so is 0 against 0.
  np.testing.assert_array_equal(curve, [[0], [0.5], [1], [0.5]])


@settings(deadline=None, max_examples=12)
@given(problems(6))
def test_votes_agree_with_every_subset(problem):
  scores, correct, answers = problem
  samples, subsets = correct.shape[1], 4000
  ns = list(range(1, samples + 1))
  plain = best_of_n.majority_curve(correct, answers, ns, 1, subsets)[0]
  heavy = best_of_n.weighted_vote_curve(
    scores, correct, answers, ns, 1, subsets
  )[0]
  for curve, weights in ((plain, np.ones(samples)), (heavy, scores[0])):
    for n, got in zip(ns, curve, strict=True):
      mean, variance = every_subset(
        samples,
        n,
        lambda s, w=weights: vote_share(w[s], correct[0, s], answers[0, s]),
      )
      # Six standard errors, as hypothesis searches hundreds of comparisons for
      # a failure.
      assert abs(got - mean) <= 6 * math.sqrt(variance / subsets) + 1e-12


def test_samples_without_an_answer_cast_no_vote():
  correct = [[True, False, False, False], [False] * 4]
  answers = [[3, -1, -1, -1], [-1, -1, -1, -1]]
  curve = best_of_n.majority_curve(correct, answers, [1, 4], 0)
  np.testing.assert_array_equal(curve, [[0.25, 1], [0, 0]])


def test_votes_repeat_and_do_not_depend_on_other_ns_or_problems():
  rng = np.random.default_rng(0)
  answers = rng.integers(5, size=(6, 32))
  correct, scores = answers == 0, rng.random((6, 32))
  args = scores, correct, answers
  full = best_of_n.weighted_vote_curve(*args, [2, 8, 16, 32], 5)
  alone = best_of_n.weighted_vote_curve(*(a[:2] for a in args), [16, 8], 5)
  np.testing.assert_array_equal(full[:2, [2, 1]], alone)
  twice = best_of_n.weighted_vote_curve(*(a[[0, 0]] for a in args), [8], 5)
  # Equal problems draw different subsets, or their errors would add up.
  assert twice[0, 0] != twice[1, 0]
  other = best_of_n.weighted_vote_curve(*args, [2, 8, 16, 32], 6)
  assert (other[:, :3] != full[:, :3]).any()
  # All scores equal: weighted and plain majority see the same subsets.
  np.testing.assert_array_equal(
    best_of_n.weighted_vote_curve(0 * scores + 1, *args[1:], [8], 5),
    best_of_n.majority_curve(*args[1:], [8], 5),
  )


def test_problems_with_more_samples_keep_their_first():
  chains = [Chain(p, (str(i),), outcome=True) for i, p in enumerate('pppqqr')]
  assert suite.groups_of_equal_size(chains) == [[0, 1], [3, 4]]


def test_curves_form():
  methods = {
    'a': np.array([[0.0, 1.0], [1.0, 1.0]]),
    'b': np.array([[0.5, 0.0], [0.5, 1.0]]),
  }
  result = best_of_n.curves(methods, np.array([1, 4]), seed=0)
  assert result['n'] == [1, 4]
  assert result['a']['mean'] == [0.5, 1.0]
  # Two problems: resampled means are 0, 1/2, 1 with chances 1/4, 1/2, 1/4.
  # Where both are right, a share of p has (1 - p)^2 = 0.025 at the exact end.
  assert result['a']['ci95'] == [[0.0, 1.0], pytest.approx([0.025**0.5, 1.0])]
  assert result['b'] == {'mean': [0.5, 0.5], 'ci95': [[0.5, 0.5], [0.0, 1.0]]}
  assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_no_right_pick_of_few_problems_is_not_below_chance():
  """A random pick of 2 right ones in 64 is never right in 45% of all draws."""
  problems, chance = 25, 1 / 32
  methods = {
    'none': np.zeros((problems, 1)),
    'all': np.ones((problems, 1)),
    'null': np.full((problems, 1), chance),
  }
  found = best_of_n.curves(methods, [64], seed=0, null='null')
  end = 1 - 0.025 ** (1 / problems)
  none, every = found['none'], found['all']
  assert none['ci95'] == [pytest.approx([0.0, end])]
  assert every['ci95'] == [pytest.approx([1 - end, 1.0])]
  assert none['over_null']['mean'] == [-chance]
  assert none['over_null']['ci95'] == [pytest.approx([-chance, end - chance])]
  assert every['over_null']['ci95'] == [
    pytest.approx([1 - end - chance, 1 - chance])
  ]
  # Where the null has no right pick either, neither is above the other.
  never = {'none': methods['none'], 'null': methods['none']}
  found = best_of_n.curves(never, [64], seed=0, null='null')
  assert found['none']['over_null']['ci95'] == [pytest.approx([-end, end])]


def test_all_right_picks_have_the_exact_interval_at_every_size():
  """Their expectations over subsets are 1 but for rounding."""
  sizes, problems = [1, 2, 4, 8, 16], 25
  scores = np.random.default_rng(0).random((problems, 16))
  right = np.ones((problems, 16), bool)
  curve = best_of_n.best_of_n_curve(scores, right, sizes)
  found = best_of_n.curves({'prm': curve}, sizes, seed=0)
  low = 0.025 ** (1 / problems)
  assert found['prm']['ci95'] == [pytest.approx([low, 1.0])] * len(sizes)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (
      lambda: best_of_n.best_of_n_curve(
        [[0.1, 0.2], [0.3, np.nan]], np.ones((2, 2)), [1]
      ),
      'problem 1, sample 1 has the chain score NaN',
    ),
    (
      lambda: best_of_n.weighted_vote_curve(
        [[np.nan]], [[True]], [[0]], [1], seed=0
      ),
      'problem 0, sample 0 has the chain score NaN',
    ),
    (
      lambda: best_of_n.weighted_vote_curve(
        [[-0.1]], [[True]], [[0]], [1], seed=0
      ),
      'problem 0, sample 0 has the chain score -0.1.*not logs',
    ),
    (
      lambda: best_of_n.best_of_n_curve([[0.1]], [[True, False]], [1]),
      r'chain_scores \(1, 1\) and correct \(1, 2\)',
    ),
    (
      lambda: best_of_n.oracle_curve([[True, False]], [1, 3]),
      'n = 3 with 2 samples',
    ),
    (lambda: best_of_n.random_curve([[True]], [0]), 'n = 0 with 1 samples'),
    (
      lambda: best_of_n.oracle_curve([[1, -1]], [1]),
      'problem 0, sample 1 has correct = -1',
    ),
    (
      lambda: best_of_n.majority_curve([[True, False]], [[4, 4]], [1], 0),
      'problem 0, answer id 4 is both right and wrong',
    ),
    (
      lambda: best_of_n.majority_curve([[True, False]], [[-1, 4]], [1], 0),
      'problem 0 has a right sample with a negative answer id',
    ),
    (
      lambda: best_of_n.majority_curve([[True]], [[0.5]], [1], 0),
      'expected whole numbers',
    ),
    (lambda: best_of_n.curves({'n': [[1.0]]}, [1], 0), "method 'n'"),
    (
      lambda: best_of_n.curves({'a': [[1.0]]}, [1, 2], 0),
      r'method .a. of shape \(1, 1\)',
    ),
  ],
)
def test_errors_name_the_fault(call, message):
  with pytest.raises(UserError, match=message) as info:
    call()
  assert '\n' not in str(info.value)


def test_gsm8k_pool_has_its_published_random_and_oracle_accuracy():
  path = shared('best_of_n/gsm8k_test_pool.jsonl')
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  pool = [row['candidates'] for row in rows]
  correct = np.array([[c['correct'] for c in row] for row in pool])
  ids = [{c['answer']: i for i, c in enumerate(row)} for row in pool]
  answers = np.array(
    [[of[c['answer']] for c in row] for row, of in zip(pool, ids, strict=True)]
  )
  assert correct.shape == (1319, 6)
  # .424 and .810 are the figures in the data's SOURCES.md.
  assert round(best_of_n.random_curve(correct, [6]).mean(), 3) == 0.424
  assert round(best_of_n.oracle_curve(correct, [6]).mean(), 3) == 0.810
  majority = best_of_n.majority_curve(correct, answers, [6], 0)[:, 0]
  by_hand = [
    vote_share(np.ones(6), c, a) for c, a in zip(correct, answers, strict=True)
  ]
  np.testing.assert_allclose(majority, by_hand)
