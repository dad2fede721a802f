"""Bounds shares by the exact method of Clopper and Pearson (1934).

The bootstrap's intervals are too narrow near 0 and 1, and have no width at
both.
"""

import numpy as np
from scipy import special


def upper_bound(
  count: np.ndarray,  # [...]
  total: np.ndarray,  # [...]
  confidence: float,
) -> np.ndarray:  # [...] in (0, 1]
  """Returns the upper confidence bound of the share `count / total`.

  If the share were above the bound, so few would be counted with probability
  at most 1 - confidence. The bound is 1 if nothing was tried.
  """
  rest = np.asarray(total) - count
  bound = special.betaincinv(count + 1.0, np.maximum(rest, 1e-9), confidence)
  return np.where(rest > 0, bound, 1.0)


def interval95(count: int, total: int) -> list[float]:
  """Returns the lower and the upper end of the 95% interval of a share."""
  high = upper_bound(count, total, 0.975)
  return [float(1 - upper_bound(total - count, total, 0.975)), float(high)]
