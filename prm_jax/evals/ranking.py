"""Measures how well scores rank right above wrong, over and within problems.

A pooled AUC also rewards scores that only tell easy problems from hard ones.
Choosing among the samples of a problem takes the order within it, so both are
reported, with intervals over whole problems.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.evals import bootstrap
from prm_jax.evals.calibration import auroc
from prm_jax.runtime.errors import UserError


class Ranked(NamedTuple):
  """Holds items that are ranked, as parallel arrays.

  Attributes:
    scores: [S], higher means right.
    right: [S] bool.
    problems: [S] ids of the items' problems, any whole numbers.
  """

  scores: np.ndarray
  right: np.ndarray
  problems: np.ndarray

  def checked(self) -> 'Ranked':
    """Returns the arrays with ids 0..Q-1; raises UserError on bad input."""
    scores = np.asarray(self.scores, np.float64)
    right, problems = np.asarray(self.right, bool), np.asarray(self.problems)
    if not scores.shape == right.shape == problems.shape or scores.ndim != 1:
      raise UserError(
        f'scores {scores.shape}, right {right.shape} and problems '
        f'{problems.shape}: expected one of each per item'
      )
    if (bad := np.flatnonzero(np.isnan(scores))).size:
      raise UserError(f'item {bad[0]} has the score NaN: leave it out')
    _, ids = np.unique(problems, return_inverse=True)
    return Ranked(scores, right, ids)


def auc_ci(
  ranked: Ranked, seed: int | Sequence[int], resamples: int = 2000
) -> tuple[float | None, list[float] | None]:
  """Returns the pooled AUC and its 95% interval over problems.

  Whole problems are drawn with replacement. A resample without both kinds has
  no AUC and counts as 1/2.

  Returns:
    The AUC and [low, high]; None and None if all items are right or none is.
  """
  ranked = ranked.checked()
  found = auroc(ranked.scores, ranked.right)
  if found is None:
    return None, None
  low, high = bootstrap.interval(_resampled_auc(ranked, seed, resamples))
  return found, [low, high]


def auc_difference_ci(
  ranked: Ranked,
  other: np.ndarray,  # [S]
  seed: int | Sequence[int],
  resamples: int = 2000,
) -> tuple[float | None, list[float] | None]:
  """Returns how far the AUC is above that of other scores of the same items.

  Both are resampled in pairs, as `auc_ci` does.
  """
  pair = ranked.checked(), ranked._replace(scores=other).checked()
  found = [auroc(each.scores, each.right) for each in pair]
  if None in found:
    return None, None
  ours, theirs = (_resampled_auc(each, seed, resamples) for each in pair)
  low, high = bootstrap.interval(ours - theirs)
  return found[0] - found[1], [low, high]


def _resampled_auc(
  ranked: Ranked, seed: int | Sequence[int], resamples: int
) -> np.ndarray:  # [B]
  """Returns the AUC of resamples of whole problems."""
  scores, right, problems = ranked
  # Items of a problem with one score are counted together.
  _, rank = np.unique(scores, return_inverse=True)
  ranks, count = rank.max() + 1, problems.max() + 1
  cells, cell = np.unique(problems * ranks + rank, return_inverse=True)
  of_problem, of_rank = np.divmod(cells, ranks)
  kinds = [
    np.bincount(cell[kind], minlength=len(cells)) for kind in (right, ~right)
  ]
  rng, values = np.random.default_rng(seed), np.full(resamples, 0.5)
  for b in range(resamples):
    drawn = np.bincount(rng.integers(count, size=count), minlength=count)
    weights = drawn[of_problem]
    good, bad = (
      np.bincount(of_rank, weights * kind, minlength=ranks) for kind in kinds
    )
    if pairs := good.sum() * bad.sum():
      values[b] = good @ (np.cumsum(bad) - bad / 2) / pairs
  return values


def within_problem_auc(
  ranked: Ranked, seed: int | Sequence[int], resamples: int = 2000
) -> dict[str, float | int | list[float] | None]:
  """Computes the mean AUC of the problems that have items of both kinds.

  Returns:
    `value` and `ci95`, over these problems, None without any; and their number,
    `problems`.
  """
  scores, right, problems = ranked.checked()
  order = np.argsort(problems, kind='stable')
  cuts = np.flatnonzero(np.diff(problems[order])) + 1
  values = [
    auroc(scores[own], right[own]) for own in np.split(order, cuts) if len(own)
  ]
  known = np.array([value for value in values if value is not None])
  if not known.size:
    return {'value': None, 'ci95': None, 'problems': 0}
  means = bootstrap.resample_means(known, seed, resamples)
  low, high = bootstrap.interval(means)
  return {
    'value': float(known.mean()),
    'ci95': [low, high],
    'problems': len(known),
  }


def ranking(
  ranked: Ranked, seed: int, resamples: int = 2000
) -> dict[str, float | list[float] | dict | None]:
  """Computes both: `auc` with its `ci95`, and `within_problem`."""
  value, ci95 = auc_ci(ranked, [seed, 0], resamples)
  return {
    'auc': value,
    'ci95': ci95,
    'within_problem': within_problem_auc(ranked, [seed, 1], resamples),
  }
