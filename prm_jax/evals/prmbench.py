"""Measures step classification by PRMBench's protocol (Song et al., 2025).

Takes scores and labels of every step and counts over all steps of a class of
errors, and over all classes together (micro average). The counting follows the
reference implementation (ssmisya/PRMBench, `prmtest_classified`). Where that
reports -1, an F1 is 0 here if there were no hits, and None if there was nothing
to find.
"""

from collections.abc import Sequence

import numpy as np

from prm_jax.evals import steps
from prm_jax.runtime.errors import UserError

# The class of unmodified chains, which the reference implementation leaves out
# of the total.
UNMODIFIED = 'correct'


def _f1(hits: int, claimed: int, true: int) -> float | None:
  """Returns 2 hits / (claimed + true); None if there was nothing to find."""
  return float(2 * hits / (claimed + true)) if true else None


def _numbers(
  scores: np.ndarray, labels: np.ndarray, mask: np.ndarray
) -> dict[str, float | int | None]:
  """Returns the numbers of a set of chains; inputs are [M, P]."""
  judged_right = mask & (scores > 0.5)
  right = mask & (labels >= 0.5)
  judged_wrong, wrong = mask & ~judged_right, mask & ~right
  f1 = _f1((judged_right & right).sum(), judged_right.sum(), right.sum())
  negative_f1 = _f1(
    (judged_wrong & wrong).sum(), judged_wrong.sum(), wrong.sum()
  )
  with_error = wrong.any(1)
  first = wrong[with_error] & (np.cumsum(wrong[with_error], axis=1) == 1)
  found = judged_wrong[with_error][first]
  both = f1 is not None and negative_f1 is not None
  return {
    'prm_score': 0.5 * f1 + 0.5 * negative_f1 if both else None,
    'f1': f1,
    'negative_f1': negative_f1,
    'first_error_accuracy': float(found.mean()) if found.size else None,
    'count_right': int(right.sum()),
    'count_wrong': int(wrong.sum()),
    'count_chains': int(mask.any(1).sum()),
  }


def prmbench(
  step_scores: np.ndarray,  # [M, P]
  step_labels: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  classifications: Sequence[str],
) -> dict[str, dict]:
  """Computes PRMScore and its parts, per class of errors and overall.

  A step is judged right if its score is > 0.5, and is right if its label is
  >= 0.5.

  Args:
    step_scores: scores in [0, 1].
    step_labels: labels in [0, 1].
    step_mask: steps whose label is known.
    classifications: M class names; chains of class 'correct' count in their
      own class only.

  Returns:
    'overall' -> numbers and 'by_class' -> {class: numbers}. The numbers are
    `f1` (right steps are the positives), `negative_f1` (wrong steps are),
    `prm_score` (the mean of both), `first_error_accuracy` and counts.
    `first_error_accuracy` is the share of chains whose first wrong step is
    judged wrong, whatever was judged before it, so it is not ProcessBench's
    exact match. A number without a step to count is None, and with it
    `prm_score`.

  Raises:
    UserError: The shapes differ, a score is not finite, or a label is outside
      [0, 1].
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  labels = steps.check_labels(step_labels, mask)
  classes = np.asarray(classifications, str)
  if classes.shape != (len(mask),):
    raise UserError(
      f'{classes.size} classifications for {len(mask)} chains: expected one '
      'per chain'
    )

  def numbers(rows: np.ndarray) -> dict[str, float | int | None]:
    return _numbers(scores[rows], labels[rows], mask[rows])

  return {
    'overall': numbers(classes != UNMODIFIED),
    'by_class': {str(c): numbers(classes == c) for c in np.unique(classes)},
  }
