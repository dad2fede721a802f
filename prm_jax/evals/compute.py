"""Compares search methods by accuracy as a function of compute.

A method at K budgets is two arrays: compute and correctness of Q problems at
each budget. Experiments use this module for the compute that an accuracy takes,
how many times less of it one method needs than another, and whether a PRM is
over-optimised.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax.evals import best_of_n, bootstrap
from prm_jax.runtime.errors import UserError


def compute_to_reach(
  compute: Sequence[float],  # [K] above 0
  accuracy: Sequence[float],  # [K]
  wanted: float,
) -> float | None:
  """Returns the least compute at which a method has the wanted accuracy.

  Between two budgets, accuracy is interpolated linearly in the logarithm of
  compute. If the smallest budget already reaches the accuracy, the result is
  that budget, although less might be enough.

  Returns:
    The compute, or None if no budget reaches the accuracy: nothing is
    extrapolated.
  """
  order = np.argsort(compute, kind='stable')
  logs = np.log(np.asarray(compute, np.float64)[order])
  reached = np.asarray(accuracy, np.float64)[order]
  if not (reached >= wanted).any():
    return None
  k = int(np.argmax(reached >= wanted))
  if k == 0:
    return float(np.exp(logs[0]))
  share = (wanted - reached[k - 1]) / (reached[k] - reached[k - 1])
  return float(np.exp(logs[k - 1] + share * (logs[k] - logs[k - 1])))


def times_less(
  ours: tuple[np.ndarray, np.ndarray],  # compute, correct: [Q, K] each
  theirs: tuple[np.ndarray, np.ndarray],  # [Q] each, the same problems
  seed: int = 0,
  resamples: int = 2000,
) -> dict[str, Any]:
  """Computes how many times less compute we need for the accuracy of theirs.

  Args:
    ours: compute and correctness of our method at K budgets.
    theirs: compute and correctness of their method at one budget.

  Returns:
    A dict with:
    - `wanted`: their accuracy;
    - `ratio`: their compute over the least with which we reach that accuracy
      (`compute_to_reach`), or None if we never do;
    - `smallest`: whether our smallest budget reaches it, so that the true ratio
      may be larger;
    - `ci95`: bootstrap interval of the ratio. Both methods, and with them the
      wanted accuracy, are resampled together, and only resamples in which we
      reach it count;
    - `reached`: the share of these resamples. If it is low, the interval says
      little, because it leaves out the resamples in which we did badly.
  """
  cost, right = _check(*ours)
  theirs = tuple(np.asarray(x, np.float64)[:, None] for x in theirs)
  their_cost, their_right = _check(*theirs)
  if len(right) != len(their_right):
    raise UserError(
      f'{len(right)} and {len(their_right)} problems: expected the same '
      'problems in the same order'
    )

  def ratio(means: np.ndarray) -> float | None:  # [2, K + 1]
    spent, accuracy = means
    least = compute_to_reach(spent[1:], accuracy[1:], accuracy[0])
    return None if least is None else spent[0] / least

  both = np.stack(
    [np.hstack([their_cost, cost]), np.hstack([their_right, right])], 1
  )
  means = both.mean(0)
  drawn = bootstrap.resample_means(both, seed, resamples)
  ratios = [found for each in drawn if (found := ratio(each)) is not None]
  cheapest = 1 + int(np.argmin(means[0, 1:]))
  return {
    'wanted': float(means[1, 0]),
    'ratio': ratio(means),
    'smallest': bool(means[1, cheapest] >= means[1, 0]),
    'ci95': list(bootstrap.interval(np.array(ratios))) if ratios else None,
    'reached': len(ratios) / resamples,
  }


def over_optimisation(
  chain_scores: np.ndarray,  # [Q, N]
  correct: np.ndarray,  # [Q, N]
  ns: Sequence[int],
  seed: int = 0,
  resamples: int = 2000,
) -> dict[str, Any]:
  """Tests whether accuracy falls as the PRM picks from more samples.

  Gao et al. (2023) call this over-optimisation. The last point of the exact
  best-of-n curve is compared with each point before it, paired over problems.
  Each of these K - 1 differences has an interval at level 1 - 0.05 / (K - 1),
  because choosing the highest point on the same data would otherwise find a
  fall by chance.

  Returns:
    A dict with `n` and `accuracy`, the curve; `peak`, the n of the highest
    accuracy; `fall`, the difference from there to the last n (0 if the last is
    the highest) with its interval at `level`; and `over_optimised`, whether
    some point is higher than the last beyond noise.
  """
  if len(ns) < 2 or sorted(set(ns)) != list(ns):
    raise UserError(f'ns={list(ns)}: expected two ascending numbers at least')
  curve = best_of_n.best_of_n_curve(chain_scores, correct, ns)
  level = 1 - 0.05 / (len(ns) - 1)
  lost = curve - curve[:, -1:]
  mean, low, high = bootstrap.mean_ci(lost, seed, resamples, level)
  peak = int(np.argmax(mean))
  return {
    'n': list(ns),
    'accuracy': curve.mean(0).tolist(),
    'peak': ns[peak],
    'fall': {'mean': mean[peak], 'interval': [low[peak], high[peak]]},
    'level': level,
    'over_optimised': bool(np.array(low[:-1]).max() > 0),
  }


def _check(
  compute: np.ndarray, correct: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns both as float64 [Q, K]; raises UserError on bad input."""
  compute = np.asarray(compute, np.float64)
  correct = np.asarray(correct, np.float64)
  if compute.shape != correct.shape or compute.ndim != 2:
    raise UserError(
      f'compute {compute.shape} and correct {correct.shape}: expected the same '
      'shape [problems, budgets]'
    )
  if (bad := np.argwhere(~(np.isfinite(compute) & (compute >= 0)))).size:
    q, k = bad[0]
    raise UserError(
      f'problem {q} at budget {k} took {compute[q, k]}: expected FLOPs or '
      'tokens, 0 for a problem that failed before anything was spent'
    )
  if not compute.any(0).all():
    raise UserError(
      f'nothing was spent at budget {int(np.argmin(compute.any(0)))}: count '
      'tokens where the FLOPs are unknown'
    )
  return compute, correct
