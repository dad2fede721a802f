"""From what a policy wrote to arrays: nothing shifts, nothing is lost."""

import numpy as np
import pytest

from prm_jax.data.encoding import make_format
from prm_jax.data.problems import Problem
from prm_jax.data.tokenizer import PROBLEM_END, STEP_END
from prm_jax.inference.generator import Sample, read_steps, special_ids
from prm_jax.inference.protocols import Completion, Scored
from prm_jax.inference.writer import Written
from prm_jax.rl import episodes
from prm_jax.rl.rating import Rater, TextPrm

FORMAT = make_format('arithmetic', 48)
PROBLEM = Problem('p', 'arithmetic', 'mod 10 : 1 + 2 * 3', '9')
STEP = FORMAT.tokenizer.encode('1 + 2 = 3')
LAST = FORMAT.tokenizer.encode('3 * 3 = 9')
WHOLE = [*STEP, STEP_END, *LAST, STEP_END, PROBLEM_END]


def sample_of(tokens):
  """As `Generator.sample` makes it of ids."""
  steps, finished = read_steps(FORMAT, special_ids(FORMAT), tokens)
  written = Written(
    np.array(tokens, np.int32),
    -0.1 * np.arange(1, len(tokens) + 1, dtype=np.float32),
    0,
  )
  completion = Completion(steps, finished, len(tokens), 0, 0.0)
  return Sample(tuple(FORMAT.encode_prompt(PROBLEM.text)), written, completion)


class Says:
  """A PRM whose scores are given: of a step by its text."""

  name, counts_flops = 'says', False

  def __init__(self, **scores):
    self.scores, self.asked = scores, []

  def score(self, requests):
    self.asked += requests
    return [
      [Scored(tuple(self.scores.get(s[0], 0.5) for s in r.steps), 0)]
      for r in requests
    ]


def rate(samples, prm=None):
  """Chains of PROBLEM, rated."""
  return Rater(FORMAT, prm and TextPrm(prm)).rate([PROBLEM], [samples])


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
  prm = Says(**{'1': 0.9, '3': 0.2})
  rated = rate([sample_of(WHOLE), sample_of([*STEP])], prm)
  assert [e.right for e in rated.found] == [True, False]
  assert [len(e.scores) for e in rated.found] == [2, 0]
  assert len(prm.asked) == 1  # what has no step is not asked about
  rows = rated.rows
  start = len(FORMAT.encode_prompt(PROBLEM.text))
  assert rows.tokens.shape == (2, 32)
  np.testing.assert_array_equal(rows.tokens[0, start : start + 13], WHOLE)
  assert rows.written[0].sum() == 13 and rows.written[1].sum() == 5
  np.testing.assert_array_equal(
    rows.segment_ids.sum(1), [start + 13, start + 5]
  )
  # Each log-probability stands at its own token.
  np.testing.assert_allclose(
    rows.sampled_logprobs[0, start : start + 13], -0.1 * np.arange(1, 14)
  )
  np.testing.assert_array_equal(rows.step_mask.sum(1), [2, 0])
  for p, score in enumerate((0.9, 0.2)):
    assert rows.tokens[0, rows.step_ends[0, p]] == STEP_END
    assert rated.found[0].scores[p] == score
    assert rated.rewards[0, p] == pytest.approx(score)
  assert not rated.rewards[1].any() and not rated.told
  np.testing.assert_array_equal(rows.outcomes, [1, 0])


def test_without_a_prm_nothing_is_scored():
  rated = rate([sample_of(WHOLE), sample_of([*STEP])])
  assert [e.scores.tolist() for e in rated.found] == [[0, 0], []]
  assert not rated.rewards.any() and rated.rewards.shape == (2, 8)


def test_what_does_not_fit_the_prm_has_no_score():
  class Refuses(Says):
    def score(self, requests):
      return [[Scored((), 0)] for _ in requests]

  rated = rate([sample_of(WHOLE)], Refuses())
  assert np.isnan(rated.found[0].scores).all()
  np.testing.assert_array_equal(np.isnan(rated.rewards[0]), [1, 1] + [0] * 6)


def test_the_window_is_never_exceeded():
  long = sample_of([*([*STEP, STEP_END] * 6)][: 48 - 11])
  assert rate([long]).rows.tokens.shape[1] <= 48
