"""Markdown tables of the experiments, and how their cells show numbers.

Measured numbers are shares in [0, 1]; tables show them in percent.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from prm_jax.evals import over_seeds


def table(heads: str | Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Formats a Markdown table; every row has a cell for each head.

  Args:
    heads: the heads, also as one text with ' | ' between them.
  """
  heads = heads.split(' | ') if isinstance(heads, str) else heads
  lines = [heads, ['---'] * len(heads), *rows]
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)


def mean(values: Sequence[float]) -> float:
  """Returns the mean of the values; their sum is rounded once."""
  return math.fsum(values) / len(values)


def percent(value: float) -> str:
  """Formats a share in percent."""
  return f'{100 * value:.1f}'


def points(value: float) -> str:
  """Formats a difference of two shares in percentage points, with its sign.

  What rounds to 0.0 has none.
  """
  shown = f'{100 * value:+.1f}'
  return shown if float(shown) else shown[1:]


def between(ci95: Sequence[float]) -> str:
  """Formats an interval of shares in percent."""
  return ' to '.join(map(percent, ci95))


def points_between(ci95: Sequence[float]) -> str:
  """Formats an interval of differences in percentage points."""
  return ' to '.join(map(points, ci95))


def times(ratio: float, digits: int = 1) -> str:
  """Formats a ratio."""
  return f'{ratio:.{digits}f}x'


def mean_and_seeds(values: Sequence[float]) -> str:
  """Formats the mean of the seeds in percent and, in brackets, each seed."""
  return f'{percent(mean(values))} ({", ".join(map(percent, values))})'


def ratio_between(ci95: Sequence[float], open_ends: Sequence[bool]) -> str:
  """Formats an interval of ratios whose ends may lie beyond the budgets.

  '2.1 to > 4.0' has an upper end somewhere above 4.0, and '< 1.0 to 1.5' a
  lower end somewhere below 1.0. '> 1.5' is all of an interval that begins at
  1.5, and '< 1.0' all of one that ends there.
  """
  (low, high), (low_open, high_open) = ci95, open_ends
  if low == high and low_open != high_open:
    return f'{"<" if low_open else ">"} {low:.1f}'
  return f'{"< " * low_open}{low:.1f} to {"> " * high_open}{high:.1f}'


def mean_between(
  values: Sequence[float], ci95: Sequence[Sequence[float]]
) -> str:
  """Formats the mean of seeds in points, and its 95% interval over the seeds.

  Each seed has problems of its own. One seed has no interval.

  Args:
    values: a difference of shares for each seed.
    ci95: the interval of each over its problems.
  """
  if len(values) < 2:
    return points(mean(values))
  errors = over_seeds.error_of(np.array(ci95))
  found = over_seeds.independent(np.array(values), errors)
  return f'{points(found.mean)} ({points_between((found.low, found.high))})'
