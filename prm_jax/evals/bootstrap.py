"""Computes percentile bootstrap intervals of means over problems.

Whole problems (or chains) are resampled: samples of one problem are not
independent, so resampling them singly would give intervals that are too narrow.
Two methods on the same problems are compared by the mean of their differences.
"""

from collections.abc import Sequence

import numpy as np

from prm_jax.runtime.errors import UserError

Nested = float | list  # a float, or lists of floats as deep as the input

_DRAWS_AT_ONCE = 1 << 21  # 16 MB of int64 indices


def resample_means(
  values: np.ndarray,  # [Q, ...]
  seed: int | Sequence[int],
  resamples: int = 2000,
) -> np.ndarray:  # [B, ...]
  """Returns the means of `resamples` draws of Q problems with replacement.

  The draws depend on (seed, Q, resamples) only, so two calls with the same
  three are paired.

  Raises:
    UserError: There are no problems, or a value is NaN (the error names the
      problem).
  """
  values = np.asarray(values, np.float64)
  if not values.shape or not len(values):
    raise UserError('bootstrap over no problems: expected at least one')
  count = len(values)
  flat = values.reshape(count, -1)
  if (bad := np.flatnonzero(np.isnan(flat).any(1))).size:
    raise UserError(
      f'problem {bad[0]} has the value NaN: leave out what is undefined '
      'before taking means'
    )
  rng = np.random.default_rng(seed)
  means = np.empty((resamples, flat.shape[1]))
  chunk = max(1, _DRAWS_AT_ONCE // count)
  for start in range(0, resamples, chunk):
    rows = min(chunk, resamples - start)
    draws = rng.integers(count, size=(rows, count))
    draws += count * np.arange(rows)[:, None]
    times = np.bincount(draws.ravel(), minlength=rows * count)
    means[start : start + rows] = times.reshape(rows, count) @ flat / count
  return means.reshape(resamples, *values.shape[1:])


def interval(
  means: np.ndarray,  # [B, ...]
  level: float = 0.95,
) -> tuple[Nested, Nested]:
  """Returns the central percentile interval of bootstrap means as (lo, hi)."""
  tail = (1 - level) / 2
  lo, hi = np.quantile(means, [tail, 1 - tail], axis=0)
  return lo.tolist(), hi.tolist()


def mean_ci(
  per_problem: np.ndarray,  # [Q, ...]
  seed: int,
  resamples: int = 2000,
  level: float = 0.95,
) -> tuple[Nested, Nested, Nested]:
  """Returns the mean over problems and its percentile bootstrap interval.

  Args:
    per_problem: one value, or one array of values, per problem.
    resamples: number of draws of Q problems.
    level: probability that the interval covers, in (0, 1).

  Returns:
    mean, lo, hi: floats for [Q] input, else lists shaped like one problem.

  Raises:
    UserError: There are no problems, or a value is NaN.
  """
  means = resample_means(per_problem, seed, resamples)
  lo, hi = interval(means, level)
  return np.asarray(per_problem, np.float64).mean(0).tolist(), lo, hi
