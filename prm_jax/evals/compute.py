"""Compares search methods by accuracy as a function of compute.

A method at K budgets is two arrays: compute and correctness of problems, or of
other units, at each budget. Experiments use this module for the compute that an
accuracy takes, how many times less of it one method needs than another, and
whether a PRM is over-optimised.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax.evals import best_of_n, bootstrap, over_seeds
from prm_jax.runtime.errors import UserError

_POINTS = 400  # budgets between the smallest and the largest that are tried


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
  budgets = np.asarray(compute, np.float64)[order]
  reached = np.asarray(accuracy, np.float64)[order]
  if not (reached >= wanted).any():
    return None
  k = int(np.argmax(reached >= wanted))
  if k == 0 or reached[k] == wanted:
    return float(budgets[k])
  logs = np.log(budgets)
  share = (wanted - reached[k - 1]) / (reached[k] - reached[k - 1])
  return float(np.exp(logs[k - 1] + share * (logs[k] - logs[k - 1])))


def times_less(
  ours: tuple[np.ndarray, np.ndarray],  # compute, accuracy: [U, K] each
  theirs: tuple[np.ndarray, np.ndarray],  # [U] each, the same units
) -> dict[str, Any]:
  """Computes how many times less compute we need for the accuracy of theirs.

  A unit is an independent replicate: a seed of an experiment whose seeds have
  problems of their own, or a problem of one run. Both methods are measured on
  each.

  In some resamples our method never reaches their accuracy. They have no ratio,
  and dropping them would favour our method. So the interval is built from
  accuracies (Fieller, 1954): a ratio r is in it unless our accuracy at 1 / r of
  their compute differs from theirs significantly, by Student's t over the
  units' paired differences. Our accuracy is interpolated as in
  `compute_to_reach`, between the mean compute of the budgets. Nothing is
  extrapolated, so an end beyond our budgets is open:

  - we are nowhere above theirs beyond noise: the low end is open, because we
    may never reach it, which is a ratio of 0. It is known to lie below their
    compute over that of our largest budget;
  - our smallest budget is not below theirs beyond noise: the high end is open.
    It is known to lie above their compute over that of our smallest budget.

  Args:
    ours: compute and accuracy of our method at K budgets.
    theirs: compute and accuracy of their method at one budget.

  Returns:
    A dict with:
    - `wanted`: their accuracy;
    - `ratio`: their compute over the least with which we reach that accuracy
      (`compute_to_reach`), or None if we never do;
    - `smallest`: whether our smallest budget reaches it, so that the true ratio
      may be larger;
    - `ci95`: the interval's low and high end, None for a single unit;
    - `open`: whether the low end lies below the number given, and whether the
      high end lies above.
  """
  cost, right = _check(*ours)
  theirs = tuple(np.asarray(x, np.float64)[:, None] for x in theirs)
  their_cost, their_right = _check(*theirs)
  if len(right) != len(their_right):
    raise UserError(
      f'{len(right)} and {len(their_right)} units: expected the same seeds or '
      'problems in the same order'
    )
  order = np.argsort(cost.mean(0), kind='stable')
  budgets, right = cost.mean(0)[order], right[:, order]
  spent, wanted = their_cost.mean(), their_right.mean()
  least = compute_to_reach(budgets, right.mean(0), wanted)
  found = {
    # The interval is that of the number that comes first.
    'ratio': None if least is None else float(spent / least),
    'wanted': float(wanted),
    'smallest': bool(right[:, 0].mean() >= wanted),
    'ci95': None,
    'open': None,
  }
  if len(right) == 1:
    return found
  between = np.geomspace(budgets[0], budgets[-1], _POINTS)
  # The ends stay what they are, and budgets are among the points.
  points = np.union1d(np.clip(between, budgets[0], budgets[-1]), budgets)
  lead = np.stack(
    [np.interp(np.log(points), np.log(budgets), row) for row in right]
  )
  bounds = over_seeds.independent(lead - their_right)
  above = compute_to_reach(points, bounds.low, 0.0)
  not_below = compute_to_reach(points, bounds.high, 0.0)
  low = spent / (budgets[-1] if above is None else above)
  high = spent / (budgets[-1] if not_below is None else not_below)
  return found | {
    'ci95': [float(low), float(high)],
    'open': [above is None, bool(bounds.high[0] >= 0)],
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
      'shape [units, budgets]'
    )
  if (bad := np.argwhere(~(np.isfinite(compute) & (compute >= 0)))).size:
    q, k = bad[0]
    raise UserError(
      f'unit {q} at budget {k} took {compute[q, k]}: expected FLOPs or '
      'tokens, 0 for a unit that failed before anything was spent'
    )
  if not compute.any(0).all():
    raise UserError(
      f'nothing was spent at budget {int(np.argmin(compute.any(0)))}: count '
      'tokens where the FLOPs are unknown'
    )
  return compute, correct
