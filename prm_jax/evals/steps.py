"""Pads lists of steps to arrays and checks them before a metric uses them.

Every step-level evaluation starts here. The package's docstring explains the
two meanings of the mask.
"""

from collections.abc import Sequence

import numpy as np

from prm_jax.runtime.errors import UserError


def pad(
  rows: Sequence[Sequence[float | None]],
) -> tuple[np.ndarray, np.ndarray]:
  """Pads rows of different lengths to one array.

  Args:
    rows: M rows of scores or labels, one number per step. None (an unknown
      label) becomes NaN and stays in the mask; `mask & ~np.isnan(values)` is
      the mask of known labels.

  Returns:
    values: [M, P] float64, 0 at padding.
    mask: [M, P] bool, True where the row has a step.
  """
  lengths = np.array([len(row) for row in rows], np.int64)
  mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
  values = np.zeros(mask.shape)
  for i, row in enumerate(rows):
    values[i, : lengths[i]] = np.asarray(row, np.float64)
  return values, mask


def scored_mask(
  step_mask: np.ndarray,  # [M, P] every step that exists
  read: np.ndarray | None,  # [M]
) -> np.ndarray:  # [M, P] bool
  """Returns the mask of steps with a score, the first `read` of each chain.

  Args:
    read: None if every step was read.

  Raises:
    UserError: `read` has not one count per chain, from 0 to its steps.
  """
  mask = np.asarray(step_mask, bool)
  if read is None:
    return mask
  read = np.asarray(read)
  if read.shape != mask.shape[:1] or read.dtype.kind not in 'iu':
    raise UserError(
      f'read {read.shape} of {read.dtype}: expected {len(mask)} whole numbers, '
      'the steps of each chain that were scored'
    )
  if (bad := np.flatnonzero((read < 0) | (read > mask.sum(1)))).size:
    raise UserError(
      f'chain {bad[0]} has {mask[bad[0]].sum()} steps, of which {read[bad[0]]} '
      'were read: expected 0 to all of them'
    )
  return mask & (np.arange(mask.shape[1]) < read[:, None])


def check_scores(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns scores as float64, 0 where the mask is False, and the mask as bool.

  Scores are float64 because a Python threshold compared with a float32 array is
  rounded to float32 first, and could then fall on the other side of a score.

  Raises:
    UserError: The shapes differ, or a score in the mask is not finite.
  """
  scores = np.asarray(step_scores, np.float64)
  mask = np.asarray(step_mask, bool)
  if scores.ndim != 2 or scores.shape != mask.shape:
    raise UserError(
      f'step_scores {scores.shape} and step_mask {mask.shape}: expected the '
      'same shape [chains, steps]; evals.steps.pad makes both from lists'
    )
  if (bad := np.argwhere(mask & ~np.isfinite(scores))).size:
    chain, step = bad[0]
    raise UserError(
      f'chain {chain}, step {step} scores {scores[chain, step]}: expected a '
      'finite number; find out why the model gave it'
    )
  return np.where(mask, scores, 0.0), mask


def check_labels(
  step_labels: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
) -> np.ndarray:
  """Returns labels as float64, 1 where the mask is False.

  Raises:
    UserError: The shapes differ, or a label in the mask is not in [0, 1] (such
      as the -100 of a loss mask, or PRM800K's rating -1).
  """
  labels = np.asarray(step_labels, np.float64)
  if labels.shape != step_mask.shape:
    raise UserError(
      f'step_labels {labels.shape} and step_mask {step_mask.shape}: expected '
      'the same shape [chains, steps]'
    )
  outside = ~((labels >= 0) & (labels <= 1))  # NaN is outside too
  if (bad := np.argwhere(step_mask & outside)).size:
    chain, step = bad[0]
    raise UserError(
      f'chain {chain}, step {step} has label {labels[chain, step]}: expected '
      'a number in [0, 1]; set step_mask to False where it is unknown'
    )
  return np.where(step_mask, labels, 1.0)


def check_first_errors(
  labels: np.ndarray,  # [M]
  step_mask: np.ndarray,  # [M, P]
) -> np.ndarray:
  """Returns first-error indices as int64, each an existing step or -1.

  Raises:
    UserError: A chain has a hole in its mask or no step, or its label is past
      its end or below -1.
  """
  firsts = np.asarray(labels)
  if firsts.shape != step_mask.shape[:1] or firsts.dtype.kind not in 'iu':
    raise UserError(
      f'labels {firsts.shape} of {firsts.dtype}: expected '
      f'{step_mask.shape[0]} whole numbers, one first error per chain'
    )
  lengths = step_mask.sum(1)
  holes = (np.arange(step_mask.shape[1]) < lengths[:, None]) != step_mask
  if (bad := np.flatnonzero(holes.any(1) | (lengths == 0))).size:
    raise UserError(
      f'step_mask of chain {bad[0]} has a hole or no step: expected True for '
      'every step that exists, labelled or not'
    )
  if (bad := np.flatnonzero((firsts < -1) | (firsts >= lengths))).size:
    raise UserError(
      f'chain {bad[0]} has first error {firsts[bad[0]]} and '
      f'{lengths[bad[0]]} steps: expected a 0-based step index, or -1'
    )
  return firsts.astype(np.int64)


def until_first_error(
  step_labels: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
) -> np.ndarray:  # [M, P]
  """Cuts the mask after the first wrong step (label < 0.5), which stays in."""
  wrong = step_mask & (step_labels < 0.5)
  errors_before = np.cumsum(wrong, axis=1) - wrong
  return step_mask & (errors_before == 0)
