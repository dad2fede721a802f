"""Linear heads on features that stay as they are, and how much two differ."""

from typing import NamedTuple

import numpy as np

ITERATIONS = 50


class Head(NamedTuple):
  """A logistic regression.

  Attributes:
    mean, spread: [F] of the features it was fitted on.
    weights: [F + 1], the last one of the constant.
  """

  mean: np.ndarray
  spread: np.ndarray
  weights: np.ndarray

  def score(self, features: np.ndarray) -> np.ndarray:  # [S, F] -> [S]
    """Returns the probability that each step is right."""
    return _sigmoid(self._scaled(features) @ self.weights)

  def _scaled(self, features: np.ndarray) -> np.ndarray:
    scaled = (features.astype(np.float64) - self.mean) / self.spread
    return np.c_[scaled, np.ones(len(scaled))]


def fit(
  features: np.ndarray,  # [S, F]
  targets: np.ndarray,  # [S] in [0, 1]
  decay: float,
) -> Head:
  """Fits a head by Newton's method.

  Minimises the mean cross-entropy plus decay / 2 times the squared weights of
  the features, each in units of its standard deviation.
  """
  spread = features.std(0, dtype=np.float64)
  mean = features.mean(0, dtype=np.float64)
  spread = np.where(spread > 0, spread, 1.0)
  head = Head(mean, spread, np.zeros(features.shape[1] + 1))
  x = head._scaled(features)
  ridge = np.full(x.shape[1], decay)
  ridge[-1] = 0.0
  weights = head.weights
  for _ in range(ITERATIONS):
    p = _sigmoid(x @ weights)
    slope = x.T @ (p - targets) / len(x) + ridge * weights
    curve = (x.T * (p * (1 - p))) @ x / len(x) + np.diag(ridge)
    curve[-1, -1] += 1e-9  # where all targets are the same
    step = np.linalg.solve(curve, slope)
    weights = weights - step
    if np.abs(step).max() < 1e-8:
      break
  return head._replace(weights=weights)


def _sigmoid(x: np.ndarray) -> np.ndarray:
  return 1 / (1 + np.exp(-np.clip(x, -50, 50)))


def auc_difference(
  pair: np.ndarray,  # [2, S] scores of two heads
  right: np.ndarray,  # [S] bool
  problems: np.ndarray,  # [S] ids 0..Q-1
  seed: int,
  resamples: int = 2000,
) -> tuple[float, float, float]:
  """Returns the AUC of the first minus that of the second, paired; low; high.

  Whole problems are drawn with replacement for the 95% interval.
  """
  ranks = [np.unique(row, return_inverse=True)[1] for row in pair]

  def difference(weights: np.ndarray) -> float:  # [Q]
    first, second = (_auc(rank, right, weights[problems]) for rank in ranks)
    return first - second

  count = int(problems.max()) + 1
  rng = np.random.default_rng(seed)
  drawn = [
    difference(np.bincount(rng.integers(count, size=count), minlength=count))
    for _ in range(resamples)
  ]
  low, high = np.quantile(drawn, [0.025, 0.975])
  return float(difference(np.ones(count))), float(low), float(high)


def _auc(rank: np.ndarray, right: np.ndarray, weights: np.ndarray) -> float:
  """Returns the AUC of weighted steps; 1/2 without both kinds."""
  good, bad = (
    np.bincount(rank, weights * kind, minlength=rank.max() + 1)
    for kind in (right, ~right)
  )
  pairs = good.sum() * bad.sum()
  return float(good @ (np.cumsum(bad) - bad / 2) / pairs) if pairs else 0.5
