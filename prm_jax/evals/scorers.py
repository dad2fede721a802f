"""Compares scorers, each of one run or of several seeds, on the same chains.

    step scores -> judge -> compare, in pairs with a reference -> over seeds

Every run has a threshold of its own, by one rule for all: the one with the
highest F1 on dev, which is used unchanged on the sets that are reported, or the
one that flags a given share of a set's chains.
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm_jax.data.chains import Chain, first_error
from prm_jax.evals import localisation, over_seeds, ranking, steps, suite
from prm_jax.evals.ranking import Ranked

DEV = 'dev'

# Set -> for each chain, the scores of the steps that were read.
Scores = Mapping[str, Sequence[np.ndarray]]


class Part(NamedTuple):
  """Holds a set of labelled chains, with masks and labels as arrays."""

  chains: list[Chain]
  mask: np.ndarray  # [M, P] bool
  first: np.ndarray  # [M] index of the first error, or -1


def make_part(chains: Sequence[Chain]) -> Part:
  """Makes a `Part` of labelled chains."""
  _, mask = steps.pad([[0.0] * len(chain.steps) for chain in chains])
  first = np.array([first_error(chain.labels) for chain in chains])
  return Part(list(chains), mask, first)


class Judged(NamedTuple):
  """Holds what one run says of a set.

  Attributes:
    guess: [M] index of the first step that is flagged, or -1.
    ranked: the read steps up to the first error.
    about: its `threshold`; and with their F1 the `dev_threshold`, and the
      `upper_bound`, the best one of the set itself.
  """

  guess: np.ndarray
  ranked: Ranked
  about: dict[str, Any]


def judge(
  by_set: Scores, parts: Mapping[str, Part], wrong_share: float
) -> dict[str, Judged]:
  """Judges the scores of one run on all sets.

  Args:
    parts: set -> chains. DEV has to be a set.
    wrong_share: as `PrmEvaluation` has it; at 0 the threshold is DEV's.
  """
  found = {
    name: suite.pad_scores(part.chains, by_set[name])
    for name, part in parts.items()
  }
  best = {
    name: localisation.choose_threshold(
      found[name].values, part.mask, part.first, found[name].read
    )
    for name, part in parts.items()
  }
  judged = {}
  for name, part in parts.items():
    values, read = found[name].values, found[name].read
    of_dev = threshold = best[DEV][0]
    if wrong_share:
      threshold = localisation.threshold_of_share(
        values, part.mask, wrong_share, read
      )
    at_dev = localisation.at_threshold(
      values, part.mask, part.first, of_dev, read
    )
    judged[name] = Judged(
      localisation.predict_first_error(values, part.mask, threshold, read),
      suite.rank_steps(part.chains, by_set[name]),
      {
        'threshold': threshold,
        'dev_threshold': {'threshold': of_dev, 'f1': at_dev['f1']},
        'upper_bound': {'threshold': best[name][0], 'f1': best[name][1]},
      },
    )
  return judged


def compare(
  judged: Mapping[str, Sequence[Mapping[str, Judged]]],
  parts: Mapping[str, Part],
  reference: str,
  seed: int,
  resamples: int,
) -> dict[str, dict[str, dict[str, Any]]]:
  """Measures all scorers on all sets.

  Args:
    judged: scorer -> each of its runs, as `judge` returns it.
    reference: a scorer of one run, from which the others' leads are measured.
    seed: of the bootstrap.

  Returns:
    set -> scorer -> numbers: means over its runs with 95% intervals over
    problems and seeds, and those of each run in `runs`. There is no `auc` where
    all steps that were read are of one kind.
  """
  [first] = judged[reference]
  return {
    name: {
      scorer: _over_runs(
        [
          _measure(run[name], first[name], part, seed, resamples)
          for run in runs
        ]
      )
      for scorer, runs in judged.items()
    }
    for name, part in parts.items()
  }


def _measure(
  judged: Judged, reference: Judged, part: Part, seed: int, resamples: int
) -> dict[str, Any]:
  """Returns the numbers of one run on one set, and its lead on the reference.

  Intervals are over problems, and leads are paired.
  """
  first, problems = part.first, suite.problem_ids(part.chains)
  found: dict[str, Any] = localisation.localisation(judged.guess, first)
  _, *interval = localisation.f1_ci(
    judged.guess, first, problems, seed, resamples
  )
  lead, *of_lead = localisation.f1_difference_ci(
    (judged.guess, reference.guess), first, problems, seed, resamples
  )
  found |= judged.about | {
    'ci95': interval,
    'lead': {'difference': lead, 'ci95': of_lead},
  }
  auc, interval = ranking.auc_ci(judged.ranked, seed, resamples)
  if auc is None:  # all steps that were read are of one kind
    return found
  lead, of_lead = ranking.auc_difference_ci(
    judged.ranked, reference.ranked.scores, seed, resamples
  )
  found['auc'] = {
    'value': auc,
    'ci95': interval,
    'lead': {'difference': lead, 'ci95': of_lead},
  }
  return found


def _over_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Sums up the runs of a scorer; all seeds share the problems."""

  def mean(value: str, *keys: str) -> dict[str, Any]:
    each = [functools.reduce(operator.getitem, keys, run) for run in runs]
    values = np.array([one[value] for one in each])
    errors = over_seeds.error_of(np.array([one['ci95'] for one in each]))
    found = over_seeds.crossed(values, errors)
    # A few seeds that differ have an interval beyond what a share can be.
    least = -1.0 if value == 'difference' else 0.0
    return {
      value: float(found.mean),
      'ci95': [float(max(found.low, least)), float(min(found.high, 1.0))],
      'seeds': values.tolist(),
    }

  of_ranks = {}
  if all('auc' in run for run in runs):
    auc = mean('value', 'auc') | {'lead': mean('difference', 'auc', 'lead')}
    of_ranks = {'auc': auc}
  return mean('f1') | {
    **{
      name: float(np.mean([run[name] for run in runs]))
      for name in ('acc_error', 'acc_correct')
    },
    'lead': mean('difference', 'lead'),
    **of_ranks,
    'runs': [*runs],
  }
