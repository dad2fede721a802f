"""Selective prediction: answer where the score is high, abstain elsewhere.

    held-out scores and outcomes -> Platt scaling: the chance of being right
      -> a quarter: thresholds to try -> the others: the lowest that is safe

What is guaranteed. With probability `confidence` over the held-out problems,
at most `wanted_error` of the answered are wrong, in the long run over problems
drawn as the held-out ones were. Nothing is said of other problems, and a few
tested ones may do worse by chance. Clopper and Pearson's test (1934) is done at
one threshold after another, from strict to loose, until the first that fails,
so that trying many costs nothing: fixed sequence testing (Angelopoulos et al.,
2021, 'Learn then Test'). The thresholds and the one to begin at come from the
quarter that is not tested on. The calibrated probability is told and decides
nothing: it rises with the score.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from prm_jax.runtime.errors import UserError

CONFIDENCE = 0.95
# In which scores of 0 and 1 have a logit: float32's step below 1.
_EDGE = 2.0**-24
_NEWTON_STEPS = 100


class Filter(NamedTuple):
  """When to answer, and how likely an answer is to be right.

  Attributes:
    slope, offset: of Platt's sigmoid; see `probabilities`.
    logit: whether it is over the scores' logits.
    threshold: the lowest chain score that is answered; None: nothing is.
    bound: of the error rate among the answered, at the confidence asked for, at
      the threshold; None where there is none.
    tried_on, tested_on: held-out problems that said where to begin, and those
      that the promise rests on.
  """

  slope: float
  offset: float
  logit: bool
  threshold: float | None
  bound: float | None
  tried_on: int
  tested_on: int


def error_bound(
  errors: np.ndarray,  # [...] of the answered
  answered: np.ndarray,  # [...]
  confidence: float,
) -> np.ndarray:  # [...] in (0, 1]
  """The highest error rate that these counts allow (Clopper and Pearson, 1934).

  A rate above it would give as few errors or fewer with probability at most
  1 - confidence. 1 where nothing was answered.
  """
  right = np.asarray(answered) - errors
  bound = special.betaincinv(errors + 1.0, np.maximum(right, 1e-9), confidence)
  return np.where(right > 0, bound, 1.0)


def platt(
  chain_scores: np.ndarray,  # [Q]
  right: np.ndarray,  # [Q] bool
) -> tuple[float, float, bool]:
  """slope, offset and `logit` of Platt scaling (Platt, 1999).

  P(right) = sigmoid(slope * x + offset) by maximum likelihood, with Platt's
  targets (R + 1) / (R + 2) and 1 / (W + 2) in place of 1 and 0, so that no
  score is certain. x is the logit of scores that all lie in [0, 1], and the
  score itself where they do not (sums, log products). A slope below 0 would
  turn the PRM's order round: it is 0 then.
  """
  scores = np.asarray(chain_scores, np.float64)
  right = np.asarray(right, bool)
  logit = bool(((scores >= 0) & (scores <= 1)).all())
  x = _inputs(scores, logit)
  hits = int(right.sum())
  targets = np.where(right, (hits + 1) / (hits + 2), 1 / (len(x) - hits + 2))
  base = float(special.logit(targets.mean()))
  spread = x.std()
  if not spread:
    return 0.0, base, logit
  z = (x - x.mean()) / spread  # of one size, so that a step is a step
  weights = np.array([0.0, base])
  for _ in range(_NEWTON_STEPS):
    p = special.expit(weights[0] * z + weights[1])
    gradient = np.array([((p - targets) * z).sum(), (p - targets).sum()])
    curved = np.maximum(p * (1 - p), 1e-12)
    cross = (curved * z).sum()
    hessian = np.array([[(curved * z * z).sum(), cross], [cross, curved.sum()]])
    step = np.linalg.solve(hessian, gradient)
    # A full step may leap over the minimum of a steep sigmoid.
    weights = weights - step / max(1.0, np.abs(step).max())
    if np.abs(step).max() < 1e-10:
      break
  if weights[0] <= 0:
    return 0.0, base, logit
  slope = weights[0] / spread
  return float(slope), float(weights[1] - slope * x.mean()), logit


def probabilities(
  chain_scores: np.ndarray,  # [Q]
  fitted: Filter,
) -> np.ndarray:  # [Q] in (0, 1)
  """The calibrated probability that the chain's answer is right."""
  x = _inputs(np.asarray(chain_scores, np.float64), fitted.logit)
  return special.expit(fitted.slope * x + fitted.offset)


def choose(
  chain_scores: np.ndarray,  # [Q]; -inf: there is no answer to give
  right: np.ndarray,  # [Q] bool
  wanted_error: float,
  confidence: float = CONFIDENCE,
  seed: int = 0,
) -> Filter:
  """The filter that answers most, among those that are shown to be safe.

  Args:
    seed: of which problems are the quarter.

  Raises:
    UserError: an error rate or a confidence not in (0, 1), a NaN, or too few
      answers to fit.
  """
  scores, right = _check(chain_scores, right)
  for name, value in (('error', wanted_error), ('confidence', confidence)):
    if not 0 < value < 1:
      raise UserError(f'{name}={value}: expected a number between 0 and 1')
  has = np.isfinite(scores)
  order = np.random.default_rng(seed).permutation(len(scores))
  tried, tested = np.split(order, [len(scores) // 4])
  if not has[tried].any():
    raise UserError(
      f'{has.sum()} of {len(scores)} held-out problems with an answer: '
      'expected hundreds; search more problems of the held-out split'
    )
  slope, offset, logit = platt(scores[has], right[has])
  thresholds = np.unique(scores[tried][has[tried]])[::-1]
  # Begin where as many problems as will be tested are the likeliest to pass.
  scale = len(tested) / len(tried)
  likely = _bounds(scores[tried], right[tried], thresholds, confidence, scale)
  sequence = thresholds[len(likely) - 1 - np.argmin(likely[::-1]) :]
  bounds = _bounds(scores[tested], right[tested], sequence, confidence)
  passed = int(np.argmin(np.append(bounds <= wanted_error, False)))
  threshold, bound = None, None
  if passed:
    threshold, bound = float(sequence[passed - 1]), float(bounds[passed - 1])
  return Filter(slope, offset, logit, threshold, bound, len(tried), len(tested))


def risk_coverage(
  chain_scores: np.ndarray,  # [Q]; -inf: there is no answer to give
  right: np.ndarray,  # [Q] bool
) -> dict[str, Any]:
  """The error rate among the n answers of the highest scores, for every n.

  Equal scores are answered in random order, in the mean over orders.

  Returns:
    `coverage` and `risk`, after the last of each group of equal scores:
    coverage of all Q problems; `aurc`, the mean risk over n = 1 ... A of the A
    problems that have an answer (Geifman et al., 2019); `aurc_random`, of a
    score that says nothing; `aurc_best`, of one that ranks every right answer
    above every wrong one. None where there is no answer.
  """
  scores, right = _check(chain_scores, right)
  scores, right = (x[np.isfinite(scores)] for x in (scores, right))
  total, count = len(chain_scores), len(scores)
  if not count:
    none = dict.fromkeys(('aurc', 'aurc_random', 'aurc_best'))
    return {'coverage': [], 'risk': [], **none}
  order = np.argsort(-scores, kind='stable')
  scores, wrong = scores[order], 1.0 - right[order]
  _, group = np.unique(-scores, return_inverse=True)
  sizes = np.bincount(group)
  means = np.bincount(group, wrong) / sizes
  answered = np.arange(1, count + 1)
  risks = np.cumsum(means[group]) / answered
  ends = np.cumsum(sizes) - 1
  ideal = np.maximum(answered - (count - wrong.sum()), 0) / answered
  return {
    'coverage': (answered[ends] / total).tolist(),
    'risk': risks[ends].tolist(),
    'aurc': float(risks.mean()),
    'aurc_random': float(wrong.mean()),
    'aurc_best': float(ideal.mean()),
  }


def _bounds(
  scores: np.ndarray,  # [Q]
  right: np.ndarray,  # [Q]
  thresholds: np.ndarray,  # [T]
  confidence: float,
  scale: float = 1.0,
) -> np.ndarray:  # [T]
  """`error_bound` of the problems that each threshold answers.

  Args:
    scale: how many times as many problems there will be.
  """
  answered, errors = (
    len(kept) - np.searchsorted(np.sort(kept), thresholds)
    for kept in (scores, scores[~right])
  )
  return error_bound(scale * errors, scale * answered, confidence)


def _inputs(scores: np.ndarray, logit: bool) -> np.ndarray:
  if not logit:
    return scores
  return special.logit(np.clip(scores, _EDGE, 1 - _EDGE))


def _check(
  chain_scores: Sequence[float], right: Sequence[bool]
) -> tuple[np.ndarray, np.ndarray]:
  scores, right = np.asarray(chain_scores, np.float64), np.asarray(right, bool)
  if scores.shape != right.shape or scores.ndim != 1:
    raise UserError(
      f'{scores.shape} chain scores and {right.shape} outcomes: expected one '
      'of each for every problem'
    )
  if (bad := np.flatnonzero(np.isnan(scores) | (scores == np.inf))).size:
    raise UserError(
      f'problem {bad[0]} has the chain score {scores[bad[0]]}: expected a '
      'number, or -inf where there is no answer'
    )
  return scores, right
