"""Measures error localisation by ProcessBench's protocol (Zheng et al., 2024).

Takes step scores and the index of each chain's first wrong step (-1: none), and
tests whether the first step scored below a threshold is that step. The
threshold is 0.5, or chosen on one set and used unchanged on the others, or
flags a given share of the reported set's chains, which needs no labels. The
best threshold of the reported set itself is only reported as an upper bound.
`labels`, `step_mask` and `read` have the form for chains, see the package's
docstring. If only the beginning of a chain was read and no step of it is
flagged, the prediction is UNDECIDED, which matches no label.
"""

import numpy as np

from prm_jax.evals import bootstrap, steps
from prm_jax.runtime.errors import UserError

Result = dict[str, float | int | None]

UNDECIDED = -2  # the prediction for a cut chain without a flagged step


def predict_first_error(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  threshold: float,
  read: np.ndarray | None = None,  # [M]
) -> np.ndarray:  # [M] int64
  """Returns the index of the first step with score < threshold.

  If there is none, it is -1 for a chain that was read whole, else UNDECIDED.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  scored = steps.scored_mask(mask, read)
  low = scored & (scores < threshold)
  if not low.shape[1]:
    return np.full(len(low), -1)
  none = np.where((scored == mask).all(1), -1, UNDECIDED)
  return np.where(low.any(1), low.argmax(1), none)


def f1_of(
  acc_error: float | np.ndarray, acc_correct: float | np.ndarray
) -> np.ndarray:
  """Returns the harmonic mean of two accuracies; 0 if both are 0."""
  total = acc_error + acc_correct
  return np.divide(
    2 * acc_error * acc_correct,
    total,
    out=np.zeros_like(np.asarray(total, np.float64)),
    where=total > 0,
  )


def _result(hits: np.ndarray, labels: np.ndarray) -> Result:
  """Returns the protocol's numbers.

  Args:
    hits: [M] 0 or 1, or the probability of 1.
    labels: [M] first errors.
  """
  error = labels >= 0
  result: Result = {
    'f1': None,
    'acc_error': float(hits[error].mean()) if error.any() else None,
    'acc_correct': float(hits[~error].mean()) if (~error).any() else None,
    'count_error': int(error.sum()),
    'count_correct': int((~error).sum()),
  }
  if error.any() and (~error).any():
    result['f1'] = float(f1_of(result['acc_error'], result['acc_correct']))
  return result


def _check_pair(
  predictions: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  predictions, labels = np.asarray(predictions), np.asarray(labels)
  if predictions.shape != labels.shape or labels.ndim != 1:
    raise UserError(
      f'predictions {predictions.shape} and labels {labels.shape}: expected '
      'one of each per chain'
    )
  return predictions, labels


def localisation(predictions: np.ndarray, labels: np.ndarray) -> Result:
  """Computes ProcessBench's F1 of exact matches.

  Args:
    predictions: [M] predicted first wrong step, -1 for none, or UNDECIDED,
      which never matches.
    labels: [M] true first wrong step, -1 for none.

  Returns:
    `acc_error`, the share of matches among chains with an error, and
    `acc_correct`, among those without (each None without such chains); `f1`,
    their harmonic mean 2ab / (a + b), 0 if both are 0 and None if either is
    None; and the numbers of chains, `count_error` and `count_correct`.
  """
  predictions, labels = _check_pair(predictions, labels)
  return _result((predictions == labels).astype(np.float64), labels)


def at_threshold(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
  threshold: float,
  read: np.ndarray | None = None,  # [M]
) -> Result:
  """Computes `localisation` at a threshold.

  The result also has the `threshold` and `count_undecided`.
  """
  predictions = predict_first_error(step_scores, step_mask, threshold, read)
  labels = steps.check_first_errors(labels, np.asarray(step_mask, bool))
  return localisation(predictions, labels) | {
    'threshold': float(threshold),
    'count_undecided': int((predictions == UNDECIDED).sum()),
  }


def confusion_by_position(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
  threshold: float,
  read: np.ndarray | None = None,  # [M]
  rows: int = 10,
) -> list[dict[str, int | bool]]:
  """Counts flagged and kept steps up to the first error, by position.

  Steps after a first error are not counted, because annotators do not agree on
  their labels. Steps that were not read are not counted either.

  Args:
    labels: index of the first wrong step, -1 for none.
    threshold: a step that scores below it is flagged.
    rows: number of positions to tell apart; the last one takes all later steps.

  Returns:
    One dict per position: `step`, from 1; `and_later`, whether it includes all
    later steps; and the counts `right_kept`, `right_flagged`, `wrong_kept` and
    `wrong_flagged`.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  first = steps.check_first_errors(labels, mask)[:, None]
  place = np.arange(scores.shape[1])
  mask = steps.scored_mask(mask, read)
  sides = {
    'right': mask & ((first < 0) | (place < first)),
    'wrong': mask & (place == first),
  }
  flagged = scores < threshold
  table = []
  for k in range(min(rows, scores.shape[1])):
    and_later = k == rows - 1 < scores.shape[1] - 1
    here = slice(k, None if and_later else k + 1)
    table.append(
      {'step': k + 1, 'and_later': and_later}
      | {
        f'{side}_{verdict}': int((which & judged)[:, here].sum())
        for side, which in sides.items()
        for verdict, judged in (('kept', ~flagged), ('flagged', flagged))
      }
    )
  return table


def choose_threshold(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
  read: np.ndarray | None = None,  # [M]
) -> tuple[float, float]:
  """Finds the threshold with the highest F1 on this set, exactly.

  All thresholds between two neighbouring distinct scores predict the same. So
  the only candidates are the midpoints and the lowest score, which flags
  nothing; a threshold above the highest score flags every first step and has
  F1 0. A chain whose first error is step k is matched for
  s_k < t <= min(s_0..s_{k-1}), and a right chain for t <= min(s). A chain in
  which one of these steps was not read is never matched. Counting the ends of
  these intervals is O(S log S) for S steps. Among equal F1 the smallest
  threshold wins, which flags the fewest steps.

  Returns:
    threshold, f1.

  Raises:
    UserError: There are no chains with an error or none without, or no step
      was read.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  labels = steps.check_first_errors(labels, mask)
  scored = steps.scored_mask(mask, read)
  error = _with_error('threshold', labels)
  if not scored.any():
    raise UserError(
      f'threshold on {len(labels)} chains of which no step was read: expected '
      "chains that fit the model's window"
    )
  distinct = np.unique(scores[scored])
  middle = (distinct[:-1] + distinct[1:]) / 2
  # The midpoint of adjacent floats rounds to one of them. If that is the lower
  # one, it would not flag its own step, so the upper one is taken.
  middle = np.where(middle > distinct[:-1], middle, distinct[1:])
  candidates = np.concatenate([distinct[:1], middle])
  column = np.arange(scores.shape[1])
  kept = mask & (column < np.where(error, labels, len(column))[:, None])
  # At -inf, a step that was not read is neither kept nor flagged at any
  # candidate threshold.
  values = np.where(scored, scores, -np.inf)
  lowest_kept = np.where(kept, values, np.inf).min(1)
  flagged = values[np.flatnonzero(error), labels[error]]
  reachable = np.isfinite(flagged) & (flagged < lowest_kept[error])
  begun = np.searchsorted(np.sort(flagged[reachable]), candidates)
  ended = np.searchsorted(np.sort(lowest_kept[error][reachable]), candidates)
  lost = np.searchsorted(np.sort(lowest_kept[~error]), candidates)
  rights = (~error).sum()
  f1 = f1_of((begun - ended) / error.sum(), (rights - lost) / rights)
  best = int(f1.argmax())
  return float(candidates[best]), float(f1[best])


def threshold_of_share(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  share: float,
  read: np.ndarray | None = None,  # [M]
) -> float:
  """Returns the threshold that flags a step in a given share of the chains.

  It needs no labels: a belief about how many chains are wrong takes their
  place. The lowest scores of the chains decide. The threshold is halfway
  between the last chain that is flagged and the next one. Chains whose lowest
  scores are equal are flagged together. Of the numbers that this allows, the
  nearest to the share is taken, or the lower of two.

  Args:
    share: of the chains of which a step was read, above 0 and below 1.

  Raises:
    UserError: no step was read.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  lowest = np.where(steps.scored_mask(mask, read), scores, np.inf).min(1)
  lowest = np.sort(lowest[np.isfinite(lowest)])
  if not lowest.size:
    raise UserError(
      f'threshold on {len(mask)} chains of which no step was read: expected '
      "chains that fit the model's window"
    )
  # Flagging everything below `cuts[i]` flags `flagged[i]` chains.
  cuts, flagged = np.unique(lowest, return_index=True)
  cuts = np.append(cuts, np.nextafter(cuts[-1], np.inf))
  flagged = np.append(flagged, len(lowest))
  nearest = int(np.abs(flagged - share * len(lowest)).argmin())
  if not nearest:
    return float(cuts[0])
  below, above = cuts[nearest - 1 : nearest + 1]
  middle = (below + above) / 2
  return float(middle if middle > below else above)


def choose_position(
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
) -> tuple[int, float]:
  """Returns the step index k with the highest F1 of `position_guess`, and F1.

  This baseline uses no score, so a model has to beat it. Choose k on other data
  than it is reported on. Ties go to the smallest k.
  """
  mask = np.asarray(step_mask, bool)
  labels = steps.check_first_errors(labels, mask)
  _with_error('position baseline', labels)
  f1 = [
    localisation(position_guess(mask, k), labels)['f1']
    for k in range(mask.shape[1])
  ]
  best = int(np.argmax(f1))
  return best, f1[best]


def position_guess(step_mask: np.ndarray, position: int) -> np.ndarray:
  """Predicts step `position` in every chain that has it, -1 in others; [M]."""
  lengths = np.asarray(step_mask, bool).sum(1)
  return np.where(lengths > position, position, -1)


def baselines(
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
  position: int,
) -> dict[str, Result]:
  """Computes the results of guesses that use no score.

  Args:
    step_mask: every step that exists.
    labels: first errors.
    position: position for `position_guess`, from `choose_position` on other
      data.

  Returns:
    `all_right`: no step is ever wrong; `first_step`: the first step is always
    wrong; `position`: see `position_guess`; `random`: a uniform guess among
    -1 and the chain's P_i steps, whose two expected accuracies are the means
    of 1 / (P_i + 1); its `f1` is that of the expected accuracies.
  """
  mask = np.asarray(step_mask, bool)
  labels = steps.check_first_errors(labels, mask)
  at_position = localisation(position_guess(mask, position), labels)
  return {
    'all_right': localisation(np.full(len(labels), -1), labels),
    'first_step': localisation(np.zeros(len(labels), int), labels),
    'position': at_position | {'position': int(position)},
    'random': _result(1 / (mask.sum(1) + 1), labels),
  }


def _resampled_f1(
  hits: np.ndarray,  # [M, ...]
  labels: np.ndarray,  # [M]
  problems: np.ndarray,  # [M]
  seed: int,
  resamples: int,
) -> np.ndarray:  # [B, ...]
  """Returns the F1 of resamples of whole problems.

  The accuracy on a kind of chains that a resample has none of counts as 0.
  """
  problems = np.asarray(problems)
  if problems.shape != labels.shape:
    raise UserError(
      f'problems {problems.shape} for {len(labels)} chains: expected the id of '
      'the problem of each'
    )
  error = _with_error('F1 interval', labels)
  _, ids = np.unique(problems, return_inverse=True)
  flat = hits.reshape(len(hits), -1).astype(np.float64)
  # Of each problem, by kind: matches of every method, and chains.
  sums = np.zeros((ids.max() + 1, 2, flat.shape[1] + 1))
  np.add.at(sums, (ids, error.astype(int)), np.c_[flat, np.ones(len(flat))])
  means = bootstrap.resample_means(sums, seed, resamples)
  matched, count = means[..., :-1], means[..., -1:]
  accuracy = np.divide(
    matched, count, out=np.zeros_like(matched), where=count > 0
  )
  f1 = f1_of(accuracy[:, 1], accuracy[:, 0])
  return f1.reshape(resamples, *hits.shape[1:])


def f1_ci(
  predictions: np.ndarray,  # [M]
  labels: np.ndarray,  # [M]
  problems: np.ndarray,  # [M] ids of the chains' problems
  seed: int,
  resamples: int = 2000,
) -> tuple[float, float, float]:
  """Returns F1 and its 95% interval over problems: f1, lo, hi.

  Raises:
    UserError: There are no chains with an error or none without.
  """
  predictions, labels = _check_pair(predictions, labels)
  f1 = _resampled_f1(predictions == labels, labels, problems, seed, resamples)
  lo, hi = bootstrap.interval(f1)
  return localisation(predictions, labels)['f1'], lo, hi


def f1_difference_ci(
  pair: tuple[np.ndarray, np.ndarray],  # predictions [M] of a and of b
  labels: np.ndarray,  # [M]
  problems: np.ndarray,  # [M] ids of the chains' problems
  seed: int,
  resamples: int = 2000,
) -> tuple[float, float, float]:
  """Returns F1 of a minus F1 of b on the same chains, paired, as `f1_ci`."""
  a, labels = _check_pair(pair[0], labels)
  b, labels = _check_pair(pair[1], labels)
  hits = np.stack([a == labels, b == labels], axis=1)
  f1 = _resampled_f1(hits, labels, problems, seed, resamples)
  lo, hi = bootstrap.interval(f1[:, 0] - f1[:, 1])
  difference = localisation(a, labels)['f1'] - localisation(b, labels)['f1']
  return difference, lo, hi


def _with_error(what: str, labels: np.ndarray) -> np.ndarray:
  """Marks chains with an error; raises UserError if all or none have one."""
  error = labels >= 0
  if error.all() or not error.any():
    raise UserError(
      f'{what} on {len(labels)} chains, {int(error.sum())} with an error: '
      'expected chains of both kinds; take more problems'
    )
  return error
