"""From what a policy wrote to arrays: nothing shifts, nothing is lost."""

import numpy as np
import pytest

from prm_jax.data.tokenizer import PROBLEM_END, STEP_END
from prm_jax.inference.protocols import ScoredSteps
from prm_jax.rl import episodes
from tests.rl.written_chains import (
  FORMAT,
  LAST,
  PROBLEM,
  STEP,
  WHOLE,
  FixedPrm,
  rate,
  sample_of,
)


def test_a_problem_met_again_is_sampled_under_another_name():
  class Policy:
    def sample(self, requests):
      return [each.key for each in requests]

  names = episodes.sample(Policy(), [PROBLEM] * 2, 4, 'update 1')
  assert names[0] != names[1]


@pytest.mark.parametrize(
  'tokens',
  [
    WHOLE,
    [*STEP, STEP_END, *LAST, PROBLEM_END],  # without its last separator
    [*STEP, STEP_END, *LAST],  # cut off
    [*STEP, STEP_END, STEP_END, PROBLEM_END],  # an empty step
    [PROBLEM_END],
    [*STEP],
    [],
  ],
)
def test_step_ends_are_where_steps_were_read(tokens):
  sample = sample_of(tokens)
  count = len(sample.completion.steps)
  ends = episodes.step_ends(np.array(tokens, int), count, FORMAT)
  assert len(ends) == count
  start = 0
  for end, step in zip(ends, sample.completion.steps, strict=True):
    assert FORMAT.tokenizer.decode(tokens[start:end]).strip() == step
    start = end + 1


def test_rows_by_hand():
  prm = FixedPrm(**{'1': 0.9, '3': 0.2})
  rated = rate([sample_of(WHOLE), sample_of([*STEP])], prm)
  assert [e.right for e in rated.episodes] == [True, False]
  assert [len(e.scores) for e in rated.episodes] == [2, 0]
  assert len(prm.asked) == 1  # the PRM is not asked about chains without steps
  rows = rated.rows
  start = len(FORMAT.encode_prompt(PROBLEM.text))
  assert rows.tokens.shape == (2, 32)
  np.testing.assert_array_equal(rows.tokens[0, start : start + 13], WHOLE)
  assert rows.written[0].sum() == 13 and rows.written[1].sum() == 5
  np.testing.assert_array_equal(rows.lengths, [start + 13, start + 5])
  # Each log-probability stands at its own token.
  np.testing.assert_allclose(
    rows.sampled_logprobs[0, start : start + 13], -0.1 * np.arange(1, 14)
  )
  np.testing.assert_array_equal(rows.step_mask.sum(1), [2, 0])
  for p, score in enumerate((0.9, 0.2)):
    assert rows.tokens[0, rows.step_ends[0, p]] == STEP_END
    assert rated.episodes[0].scores[p] == score
    assert rated.rewards[0, p] == pytest.approx(score)
  assert not rated.rewards[1].any() and not rated.metrics
  np.testing.assert_array_equal(rows.outcomes, [1, 0])


def test_without_a_prm_all_scores_are_zero():
  rated = rate([sample_of(WHOLE), sample_of([*STEP])])
  assert [e.scores.tolist() for e in rated.episodes] == [[0, 0], []]
  assert not rated.rewards.any() and rated.rewards.shape == (2, 8)


def test_a_chain_that_does_not_fit_the_prm_has_no_score():
  class ShortPrm(FixedPrm):
    def score(self, requests):
      return [[ScoredSteps((), 0)] for _ in requests]

  rated = rate([sample_of(WHOLE)], ShortPrm())
  assert np.isnan(rated.episodes[0].scores).all()
  np.testing.assert_array_equal(np.isnan(rated.rewards[0]), [1, 1] + [0] * 6)


def test_rows_are_never_longer_than_the_window():
  long = sample_of([*([*STEP, STEP_END] * 6)][: 48 - 11])
  assert rate([long]).rows.tokens.shape[1] <= 48
