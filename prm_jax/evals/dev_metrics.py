"""Measures a PRM on the dev chains, as training does at every checkpoint."""

from collections.abc import Sequence

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.data.targets import TargetConfig, step_targets
from prm_jax.evals import calibration, suite
from prm_jax.runtime.errors import UserError


def dev_metrics(
  chains: Sequence[Chain], scores: Sequence[np.ndarray], targets: TargetConfig
) -> dict[str, float]:
  """Measures how well step scores separate right from wrong steps on dev.

  Args:
    scores: [R] in [0, 1] of each chain, for the R steps that were read.

  Returns:
    `eval/brier` in [0, 1], against labels rounded at 1/2; `eval/auc` in [0, 1],
    NaN if a score is not finite, absent if all steps are of one class; and
    `eval/unread_steps`, a count, absent if every step was read.

  Raises:
    UserError: no labelled step was read.
  """
  flat, right = [], []
  for chain, values in zip(chains, scores, strict=True):
    known = step_targets(chain, len(values), targets)
    keep = known.weights > 0
    flat.append(values[keep])
    right.append(known.values[keep] >= 0.5)
  flat, right = np.concatenate(flat), np.concatenate(right)
  if not flat.size:
    raise UserError(
      f'no labelled step of {len(chains)} dev chains fits the window: raise '
      'data.max_length, or hold out chains with labels'
    )
  metrics = {'eval/brier': float(((flat - right) ** 2).mean())}
  # NaN cannot be ranked, so neither can a checkpoint that scores NaN.
  ranked = np.isfinite(flat).all()
  auc = calibration.auroc(flat, right) if ranked else float('nan')
  if auc is not None:
    metrics['eval/auc'] = auc
  if unread := suite.unread_section(chains, scores):
    metrics['eval/unread_steps'] = float(unread['steps'])
  return metrics
