"""AUC within and over problems, by hand and by simulation."""

import numpy as np
import pytest

from prm_jax.data.chains import Chain
from prm_jax.evals import suite
from prm_jax.evals.ranking import (
  Ranked,
  auc_ci,
  auc_difference_ci,
  ranking,
  within_problem_auc,
)
from prm_jax.runtime.errors import UserError


def test_difficulty_alone_has_a_pooled_auc_and_none_within():
  """Scores that say how easy a problem is, and nothing of its samples."""
  rng = np.random.default_rng(0)
  ease = rng.random(300)
  problems = np.repeat(np.arange(300), 16)
  right = rng.random(4800) < ease[problems]
  ranked = Ranked(ease[problems], right, problems)
  found = ranking(ranked, 0, 200)
  assert found['auc'] > 0.8
  within = found['within_problem']
  assert within['value'] == 0.5  # all samples of a problem tie
  assert within['ci95'] == [0.5, 0.5]
  kinds = [len(set(right[problems == q])) for q in range(300)]
  assert within['problems'] == kinds.count(2)


def test_within_problems_by_hand():
  """One pair in order and one tied; one out of order; one problem all right."""
  ranked = Ranked(
    np.array([0.9, 0.1, 0.9, 0.2, 0.3, 5.0]),
    np.array([True, False, False, True, False, True]),
    np.array([7, 7, 7, 3, 3, 9]),
  )
  found = within_problem_auc(ranked, 0)
  assert found['value'] == (0.75 + 0.0) / 2
  assert found['problems'] == 2


def test_variants_of_a_problem_are_one_problem():
  variants = [
    Chain(name, ('a',), meta={'original_problem': 'p'}) for name in 'ab'
  ]
  chains = [*variants, Chain('q', ('a',)), Chain('p', ('a',))]
  assert suite.problem_ids(chains).tolist() == [0, 0, 1, 0]


def test_intervals_are_those_of_whole_problems():
  """Copies of every item tell nothing more, and unrelated ones do."""
  rng = np.random.default_rng(1)
  right = rng.random(200) < 0.5
  scores = right + rng.normal(0, 1.5, 200)
  problems = np.arange(200)
  one = auc_ci(Ranked(scores, right, problems), 0)
  copies = [np.repeat(x, 9) for x in (scores, right, problems)]
  again = auc_ci(Ranked(*copies), 0)
  assert again[0] == pytest.approx(one[0])
  assert again[1] == pytest.approx(one[1])
  copies[2] = np.arange(1800)
  low, high = auc_ci(Ranked(*copies), 0)[1]
  assert high - low < 0.5 * (one[1][1] - one[1][0])


def test_the_interval_covers_the_truth():
  """Items of a problem share a shift; the truth is that of many problems."""
  rng = np.random.default_rng(2)

  def draw(problems):
    shift = rng.normal(0, 1, problems)
    ids = np.repeat(np.arange(problems), 4)
    right = rng.random(4 * problems) < 1 / (1 + np.exp(-shift[ids]))
    scores = shift[ids] + right + rng.normal(0, 1, 4 * problems)
    return Ranked(scores, right, ids)

  truth, _ = auc_ci(draw(50_000), 0, 1)
  runs = [auc_ci(draw(80), [0, i], 300)[1] for i in range(300)]
  covered = np.mean([low <= truth <= high for low, high in runs])
  # 95% within three standard errors, and a little for so few problems.
  assert 0.90 < covered < 0.99


def test_a_difference_is_that_of_pairs():
  """What both share cancels, so its interval is narrower than either's."""
  rng = np.random.default_rng(3)
  right = rng.random(400) < 0.5
  noise = rng.normal(0, 1, 400)
  ranked = Ranked(right + noise, right, np.arange(400) // 2)
  other = 0.7 * right + noise
  found, (low, high) = auc_difference_ci(ranked, other, 0)
  ours, own = auc_ci(ranked, 0)
  theirs, _ = auc_ci(ranked._replace(scores=other), 0)
  assert found == pytest.approx(ours - theirs)
  assert low < found < high
  assert high - low < 0.5 * (own[1] - own[0])
  assert auc_difference_ci(ranked, ranked.scores, 0) == (0, [0, 0])
  of_one_kind = Ranked(noise, np.ones(400, bool), ranked.problems)
  assert auc_difference_ci(of_one_kind, noise, 0) == (None, None)


def test_items_of_one_kind_have_no_auc():
  ranked = Ranked(np.ones(2), np.array([True, True]), np.array([0, 1]))
  assert ranking(ranked, 0) == {
    'auc': None,
    'ci95': None,
    'within_problem': {'value': None, 'ci95': None, 'problems': 0},
  }


def test_what_cannot_be_ranked_is_named():
  with pytest.raises(UserError, match='item 1 has the score NaN'):
    auc_ci(Ranked([0.1, np.nan], [True, False], [0, 0]), 0)
  with pytest.raises(UserError, match='expected one of each per item'):
    auc_ci(Ranked([0.1], [True, False], [0, 0]), 0)
