"""Chains of one problem as a policy would write them, and their rating."""

import numpy as np

from prm_jax.data.encoding import make_format
from prm_jax.data.problems import Problem
from prm_jax.data.tokenizer import PROBLEM_END, STEP_END
from prm_jax.inference.generator import Sample, read_steps, special_ids
from prm_jax.inference.protocols import Completion, ScoredSteps
from prm_jax.inference.writer import SampledTokens
from prm_jax.rl.rating import Rater, TextPrm

FORMAT = make_format('arithmetic', 48)
PROBLEM = Problem('p', 'arithmetic', 'mod 10 : 1 + 2 * 3', '9')
STEP = FORMAT.tokenizer.encode('1 + 2 = 3')
LAST = FORMAT.tokenizer.encode('3 * 3 = 9')
WHOLE = [*STEP, STEP_END, *LAST, STEP_END, PROBLEM_END]


def sample_of(tokens):
  """Returns what `Generator.sample` makes of these ids."""
  steps, finished = read_steps(FORMAT, special_ids(FORMAT), tokens)
  written = SampledTokens(
    np.array(tokens, np.int32),
    -0.1 * np.arange(1, len(tokens) + 1, dtype=np.float32),
    0,
  )
  completion = Completion(steps, finished, len(tokens), 0, 0.0)
  return Sample(tuple(FORMAT.encode_prompt(PROBLEM.text)), written, completion)


class FixedPrm:
  """A PRM that scores each step by its first character.

  Chains of more steps than `window` do not fit.
  """

  name, counts_flops, window = 'fixed', False, 100

  def __init__(self, **scores):
    self.scores, self.asked = scores, []

  def score(self, requests):
    self.asked += requests
    return [
      [ScoredSteps(tuple(self._score(s) for s in self._fit(r.steps)), 0)]
      for r in requests
    ]

  def _score(self, step):
    return self.scores.get(step[0], 0.5)

  def _fit(self, steps):
    return steps if len(steps) <= self.window else ()


def rate(samples, prm=None):
  """Rates chains of PROBLEM."""
  return Rater(FORMAT, prm and TextPrm(prm)).rate([PROBLEM], [samples])
