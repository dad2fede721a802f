"""Computes what scores without any knowledge reach: the nulls of evaluations.

A score is a function of the text. So the null of best-of-N is not a random
sample, but a random score for each distinct text. It picks a wrong text that
was sampled once as easily as a right text that was sampled often, so its
accuracy may fall as n grows. The null of error localisation flags steps at
random, at the rate with the highest F1.
"""

import functools
from collections.abc import Sequence

import numpy as np

from prm_jax.evals import steps
from prm_jax.evals.best_of_n import check_correct
from prm_jax.evals.localisation import Result, f1_of
from prm_jax.runtime.errors import UserError

_RATES = 10_001  # flagging rates among which the best is looked for


def random_per_text_curve(
  texts: np.ndarray,  # [Q, N]
  correct: np.ndarray,  # [Q, N]
  ns: Sequence[int],
) -> np.ndarray:  # [Q, K]
  """Computes the exact expected accuracy of a random score for each text.

  Of the distinct texts in a random n-subset of the samples each is the best
  with the same probability. A text with c of N samples is chosen iff the subset
  has at least one of them, and otherwise only samples of texts that score
  lower. Which these are is uniform: first their number k among the M - 1 other
  texts, then the k texts. With m samples of those,

    P = sum_m p(m) [C(m + c, n) - C(m, n)] / C(N, n).

  Args:
    texts: ids of equal texts within a problem.
    correct: whether the final answer is right; the same for equal texts.
    ns: subset sizes, each in 1..N.

  Returns:
    Accuracies in [0, 1].

  Raises:
    UserError: A text is both right and wrong, the shapes differ, or an n is
      outside 1..N.
  """
  correct = check_correct(correct, ns)
  texts = np.asarray(texts)
  if texts.shape != correct.shape:
    raise UserError(
      f'texts {texts.shape} and correct {correct.shape}: expected the same '
      'shape [problems, samples]'
    )
  contains = _subset_shares(correct.shape[1], ns)
  curve = np.empty((len(correct), len(ns)))
  for q, (ids, right) in enumerate(zip(texts, correct, strict=True)):
    _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    of_text = np.bincount(inverse, right) / counts
    if (mixed := np.flatnonzero((of_text > 0) & (of_text < 1))).size:
      raise UserError(
        f'problem {q} has {counts[mixed[0]]} samples of one text that are both '
        'right and wrong: check their answers in one way'
      )
    curve[q] = 0.0
    for count, lower in zip(*_lower_scored(counts), strict=True):
      m = np.arange(len(lower) - count)
      chosen = lower[m] @ (contains[m + count] - contains[m])
      curve[q] += chosen * of_text[counts == count].sum()
  return curve


def _subset_shares(samples: int, ns: Sequence[int]) -> np.ndarray:
  """Returns C(m, n) / C(N, n) for m = 0..N and each n: [N + 1, K]."""
  shares = np.zeros((samples + 1, len(ns)))
  for k, n in enumerate(ns):
    shares[samples, k] = 1.0
    # From m to m - 1 it falls by (m - n) / m; nothing overflows.
    for m in range(samples, n, -1):
      shares[m - 1, k] = shares[m, k] * (m - n) / m
  return shares


def _lower_scored(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns p(m), the samples of texts that score below one with c samples.

  Where its score is at the quantile u of all scores, each other text is below
  it with probability u, independently. So p(m) is the coefficient of x^m in the
  mean, over u in [0, 1], of the product of 1 - u + u x^d over the d samples of
  each other text. Gauss-Legendre nodes give the exact mean of a polynomial in u
  of this degree, and the values at roots of unity give the coefficients.

  Args:
    counts: [M] samples of every text.

  Returns:
    c: [D] the different counts.
    p: [D, N + 1] probabilities for each of them, with errors near 1e-15.
  """
  end = counts.sum() + 1
  sizes, texts = np.unique(counts, return_counts=True)
  # The polynomials are real, so the other roots have conjugate values.
  x = np.exp(-2j * np.pi * np.arange(end // 2 + 1) / end)
  powers, one = x ** sizes[:, None], np.ones((1, len(x)))
  mean = np.zeros(powers.shape, complex)
  for u, weight in zip(*_quadrature((len(counts) + 1) // 2), strict=True):
    factors = 1 - u + u * powers
    # All texts but one of each size, then one of every size but the own.
    product = np.prod(factors ** (texts - 1)[:, None], axis=0)
    smaller = np.cumprod(np.concatenate([one, factors[:-1]]), axis=0)
    larger = np.cumprod(np.concatenate([one, factors[:0:-1]]), axis=0)[::-1]
    mean += weight * product * smaller * larger
  return sizes, np.fft.irfft(mean, end)


@functools.cache
def _quadrature(count: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns K Gauss-Legendre nodes in [0, 1] and their weights.

  They integrate polynomials of degree below 2 K exactly.
  """
  nodes, weights = np.polynomial.legendre.leggauss(count)
  return (nodes + 1) / 2, weights / 2


def noise(
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
) -> Result:
  """Computes first-error F1 of noise at the flagging rate that suits it best.

  Where each step is flagged with probability p, a chain whose first error is
  step k is matched with probability p (1 - p)^k and a right chain of P steps
  with (1 - p)^P. The rate is chosen on this set itself, so a model that is not
  above this F1 has shown nothing.

  Args:
    step_mask: every step that exists.
    labels: index of the first wrong step, -1 for none.

  Returns:
    The expected numbers of `localisation`, and the `rate`.
  """
  mask = np.asarray(step_mask, bool)
  labels = steps.check_first_errors(labels, mask)
  error = labels >= 0
  p = np.linspace(0, 1, _RATES)
  found = _mean_power(1 - p, labels[error]) * p
  kept = _mean_power(1 - p, mask.sum(1)[~error])
  result: Result = {
    'f1': None,
    'acc_error': None,
    'acc_correct': None,
    'count_error': int(error.sum()),
    'count_correct': int((~error).sum()),
  }
  if error.any() and (~error).any():
    f1 = f1_of(found, kept)
    best = int(f1.argmax())
    result |= {
      'f1': float(f1[best]),
      'acc_error': float(found[best]),
      'acc_correct': float(kept[best]),
      'rate': float(p[best]),
    }
  return result


def _mean_power(base: np.ndarray, exponents: np.ndarray) -> np.ndarray:
  """Returns the mean of base^e over the exponents; 0 without any."""
  counts = np.bincount(exponents)
  powers = base[:, None] ** np.arange(len(counts))
  return powers @ counts / max(1, len(exponents))
