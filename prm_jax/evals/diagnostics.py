"""Finds warning signs in step scores that accuracy alone does not show.

A reward model that has drifted to judging outcomes puts its minimum on the last
step. One that counts steps gives scores that correlate with their number. One
that only reads the answer misses right answers reached by a wrong process. The
functions take step scores in the form for chains, see the package's docstring.
"""

import numpy as np

from prm_jax.evals import steps
from prm_jax.runtime.errors import UserError


def minimum_at_last(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
) -> dict[str, float | int | None]:
  """Returns the share of chains whose lowest score is that of the last step.

  A high share is the sign of outcome drift in 'Lessons of Developing PRMs'
  (Zhang et al., 2025). A last step that ties with k - 1 others counts 1 / k.
  Chains of one step are left out.

  Returns:
    `share`; `chance`, the share for a minimum at a random step, which is the
    mean of 1 / steps; and the `count` of chains. Both shares are None if there
    are no chains.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  longer = mask.sum(1) > 1
  scores, mask = scores[longer], mask[longer]
  count = len(scores)
  if not count:
    return {'share': None, 'chance': None, 'count': 0}
  masked = np.where(mask, scores, np.inf)
  lowest = masked == masked.min(1, keepdims=True)
  last = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
  credit = lowest[np.arange(count), last] / lowest.sum(1)
  return {
    'share': float(credit.mean()),
    'chance': float((1 / mask.sum(1)).mean()),
    'count': count,
  }


def length_correlation(
  chain_scores: np.ndarray,  # [M]
  step_mask: np.ndarray,  # [M, P]
) -> float | None:
  """Returns the Pearson correlation of chain score and number of steps.

  It is in [-1, 1], or None where it is undefined: for fewer than two chains,
  equal scores or chains of equal length.

  Raises:
    UserError: A score is not finite (the error names the chain).
  """
  scores = np.asarray(chain_scores, np.float64)
  lengths = np.asarray(step_mask, bool).sum(1).astype(np.float64)
  if scores.shape != lengths.shape:
    raise UserError(
      f'chain_scores {scores.shape} for {len(lengths)} chains: expected one '
      'per chain'
    )
  if (bad := np.flatnonzero(~np.isfinite(scores))).size:
    raise UserError(
      f'chain {bad[0]} scores {scores[bad[0]]}: expected a finite number'
    )
  # Constants are found before centring: the rounding error of the mean would
  # leave differences that correlate with anything.
  if len(scores) < 2 or not np.ptp(scores) or not np.ptp(lengths):
    return None
  # Scaled by their range, as squares of tiny differences underflow to 0.
  scores = (scores - scores.mean()) / np.ptp(scores)
  lengths = (lengths - lengths.mean()) / np.ptp(lengths)
  norm = np.sqrt((scores @ scores) * (lengths @ lengths))
  return float(np.clip(scores @ lengths / norm, -1, 1))


def wrong_process_found(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
  outcomes: np.ndarray,  # [M]
  threshold: float = 0.5,
) -> dict[str, float | int | None]:
  """Measures how well right answers by a wrong process are found.

  A chain is flagged if its lowest step score is < threshold. An outcome
  reward model cannot tell chains with a wrong step from those without.

  Args:
    step_mask: every step that exists.
    labels: index of the first wrong step, -1 for none.
    outcomes: bool, whether the final answer is right.
    threshold: 0.5, or chosen on other data.

  Returns:
    A dict over chains with the right answer: `found`, the flagged share of
    those with a wrong step; `false_flags`, the flagged share of those without
    (each None without such chains); and the counts `count_wrong_process` and
    `count_right_process`.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  labels = steps.check_first_errors(labels, mask)
  outcomes = np.asarray(outcomes)
  if outcomes.shape != labels.shape or outcomes.dtype != bool:
    raise UserError(
      f'outcomes {outcomes.shape} of {outcomes.dtype}: expected '
      f'{len(labels)} True or False; leave out unchecked chains'
    )
  flagged = (mask & (scores < threshold)).any(1)
  wrong = flagged[outcomes & (labels >= 0)]
  right = flagged[outcomes & (labels < 0)]
  return {
    'found': float(wrong.mean()) if wrong.size else None,
    'false_flags': float(right.mean()) if right.size else None,
    'count_wrong_process': len(wrong),
    'count_right_process': len(right),
  }
