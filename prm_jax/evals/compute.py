"""Accuracy as a function of compute: for experiments with many searches.

One method at K budgets is two arrays, compute and correctness of Q problems at
each. What the sentences of an experiment say is computed here: the compute that
an accuracy takes, how much less of it one method takes than another, and
whether a PRM is over-optimised.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prm_jax.errors import UserError
from prm_jax.evals import best_of_n, bootstrap


def compute_to_reach(
  compute: Sequence[float],  # [K] above 0
  accuracy: Sequence[float],  # [K]
  wanted: float,
) -> float | None:
  """The least compute at which a method has the wanted accuracy.

  Between two budgets accuracy is taken to be linear in the logarithm of
  compute. A method that has it at its smallest budget may need less than that,
  which is then what is given.

  Returns:
    None where no budget reaches it: nothing is extrapolated.
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
  theirs: tuple[np.ndarray, np.ndarray],  # [Q, L] each, the same problems
  wanted: float,
  seed: int = 0,
  resamples: int = 2000,
) -> dict[str, Any]:
  """How many times less compute we need for an accuracy than they do.

  Returns:
    `ours` and `theirs`, the compute of each, None where it is not reached;
    `ratio`, theirs / ours; `ci95` of it over problems, drawn again for both
    together, among the resamples in which both reach it; `reached`, the share
    of these. An interval with a low share says little: it leaves out the draws
    in which one of the two did badly.
  """
  pairs = [_check(*ours), _check(*theirs)]
  if len(pairs[0][0]) != len(pairs[1][0]):
    raise UserError(
      f'{len(pairs[0][0])} and {len(pairs[1][0])} problems: expected the same '
      'problems in the same order'
    )
  found = [
    compute_to_reach(cost.mean(0), right.mean(0), wanted)
    for cost, right in pairs
  ]
  # Equal seeds and numbers of problems: the draws are those of both.
  drawn = [
    bootstrap.resample_means(np.stack(pair, 1), seed, resamples)
    for pair in pairs
  ]
  ratios = []
  for mine, other in zip(*drawn, strict=True):
    a, b = compute_to_reach(*mine, wanted), compute_to_reach(*other, wanted)
    if a is not None and b is not None:
      ratios.append(b / a)
  both = None not in found
  return {
    'wanted': wanted,
    'ours': found[0],
    'theirs': found[1],
    'ratio': found[1] / found[0] if both else None,
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
  """Does accuracy fall as the PRM picks from more samples (Gao et al., 2023)?

  The exact curve of best-of-n, and its last point against each point before
  it, paired over problems. The interval of each of these K - 1 differences is
  at level 1 - 0.05 / (K - 1): the highest point is found on the same data, and
  is higher than it should be.

  Returns:
    `n`, `accuracy`; `peak`, the n of the highest accuracy; `fall`, from there
    to the last n (0 where the last is the highest), with its interval at
    `level`; `over_optimised`: some point lies above the last beyond noise.
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


def _check(compute, correct):
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
      'tokens where nobody knows the FLOPs'
    )
  return compute, correct
