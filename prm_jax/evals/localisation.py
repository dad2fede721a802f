"""Error localisation, the ProcessBench protocol (Zheng et al., 2024).

Takes step scores and the index of each chain's first wrong step (-1: none)
and asks whether the first step scored below a threshold is that step. The
threshold is fixed (0.5) or chosen on a named set and used unchanged on the
others; an optimum on the reported set itself is an upper bound and is called
so. `labels`, `step_mask` and `read` follow the chain convention of the package.
A chain of which only the beginning was read gets a verdict where a step of it
is flagged; where none is it stays undecided, which matches no label.
"""

from collections.abc import Mapping

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
  """Index of the first step with score < threshold.

  Where there is none: -1 for a chain that was read whole, else UNDECIDED.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  scored = steps.scored(mask, read)
  low = scored & (scores < threshold)
  if not low.shape[1]:
    return np.full(len(low), -1)
  none = np.where((scored == mask).all(1), -1, UNDECIDED)
  return np.where(low.any(1), low.argmax(1), none)


def _f1(
  acc_error: float | np.ndarray, acc_correct: float | np.ndarray
) -> np.ndarray:
  total = acc_error + acc_correct
  return np.divide(
    2 * acc_error * acc_correct,
    total,
    out=np.zeros_like(np.asarray(total, np.float64)),
    where=total > 0,
  )


def _result(hits: np.ndarray, labels: np.ndarray) -> Result:
  """The protocol's numbers from hits [M], 0/1 or a probability of 1."""
  error = labels >= 0
  result: Result = {
    'f1': None,
    'acc_error': float(hits[error].mean()) if error.any() else None,
    'acc_correct': float(hits[~error].mean()) if (~error).any() else None,
    'count_error': int(error.sum()),
    'count_correct': int((~error).sum()),
  }
  if error.any() and (~error).any():
    result['f1'] = float(_f1(result['acc_error'], result['acc_correct']))
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
  """ProcessBench's F1 of exact matches.

  Args:
    predictions: [M] predicted first wrong step, -1 for none, UNDECIDED (never a
      match) for no verdict.
    labels: [M] the true one.

  Returns:
    `acc_error`: matches among chains with an error; `acc_correct`: among
    those without (None where there is no such chain); `f1`: their harmonic
    mean 2ab / (a + b), 0 when both are 0, None when either is; and
    `count_error`, `count_correct`.
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
  """`localisation` at a threshold; that and the undecided chains with it."""
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
  """Steps up to the first error, flagged or not, by their place in the chain.

  What comes after a first error is not counted: nobody agrees on its labels.
  Nor are steps that were not read.

  Args:
    labels: first wrong step, -1 for none.
    threshold: a step below it is flagged.
    rows: places that are told apart; the last is that of all later steps.

  Returns:
    By place: `step`, from 1; `and_later`, whether it is of later ones, too; and
    the counts `right_kept`, `right_flagged`, `wrong_kept`, `wrong_flagged`.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  first = steps.check_first_errors(labels, mask)[:, None]
  place = np.arange(scores.shape[1])
  mask = steps.scored(mask, read)
  sides = {
    'right': mask & ((first < 0) | (place < first)),
    'wrong': mask & (place == first),
  }
  flagged = scores < threshold
  found = []
  for k in range(min(rows, scores.shape[1])):
    and_later = k == rows - 1 < scores.shape[1] - 1
    here = slice(k, None if and_later else k + 1)
    found.append(
      {'step': k + 1, 'and_later': and_later}
      | {
        f'{side}_{what}': int((which & said)[:, here].sum())
        for side, which in sides.items()
        for what, said in (('kept', ~flagged), ('flagged', flagged))
      }
    )
  return found


def choose_threshold(
  step_scores: np.ndarray,  # [M, P]
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
  read: np.ndarray | None = None,  # [M]
) -> tuple[float, float]:
  """The threshold with the highest F1 on this set, exactly.

  All thresholds between two neighbouring distinct scores predict the same, so
  the midpoints and the lowest score, which flags nothing, are all there are
  to try; one above the highest flags every first step, and its F1 is 0.
  A chain whose first error is step k is matched for
  s_k < t <= min(s_0..s_{k-1}), a right chain for t <= min(s), and neither
  where that takes a step that was not read: counting interval ends is
  O(S log S) for S steps.
  Among equal F1 the smallest threshold wins, the one that flags least.

  Returns:
    threshold, f1.

  Raises:
    UserError: chains with an error or chains without are missing, or no step
      was read.
  """
  scores, mask = steps.check_scores(step_scores, step_mask)
  labels = steps.check_first_errors(labels, mask)
  scored = steps.scored(mask, read)
  error = labels >= 0
  if error.all() or not error.any():
    raise UserError(
      f'threshold on {len(labels)} chains, {int(error.sum())} with an error: '
      'expected chains of both kinds'
    )
  if not scored.any():
    raise UserError(
      f'threshold on {len(labels)} chains of which no step was read: expected '
      "chains that fit the model's window"
    )
  distinct = np.unique(scores[scored])
  middle = (distinct[:-1] + distinct[1:]) / 2
  # Between adjacent floats the midpoint rounds to one of them, and the lower
  # one would not flag itself.
  middle = np.where(middle > distinct[:-1], middle, distinct[1:])
  candidates = np.concatenate([distinct[:1], middle])
  column = np.arange(scores.shape[1])
  kept = mask & (column < np.where(error, labels, len(column))[:, None])
  # A step that was not read can be neither kept nor flagged.
  values = np.where(scored, scores, -np.inf)
  lowest_kept = np.where(kept, values, np.inf).min(1)
  flagged = values[np.flatnonzero(error), labels[error]]
  reachable = np.isfinite(flagged) & (flagged < lowest_kept[error])
  begun = np.searchsorted(np.sort(flagged[reachable]), candidates)
  ended = np.searchsorted(np.sort(lowest_kept[error][reachable]), candidates)
  lost = np.searchsorted(np.sort(lowest_kept[~error]), candidates)
  rights = (~error).sum()
  f1 = _f1((begun - ended) / error.sum(), (rights - lost) / rights)
  best = int(f1.argmax())
  return float(candidates[best]), float(f1[best])


def choose_position(
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
) -> tuple[int, float]:
  """The step index k with the highest F1 for `position_guess`, and that F1.

  It reads no score, so it is the floor that a model has to beat. Choose it on
  other data than it is reported on. Ties go to the smallest k.
  """
  mask = np.asarray(step_mask, bool)
  labels = steps.check_first_errors(labels, mask)
  f1 = [
    localisation(position_guess(mask, k), labels)['f1']
    for k in range(mask.shape[1])
  ]
  if not f1 or f1[0] is None:
    raise UserError('position on chains of one kind: expected both kinds')
  best = int(np.argmax(f1))
  return best, f1[best]


def position_guess(step_mask: np.ndarray, position: int) -> np.ndarray:
  """[M] step `position` for every chain that has it, -1 for shorter ones."""
  lengths = np.asarray(step_mask, bool).sum(1)
  return np.where(lengths > position, position, -1)


def baselines(
  step_mask: np.ndarray,  # [M, P]
  labels: np.ndarray,  # [M]
  position: int,
) -> dict[str, Result]:
  """What can be had without looking at a score.

  Args:
    step_mask: every step that exists.
    labels: first errors.
    position: of `position_guess`, from `choose_position` on other data.

  Returns:
    `all_right`: every step right; `first_step`: the first step is always
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
  hits: np.ndarray, labels: np.ndarray, seed: int, resamples: int
) -> np.ndarray:
  """[B, ...] F1 of resampled hits [M, ...].

  Chains with an error and chains without are drawn separately: a resample
  without one of the kinds would have no F1.
  """
  error = labels >= 0
  if error.all() or not error.any():
    raise UserError('F1 interval on chains of one kind: expected both kinds')
  return _f1(
    bootstrap.resample_means(hits[error], [seed, 1], resamples),
    bootstrap.resample_means(hits[~error], [seed, 0], resamples),
  )


def f1_ci(
  predictions: np.ndarray,  # [M]
  labels: np.ndarray,  # [M]
  seed: int,
  resamples: int = 2000,
  level: float = 0.95,
) -> tuple[float, float, float]:
  """F1 and its bootstrap interval over chains, stratified by kind.

  Returns:
    f1, lo, hi.

  Raises:
    UserError: chains with an error or chains without are missing.
  """
  predictions, labels = _check_pair(predictions, labels)
  f1 = _resampled_f1(predictions == labels, labels, seed, resamples)
  lo, hi = bootstrap.interval(f1, level)
  return localisation(predictions, labels)['f1'], lo, hi


def f1_difference_ci(
  predictions_a: np.ndarray,  # [M]
  predictions_b: np.ndarray,  # [M]
  labels: np.ndarray,  # [M]
  seed: int,
  resamples: int = 2000,
  level: float = 0.95,
) -> tuple[float, float, float]:
  """F1 of a minus F1 of b on the same chains, paired; as `f1_ci`."""
  a, labels = _check_pair(predictions_a, labels)
  b, labels = _check_pair(predictions_b, labels)
  hits = np.stack([a == labels, b == labels], axis=1)
  f1 = _resampled_f1(hits, labels, seed, resamples)
  lo, hi = bootstrap.interval(f1[:, 0] - f1[:, 1], level)
  difference = localisation(a, labels)['f1'] - localisation(b, labels)['f1']
  return difference, lo, hi


def headline(results: Mapping[str, Result]) -> float | None:
  """Unweighted mean F1 over subsets; None where a subset has no F1."""
  if not results:
    raise UserError('headline over no subsets: expected at least one')
  f1 = [result['f1'] for result in results.values()]
  return None if None in f1 else float(np.mean(f1))


def processbench(
  subsets: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]],
  chosen_on: str = 'gsm8k',
) -> dict[str, dict]:
  """The three published readings of one model, none mistakable for another.

  Args:
    subsets: name -> (step_scores, step_mask, labels).
    chosen_on: the subset whose best threshold is used on all.

  Returns:
    `fixed`: threshold 0.5; `transferred`: the best threshold of `chosen_on`;
    `upper_bound`: each subset's own best, tuned on what it reports. Each maps
    subset -> `at_threshold`, and 'headline' -> the mean F1; `transferred` has
    'headline_elsewhere' too, without the subset that was tuned on (None if
    there is no other).

  Raises:
    UserError: `chosen_on` is missing, a subset is called like a headline, or
      what `choose_threshold` refuses.
  """
  if chosen_on not in subsets:
    raise UserError(
      f'threshold to be chosen on {chosen_on!r}: expected one of '
      f'{", ".join(subsets)}'
    )
  if taken := {'headline', 'headline_elsewhere'} & set(subsets):
    raise UserError(f'subset called {min(taken)!r}: rename it')
  best = {name: choose_threshold(*data)[0] for name, data in subsets.items()}
  thresholds = {
    'fixed': dict.fromkeys(subsets, 0.5),
    'transferred': dict.fromkeys(subsets, best[chosen_on]),
    'upper_bound': best,
  }
  report: dict[str, dict] = {}
  for reading, threshold in thresholds.items():
    results = {
      name: at_threshold(*data, threshold[name])
      for name, data in subsets.items()
    }
    report[reading] = results | {'headline': headline(results)}
    if reading == 'transferred':
      del results[chosen_on]
      elsewhere = headline(results) if results else None
      report[reading]['headline_elsewhere'] = elsewhere
  return report
