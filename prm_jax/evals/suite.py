"""Scored chains to the sections of results.json.

The one place that knows both chains and metrics: it turns chains into the
padded arrays that the metrics take. How chains are scored is passed in.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.chains import Chain, first_error
from prm_jax.evals import (
  best_of_n,
  calibration,
  diagnostics,
  localisation,
  prmbench,
  steps,
)
from prm_jax.evals.policy import answer_ids

ScoreGroup = Callable[[str, Sequence[Sequence[str]]], Sequence[np.ndarray]]


def label_arrays(
  chains: Sequence[Chain],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Labels [M, P], which of them are known [M, P], first errors [M]."""
  values, exists = steps.pad(
    [[label.value for label in chain.labels] for chain in chains]
  )
  first = np.array([first_error(chain.labels) for chain in chains])
  return np.nan_to_num(values), exists & ~np.isnan(values), first


def groups_of_equal_size(chains: Sequence[Chain]) -> list[list[int]]:
  """Indices of the samples of each problem; problems with fewer are cut.

  All problems need the same number of samples for one curve: the smallest
  group that has at least two decides, and larger ones keep their first.
  """
  groups = collections.defaultdict(list)
  for i, chain in enumerate(chains):
    if chain.outcome is not None:
      groups[chain.problem].append(i)
  sizes = [len(group) for group in groups.values() if len(group) > 1]
  samples = min(sizes, default=0)
  return [g[:samples] for g in groups.values() if len(g) >= samples > 0]


def best_of_n_section(
  chains: Sequence[Chain],
  chain_scores: Mapping[str, np.ndarray],
  vote_weights: np.ndarray,
  ns: Sequence[int],
  seed: int,
  resamples: int,
) -> dict[str, Any]:
  """Accuracy by n of every way to choose, with bootstrap intervals.

  Args:
    chains: several with an outcome per problem.
    chain_scores: method -> [M], higher is chosen.
    vote_weights: [M] >= 0, what a chain's vote counts in `weighted_vote`.
  """
  groups = np.array(groups_of_equal_size(chains))  # [Q, N]
  correct = np.array([bool(chain.outcome) for chain in chains])[groups]
  answers = np.array(
    [
      answer_ids(
        chains[group[0]].problem, [chains[i].answer for i in group], right
      )
      for group, right in zip(groups, correct, strict=True)
    ]
  )
  ns = [n for n in ns if n <= groups.shape[1]]
  methods = {
    name: best_of_n.best_of_n_curve(scores[groups], correct, ns)
    for name, scores in chain_scores.items()
  }
  methods['majority'] = best_of_n.majority_curve(correct, answers, ns, seed)
  methods['weighted_vote'] = best_of_n.weighted_vote_curve(
    vote_weights[groups], correct, answers, ns, seed
  )
  methods['random'] = best_of_n.random_curve(correct, ns)
  methods['oracle'] = best_of_n.oracle_curve(correct, ns)
  return best_of_n.curves(methods, ns, seed, resamples)


def localisation_section(
  chains: Sequence[Chain],
  scores: Sequence[np.ndarray],
  threshold: float,
  position: int,
  seed: int,
  resamples: int,
  read: np.ndarray,
) -> dict[str, Any]:
  """ProcessBench's first-error F1 beside what needs no model.

  Args:
    read: [M] how many steps of each chain were scored; the others are not
      flagged, and not counted by position.
    threshold: a step below it is wrong; chosen on other problems.
    position: of the position baseline; chosen on other problems.
  """
  values, mask = steps.pad(scores)
  first = np.array([first_error(chain.labels) for chain in chains])
  predicted = localisation.predict_first_error(values, mask, threshold)
  result = localisation.at_threshold(values, mask, first, threshold)
  _, low, high = localisation.f1_ci(predicted, first, seed, resamples)
  best, upper = localisation.choose_threshold(values, mask, first)
  return result | {
    'ci95': [low, high],
    'baselines': localisation.baselines(mask, first, position),
    'upper_bound': {'threshold': best, 'f1': upper},
    'by_position': localisation.confusion_by_position(
      values, mask, first, threshold, np.asarray(read)
    ),
  }


def calibration_section(
  chains: Sequence[Chain], scores: Sequence[np.ndarray]
) -> dict[str, Any]:
  """Calibration of steps up to and including the first error."""
  values, _ = steps.pad(scores)
  labels, known, _ = label_arrays(chains)
  known &= steps.until_first_error(labels, known)
  return calibration.calibration(values, labels, known)


def prmbench_section(
  chains: Sequence[Chain], scores: Sequence[np.ndarray]
) -> dict[str, Any]:
  """PRMBench's protocol, by the class of error that the record names."""
  values, _ = steps.pad(scores)
  labels, known, _ = label_arrays(chains)
  classes = [chain.meta.get('classification', '') for chain in chains]
  return prmbench.prmbench(values, labels, known, classes)


def diagnostics_section(
  chains: Sequence[Chain],
  scores: Sequence[np.ndarray],
  chain_scores: np.ndarray,
  threshold: float,
) -> dict[str, Any]:
  """Warning signs that accuracy alone does not show."""
  values, mask = steps.pad(scores)
  first = np.array([first_error(chain.labels) for chain in chains])
  result: dict[str, Any] = {
    'minimum_at_last': diagnostics.minimum_at_last(values, mask),
    'length_correlation': diagnostics.length_correlation(chain_scores, mask),
  }
  if all(chain.outcome is not None for chain in chains):
    outcomes = np.array([chain.outcome for chain in chains])
    result['right_answer_wrong_process'] = diagnostics.wrong_process_found(
      values, mask, first, outcomes, threshold
    )
  return result


def choose_on_dev(
  chains: Sequence[Chain], scores: Sequence[np.ndarray]
) -> tuple[float, int]:
  """The threshold and the baseline's position, both best for F1 on dev."""
  values, mask = steps.pad(scores)
  first = np.array([first_error(chain.labels) for chain in chains])
  threshold, _ = localisation.choose_threshold(values, mask, first)
  position, _ = localisation.choose_position(mask, first)
  return float(threshold), int(position)
