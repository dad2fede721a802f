"""Measures whether step scores rank right above wrong and are probabilities.

Takes padded step scores and labels. AUROC and accuracy count a step as right if
its label is >= 0.5; the Brier score and calibration error use the label as a
probability. Human labels often stop at the first error, and later steps are of
another kind, so ranking and accuracy are also computed over the steps up to and
including the first error.
"""

import numpy as np

from prm_jax.evals import steps
from prm_jax.runtime.errors import UserError

SUREST = 1e-6  # how near to 0 and 1 a score counts in the log loss


def auroc(scores: np.ndarray, right: np.ndarray) -> float | None:
  """Returns the probability that a right item scores above a wrong one.

  Ties count half. This is the Mann-Whitney statistic, (sum of the right ones'
  ranks - R (R + 1) / 2) / (R W) for R right and W wrong items, with the mean
  rank for equal scores.

  Args:
    scores: [S], higher means right.
    right: [S] bool.

  Returns:
    A float in [0, 1]; None if all items are right or none is.
  """
  right = np.asarray(right, bool)
  positives, negatives = int(right.sum()), int((~right).sum())
  if not positives or not negatives:
    return None
  _, inverse, counts = np.unique(
    scores, return_inverse=True, return_counts=True
  )
  mean_ranks = np.cumsum(counts) - (counts - 1) / 2
  rank_sum = mean_ranks[inverse][right].sum()
  surplus = rank_sum - positives * (positives + 1) / 2
  return float(surplus / (positives * negatives))


def step_auroc(
  step_scores: np.ndarray,  # [M, P]
  step_labels: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
) -> float | None:
  """Returns the AUROC over all steps in the mask; None if a class is absent."""
  scores, labels, mask = _check(step_scores, step_labels, step_mask)
  return auroc(scores[mask], labels[mask] >= 0.5)


def first_error_auc(
  step_scores: np.ndarray,  # [M, P]
  step_labels: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
) -> float | None:
  """Returns the AUROC over steps up to and including each first error."""
  scores, labels, mask = _check(step_scores, step_labels, step_mask)
  kept = steps.until_first_error(labels, mask)
  return auroc(scores[kept], labels[kept] >= 0.5)


def accuracy_until_first_error(
  step_scores: np.ndarray,  # [M, P]
  step_labels: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  threshold: float = 0.5,
) -> float | None:
  """Returns the accuracy over steps up to and including each first error.

  A step is judged right if its score is >= threshold. The result is None if
  there are no steps.
  """
  scores, labels, mask = _check(step_scores, step_labels, step_mask)
  kept = steps.until_first_error(labels, mask)
  agree = (scores[kept] >= threshold) == (labels[kept] >= 0.5)
  return float(agree.mean()) if agree.size else None


def brier(
  step_scores: np.ndarray,  # [M, P] in [0, 1]
  step_labels: np.ndarray,  # [M, P] in [0, 1]
  step_mask: np.ndarray,  # [M, P]
) -> float | None:
  """Returns the mean squared difference of score and label.

  The result is None if there are no steps.
  """
  scores, labels, mask = _probabilities(step_scores, step_labels, step_mask)
  errors = (scores - labels)[mask] ** 2
  return float(errors.mean()) if errors.size else None


def reliability(
  step_scores: np.ndarray,  # [M, P] in [0, 1]
  step_labels: np.ndarray,  # [M, P] in [0, 1]
  step_mask: np.ndarray,  # [M, P]
  bins: int = 15,
) -> dict[str, list]:
  """Computes the reliability curve over equal-width bins of the score.

  Bin b holds b / bins <= score < (b + 1) / bins; the last bin includes 1.

  Returns:
    Lists with one entry per bin: the edges `low` and `high`, the mean `score`
    and `accuracy` (mean label), None in an empty bin, and the `count` of steps.
  """
  scores, labels, mask = _probabilities(step_scores, step_labels, step_mask)
  scores, labels = scores[mask], labels[mask]
  edges = np.arange(bins + 1) / bins
  index = np.searchsorted(edges[1:-1], scores, side='right')
  counts = np.bincount(index, minlength=bins)
  sums = [np.bincount(index, v, minlength=bins) for v in (scores, labels)]
  means = [
    [float(s / c) if c else None for s, c in zip(total, counts, strict=True)]
    for total in sums
  ]
  return {
    'low': edges[:-1].tolist(),
    'high': edges[1:].tolist(),
    'score': means[0],
    'accuracy': means[1],
    'count': counts.tolist(),
  }


def ece(
  step_scores: np.ndarray,  # [M, P] in [0, 1]
  step_labels: np.ndarray,  # [M, P] in [0, 1]
  step_mask: np.ndarray,  # [M, P]
  bins: int = 15,
) -> float | None:
  """Returns the expected calibration error (Guo et al., 2017, eq. 3).

  sum_b (n_b / S) |accuracy_b - score_b| over the bins of `reliability`, for
  n_b of S steps in bin b. The result is None if there are no steps.
  """
  return _ece(reliability(step_scores, step_labels, step_mask, bins))


def _ece(curve: dict[str, list]) -> float | None:
  total = sum(curve['count'])
  if not total:
    return None
  gaps = [
    count * abs(accuracy - score)
    for count, accuracy, score in zip(
      curve['count'], curve['accuracy'], curve['score'], strict=True
    )
    if count
  ]
  return sum(gaps) / total


def log_loss(
  step_scores: np.ndarray,  # [M, P] in [0, 1]
  step_labels: np.ndarray,  # [M, P] in [0, 1]
  step_mask: np.ndarray,  # [M, P]
) -> float | None:
  """Returns the mean of -y log(s) - (1 - y) log(1 - s), in nats.

  Scores are held within SUREST of 0 and 1, so that one sure mistake does not
  make it infinite. The result is None if there are no steps.
  """
  scores, labels, mask = _probabilities(step_scores, step_labels, step_mask)
  s, y = np.clip(scores[mask], SUREST, 1 - SUREST), labels[mask]
  loss = -y * np.log(s) - (1 - y) * np.log1p(-s)
  return float(loss.mean()) if loss.size else None


def unsure(
  step_scores: np.ndarray,  # [M, P] in [0, 1]
  step_labels: np.ndarray,  # [M, P] in [0, 1]
  step_mask: np.ndarray,  # [M, P]
) -> dict[str, float | int | None]:
  """Computes `ece` over the steps with scores from 0.05 to 0.95.

  Most steps are easy and score near 0 or 1. They make the error over all steps
  small, however wrong the scores between are.

  Returns:
    `ece`, None without such steps; and their `share` of all steps.
  """
  scores, labels, mask = _probabilities(step_scores, step_labels, step_mask)
  between = mask & (scores >= 0.05) & (scores <= 0.95)
  return {
    'ece': ece(scores, labels, between),
    'share': float(between.sum() / mask.sum()) if mask.any() else None,
  }


def calibration(
  step_scores: np.ndarray,  # [M, P] in [0, 1]
  step_labels: np.ndarray,  # [M, P] in [0, 1]
  step_mask: np.ndarray,  # [M, P]
  bins: int = 15,
) -> dict[str, object]:
  """Computes all metrics of this module, with the number of steps.

  Raises:
    UserError: The shapes differ, or a score or label is outside [0, 1].
  """
  data = _probabilities(step_scores, step_labels, step_mask)
  curve = reliability(*data, bins)
  return {
    'step_auroc': step_auroc(*data),
    'first_error_auc': first_error_auc(*data),
    'accuracy_until_first_error': accuracy_until_first_error(*data),
    'ece': _ece(curve),
    'brier': brier(*data),
    'log_loss': log_loss(*data),
    'unsure': unsure(*data),
    'reliability': curve,
    'count': sum(curve['count']),
  }


def _check(
  step_scores: np.ndarray, step_labels: np.ndarray, step_mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  scores, mask = steps.check_scores(step_scores, step_mask)
  return scores, steps.check_labels(step_labels, mask), mask


def _probabilities(
  step_scores: np.ndarray, step_labels: np.ndarray, step_mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  scores, labels, mask = _check(step_scores, step_labels, step_mask)
  if (bad := np.argwhere((scores < 0) | (scores > 1))).size:
    chain, step = bad[0]
    raise UserError(
      f'chain {chain}, step {step} scores {scores[chain, step]}: calibration '
      'needs probabilities in [0, 1]; apply the sigmoid first'
    )
  return scores, labels, mask
