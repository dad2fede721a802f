"""Computes accuracy as a function of n for best-of-n, votes and baselines.

Takes the chain scores of N samples per problem and returns, per problem and n,
the expected accuracy over a random n-subset of the N samples (not the first n,
nor the n most likely). Best-of-n, random and oracle are exact closed forms;
votes are resampled with a seed.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from prm_jax.evals import bootstrap, proportions
from prm_jax.runtime.errors import UserError

# Weighted votes that differ by less, relatively, are a tie: sums of the same
# numbers in another order differ by about 1e-13 at N = 1024.
_TIE = 1e-9


def check_correct(correct: np.ndarray, ns: Sequence[int]) -> np.ndarray:
  """Returns `correct` as float64 [Q, N]; raises UserError on bad input."""
  correct = np.asarray(correct, np.float64)
  if correct.ndim != 2 or not correct.size:
    raise UserError(
      f'correct has shape {correct.shape}: expected [problems, samples]'
    )
  if (bad := np.argwhere((correct != 0) & (correct != 1))).size:
    q, i = bad[0]
    raise UserError(
      f'problem {q}, sample {i} has correct = {correct[q, i]}: expected True '
      'or False; leave out unchecked samples'
    )
  samples = correct.shape[1]
  for n in ns:
    if n not in range(1, samples + 1):
      raise UserError(
        f'n = {n} with {samples} samples per problem: expected 1 to {samples}'
      )
  return correct


def _check_scores(chain_scores: np.ndarray, correct: np.ndarray) -> np.ndarray:
  """Returns scores as float64 [Q, N]; raises UserError on bad input."""
  scores = np.asarray(chain_scores, np.float64)
  if scores.shape != correct.shape:
    raise UserError(
      f'chain_scores {scores.shape} and correct {correct.shape}: expected '
      'the same shape [problems, samples]'
    )
  if (bad := np.argwhere(np.isnan(scores))).size:
    raise UserError(
      f'problem {bad[0][0]}, sample {bad[0][1]} has the chain score NaN: '
      'find out why, or leave the problem out'
    )
  return scores


def _ranked_correct(scores: np.ndarray, correct: np.ndarray) -> np.ndarray:
  """Returns correctness [Q, N] by falling score, averaged within ties."""
  order = np.argsort(-scores, axis=1, kind='stable')
  scores = np.take_along_axis(scores, order, axis=1)
  correct = np.take_along_axis(correct, order, axis=1)
  starts = np.ones(scores.shape, bool)
  starts[:, 1:] = scores[:, 1:] != scores[:, :-1]
  group = np.cumsum(starts.ravel()) - 1
  means = np.bincount(group, correct.ravel()) / np.bincount(group)
  return means[group].reshape(scores.shape)


def best_of_n_curve(
  chain_scores: np.ndarray,  # [Q, N]
  correct: np.ndarray,  # [Q, N]
  ns: Sequence[int],
) -> np.ndarray:  # [Q, K]
  """Computes the exact expected accuracy of the best-scored of n samples.

  With c_i the correctness of the sample ranked i = 1..N by falling score,

    BoN@n = sum_i c_i C(N - i, n - 1) / C(N, n),

  as rank i is the best of an n-subset iff the other n - 1 are ranked below
  it. Equal scores are broken at random: c_i is averaged within ties.

  Args:
    chain_scores: higher is better; -inf (a log of 0) is allowed.
    ns: subset sizes, each in 1..N, in any order.

  Returns:
    Accuracies in [0, 1].

  Raises:
    UserError: A score is NaN (the error names problem and sample), the shapes
      differ, or an n is outside 1..N.
  """
  correct = check_correct(correct, ns)
  ranked = _ranked_correct(_check_scores(chain_scores, correct), correct)
  samples = correct.shape[1]
  below = samples - np.arange(1, samples)  # samples ranked below rank i
  weights = np.empty((samples, len(ns)))
  for k, n in enumerate(ns):
    # w_1 = n / N and w_{i+1} = w_i (N - i - n + 1) / (N - i): every factor is
    # in [0, 1], so nothing overflows and what underflows weighs nothing.
    factors = np.maximum(below - n + 1, 0) / below
    weights[:, k] = n / samples * np.cumprod(np.append(1.0, factors))
  return ranked @ weights


def random_curve(correct: np.ndarray, ns: Sequence[int]) -> np.ndarray:
  """Returns the accuracy [Q, K] of one random sample, the same for every n."""
  correct = check_correct(correct, ns)
  return np.repeat(correct.mean(1, keepdims=True), len(ns), axis=1)


def oracle_curve(correct: np.ndarray, ns: Sequence[int]) -> np.ndarray:
  """Computes pass@n [Q, K] (Chen et al., 2021, eq. 1).

  pass@n = 1 - C(N - c, n) / C(N, n) for c right samples of N.
  """
  correct = check_correct(correct, ns)
  samples = correct.shape[1]
  drawn = np.arange(samples)
  wrong = samples - correct.sum(1, keepdims=True)
  misses = np.cumprod(np.maximum(wrong - drawn, 0) / (samples - drawn), axis=1)
  return 1 - misses[:, np.asarray(ns, np.int64) - 1]


def majority_curve(
  correct: np.ndarray,  # [Q, N]
  answers: np.ndarray,  # [Q, N]
  ns: Sequence[int],
  seed: int,
  subsets: int = 200,
) -> np.ndarray:  # [Q, K]
  """Estimates the accuracy of the most frequent answer of n random samples.

  Args:
    correct: whether the final answer is right; the same for equal answers.
    answers: ids of equal answers within a problem. A negative id is no answer:
      it casts no vote, and a subset without votes is wrong.
    ns: subset sizes, each in 1..N.
    seed: problem q uses the random stream (seed, q), so its subsets do not
      depend on other problems or on `ns`, and equal seeds pair the two votes.
    subsets: number of random subsets per n; n = 1 and n = N are exact. The
      standard error per problem is at most 0.5 / sqrt(subsets).

  Returns:
    Accuracies in [0, 1]; answers that tie share a subset evenly.

  Raises:
    UserError: An answer id is both right and wrong, a right sample has no
      answer, the shapes differ, or an n is outside 1..N.
  """
  correct = check_correct(correct, ns)
  return _vote(None, correct, answers, ns, seed, subsets)


def weighted_vote_curve(
  chain_scores: np.ndarray,  # [Q, N]
  correct: np.ndarray,  # [Q, N]
  answers: np.ndarray,  # [Q, N]
  ns: Sequence[int],
  seed: int,
  subsets: int = 200,
) -> np.ndarray:  # [Q, K]
  """Estimates the accuracy of a vote weighted by chain scores.

  Arguments and result are as in `majority_curve`.

  Raises:
    UserError: As `majority_curve`, or a score is NaN, infinite or negative: in
      a sum of log scores every vote would count against its answer.
  """
  correct = check_correct(correct, ns)
  scores = _check_scores(chain_scores, correct)
  if (bad := np.argwhere((scores < 0) | np.isinf(scores))).size:
    q, i = bad[0]
    raise UserError(
      f'problem {q}, sample {i} has the chain score {scores[q, i]}: a '
      'weighted vote needs finite scores >= 0, not logs'
    )
  return _vote(scores, correct, answers, ns, seed, subsets)


def _vote(
  weights: np.ndarray | None,
  correct: np.ndarray,
  answers: np.ndarray,
  ns: Sequence[int],
  seed: int,
  subsets: int,
) -> np.ndarray:
  answers = np.asarray(answers)
  if answers.shape != correct.shape or answers.dtype.kind not in 'iu':
    raise UserError(
      f'answers {answers.shape} of {answers.dtype}: expected whole numbers '
      f'of shape {correct.shape}'
    )
  curve = np.empty((len(correct), len(ns)))
  for q in range(len(correct)):
    ids, right = _answer_classes(answers[q], correct[q], q)
    by_n = _vote_one(
      None if weights is None else weights[q],
      ids,
      right,
      sorted(set(ns)),
      np.random.default_rng([seed, q]),
      subsets,
    )
    curve[q] = [by_n[n] for n in ns]
  return curve


def _answer_classes(
  answers: np.ndarray, correct: np.ndarray, q: int
) -> tuple[np.ndarray, np.ndarray]:
  """Renumbers the answers of problem `q` and says which are right.

  Returns:
    ids: [N] in 0..A-1, or A for a sample without an answer.
    right: [A] 1 where the answer is right, else 0.
  """
  given = answers >= 0
  if (correct[~given] > 0).any():
    raise UserError(
      f'problem {q} has a right sample with a negative answer id: expected '
      'an id >= 0 for every answer that was read'
    )
  values, ids = np.unique(answers[given], return_inverse=True)
  votes = np.bincount(ids, minlength=len(values))
  right = np.bincount(ids, correct[given], minlength=len(values)) / votes
  if (mixed := np.flatnonzero((right > 0) & (right < 1))).size:
    raise UserError(
      f'problem {q}, answer id {values[mixed[0]]} is both right and wrong: '
      'make ids and correctness with the same answer check'
    )
  all_ids = np.full(answers.shape, len(values))
  all_ids[given] = ids
  return all_ids, right


def _vote_one(
  weights: np.ndarray | None,
  ids: np.ndarray,
  right: np.ndarray,
  ns: Sequence[int],
  rng: np.random.Generator,
  subsets: int,
) -> dict[int, float]:
  """Returns the expected accuracy of the vote per n, for one problem.

  The first n entries of a random permutation are a random n-subset, so one
  permutation serves every n, and votes are only ever added.
  """
  samples, classes = len(ids), len(right)
  order = rng.permuted(np.tile(np.arange(samples), (subsets, 1)), axis=1)
  cells = ids[order] + (classes + 1) * np.arange(subsets)[:, None]
  size = subsets * (classes + 1)
  counts, totals = np.zeros(size), np.zeros(size)
  by_n, done = {}, 0
  for n in ns:
    new = cells[:, done:n].ravel()
    counts += np.bincount(new, minlength=size)
    if weights is None:
      totals = counts
    else:
      cast = weights[order[:, done:n]].ravel()
      totals = totals + np.bincount(new, cast, minlength=size)
    done = n
    shape = subsets, classes + 1
    # All subsets of size N are the same, so one of them is exact.
    rows = slice(1) if n == samples else slice(None)
    voted = counts.reshape(shape)[rows, :classes] > 0
    vote = np.where(voted, totals.reshape(shape)[rows, :classes], -1.0)
    best = vote.max(1, keepdims=True, initial=-1.0)
    winners = voted & (vote >= best * (1 - _TIE))
    shares = winners @ right / np.maximum(winners.sum(1), 1)
    by_n[n] = shares.mean()
  if 1 in by_n:
    by_n[1] = right[ids[ids < classes]].sum() / samples
  return by_n


def curves(
  methods: Mapping[str, np.ndarray],
  ns: Sequence[int],
  seed: int,
  resamples: int = 2000,
  null: str = '',
) -> dict[str, object]:
  """Averages per-problem curves into the form that results.json keeps.

  Args:
    methods: name -> per-problem accuracies [Q, K] at `ns`.
    seed: seed of the bootstrap over problems, shared to pair the methods.
    null: the method that others are compared with; '' for none.

  Returns:
    {'n': [...], name: {'mean': [...], 'ci95': [[lo, hi], ...]}, ...}. With a
    null the others also have `over_null`, their paired differences from it, in
    the same form. Intervals are those of the bootstrap, which has no width
    where every problem has the same pick; there they are the exact ones of a
    share, and those of the differences are made as wide.

  Raises:
    UserError: A method is called 'n', has not one column per n, or
      `bootstrap.mean_ci` rejects its values.
  """
  result: dict[str, object] = {'n': [int(n) for n in ns]}

  def averaged(values: np.ndarray, exact: Mapping[int, list[float]]) -> dict:
    mean, lo, hi = bootstrap.mean_ci(values, seed, resamples)
    pairs = [list(pair) for pair in zip(lo, hi, strict=True)]
    for k, (low, high) in exact.items():
      pairs[k] = [min(pairs[k][0], low), max(pairs[k][1], high)]
    return {'mean': mean, 'ci95': pairs}

  for name, values in methods.items():
    shape = np.shape(values)
    if name == 'n' or len(shape) != 2 or shape[1] != len(ns):
      raise UserError(
        f'method {name!r} of shape {shape}: expected a name other than '
        f"'n' and the shape [problems, {len(ns)}]"
      )
    exact = _exact_where_equal(np.asarray(values))
    found = averaged(values, exact)
    if null and name != null:
      by_chance = np.asarray(methods[null])
      null_exact = _exact_where_equal(by_chance)
      for k, (low, high) in exact.items():
        chance = by_chance[:, k].mean()
        null_low, null_high = null_exact.get(k, (chance, chance))
        exact[k] = [low - null_high, high - null_low]
      found['over_null'] = averaged(np.asarray(values) - by_chance, exact)
    result[name] = found
  return result


def _exact_where_equal(values: np.ndarray) -> dict[int, list[float]]:
  """Returns the exact intervals of the columns that are all 0, or all 1."""
  count = len(values)
  total = values.sum(0)
  near = [np.isclose(total, ends, 0, 1e-9 * count) for ends in (0, count)]
  return {
    int(k): proportions.interval95(round(total[k]), count)
    for k in np.flatnonzero(count * np.logical_or(*near))
  }
