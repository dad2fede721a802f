"""Chooses the score above which answers are given (selective prediction).

    held-out scores and outcomes -> Platt scaling: probability of being right
      -> a quarter of the problems: thresholds to try
      -> the other problems: the lowest threshold that is safe

The guarantee: with probability `confidence` over the held-out problems, at most
`wanted_error` of the answers are wrong, in the long run over problems from the
same distribution. It says nothing about other problems, and the error rate of a
few tested problems may be higher by chance.

The method is fixed sequence testing (Angelopoulos et al., 2021, 'Learn then
Test'). The test of Clopper and Pearson (1934) is done at one threshold after
another, from strict to loose, until the first that fails, so trying many
thresholds needs no correction. The thresholds and the first one to test come
from the quarter that is not tested on. The calibrated probability is reported
and does not affect the choice, as it rises with the score.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from prm_jax.evals import proportions
from prm_jax.runtime.errors import UserError

CONFIDENCE = 0.95
# Scores are clipped to this distance from 0 and 1 before the logit: it is the
# distance from 1 to the next smaller float32.
_EDGE = 2.0**-24
_NEWTON_STEPS = 100


class Filter(NamedTuple):
  """Says when to answer and how likely an answer is to be right.

  Attributes:
    slope, offset: parameters of Platt's sigmoid, see `probabilities`.
    logit: whether the sigmoid takes the logits of scores.
    threshold: lowest chain score that is answered; None if nothing is.
    bound: upper bound of the error rate among the answers at the threshold, at
      the confidence asked for; None without a threshold.
    tried_on: number of held-out problems that gave the thresholds to try.
    tested_on: number of held-out problems that the guarantee rests on.
  """

  slope: float
  offset: float
  logit: bool
  threshold: float | None
  bound: float | None
  tried_on: int
  tested_on: int


def platt(
  chain_scores: np.ndarray,  # [Q]
  right: np.ndarray,  # [Q] bool
) -> tuple[float, float, bool]:
  """Fits Platt scaling (Platt, 1999) by maximum likelihood.

  P(right) = sigmoid(slope * x + offset), with Platt's targets (R + 1) / (R + 2)
  and 1 / (W + 2) in place of 1 and 0, so that no score becomes certain. x is
  the logit of the score if all scores lie in [0, 1], and otherwise the score
  itself (sums, log products). A negative slope would reverse the PRM's order
  and is replaced by 0.

  Returns:
    slope, offset, and whether x is the logit.
  """
  scores = np.asarray(chain_scores, np.float64)
  right = np.asarray(right, bool)
  logit = bool(((scores >= 0) & (scores <= 1)).all())
  x = _inputs(scores, logit)
  hits = int(right.sum())
  targets = np.where(right, (hits + 1) / (hits + 2), 1 / (len(x) - hits + 2))
  base = float(special.logit(targets.mean()))
  if not np.ptp(x):  # by rounding, equal numbers may have a deviation
    return 0.0, base, logit
  spread = x.std()
  z = (x - x.mean()) / spread  # the scale that the limit on steps assumes
  weights = np.array([0.0, base])
  for _ in range(_NEWTON_STEPS):
    p = special.expit(weights[0] * z + weights[1])
    gradient = np.array([((p - targets) * z).sum(), (p - targets).sum()])
    curved = np.maximum(p * (1 - p), 1e-12)
    cross = (curved * z).sum()
    hessian = np.array([[(curved * z * z).sum(), cross], [cross, curved.sum()]])
    step = np.linalg.solve(hessian, gradient)
    # A full Newton step may jump over the minimum of a steep sigmoid.
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
  """Returns the calibrated probability that a chain's answer is right."""
  x = _inputs(np.asarray(chain_scores, np.float64), fitted.logit)
  return special.expit(fitted.slope * x + fitted.offset)


def choose(
  chain_scores: np.ndarray,  # [Q]; -inf: there is no answer to give
  right: np.ndarray,  # [Q] bool
  wanted_error: float,
  confidence: float = CONFIDENCE,
  seed: int = 0,
) -> Filter:
  """Chooses the filter that answers most among those shown to be safe.

  Args:
    seed: seed for drawing the quarter that gives the thresholds.

  Raises:
    UserError: The error rate or confidence is not in (0, 1), the seed is
      negative, a score is NaN, or there are too few answers to fit.
  """
  scores, right = _check(chain_scores, right)
  for name, value in (('error', wanted_error), ('confidence', confidence)):
    if not 0 < value < 1:
      raise UserError(f'{name}={value}: expected a number between 0 and 1')
  if seed < 0:
    raise UserError(f'seed={seed}: expected 0 or more')
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
  # The first test is at the threshold that is most likely to pass, given as
  # many problems as will be tested.
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
  """Computes the error rate among the n highest-scoring answers, for every n.

  Equal scores are taken in random order; the result is the mean over orders.

  Returns:
    A dict with `coverage`, as a share of all Q problems, and `risk`, both after
    the last of each group of equal scores; `aurc`, the mean risk over
    n = 1 ... A for A problems with an answer (Geifman et al., 2019);
    `aurc_random`, the same for a score without information; and `aurc_best`,
    for a score that ranks every right answer above every wrong one. The three
    are None if there is no answer.
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
  """Bounds the error rate of the problems that each threshold answers.

  Args:
    scale: factor by which the counts are multiplied, to estimate the bound for
      more problems.
  """
  answered, errors = (
    len(kept) - np.searchsorted(np.sort(kept), thresholds)
    for kept in (scores, scores[~right])
  )
  return proportions.upper_bound(scale * errors, scale * answered, confidence)


def _inputs(scores: np.ndarray, logit: bool) -> np.ndarray:
  """Returns the inputs x of Platt's sigmoid."""
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
