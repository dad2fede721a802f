"""From the step scores of every row to ProcessBench's numbers.

Every run of a row has one threshold, the one with the highest F1 on dev, which
is used unchanged on the sets that are reported. Every run is compared in pairs
with the reference row; a row sums up its runs.
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
REFERENCE = 'digit_likelihood'
LENGTH_RULE = 'chain_length'

# Set -> for each chain, the scores of the steps that were read.
Scores = Mapping[str, Sequence[np.ndarray]]


class Part(NamedTuple):
  """A set of chains, with its masks and labels as arrays."""

  chains: list[Chain]
  mask: np.ndarray  # [M, P] bool
  first: np.ndarray  # [M] index of the first error, or -1


def make_part(chains: Sequence[Chain]) -> Part:
  """Makes a `Part` of labelled chains."""
  _, mask = steps.pad([[0.0] * len(chain.steps) for chain in chains])
  first = np.array([first_error(chain.labels) for chain in chains])
  return Part(list(chains), mask, first)


def length_guess(
  mask: np.ndarray,  # [M, P]
  shortest: int,
  position: int,
) -> np.ndarray:  # [M]
  """Guesses step `position` for chains of `shortest` steps or more, else -1."""
  return np.where(mask.sum(1) >= shortest, position, -1)


def choose_length_rule(part: Part) -> tuple[int, int]:
  """Returns the (shortest, position) of `length_guess` with the highest F1.

  Of equal rules it takes the first, which flags most chains.
  """
  longest = part.mask.shape[1]
  rules = [(m, k) for m in range(1, longest + 1) for k in range(m)]
  f1 = [
    localisation.localisation(length_guess(part.mask, *rule), part.first)['f1']
    for rule in rules
  ]
  return rules[int(np.argmax(f1))]


def add_signals(probabilities: Scores, likelihoods: Scores) -> Scores:
  """Adds a head's logits and log-likelihoods.

  Each is in units of its standard deviation over the steps of dev.
  """
  bounded = {
    name: [np.clip(np.asarray(x, np.float64), 1e-6, 1 - 1e-6) for x in values]
    for name, values in probabilities.items()
  }
  logits = {
    name: [np.log(x / (1 - x)) for x in values]
    for name, values in bounded.items()
  }
  first, second = (np.hstack(x[DEV]).std() for x in (logits, likelihoods))
  return {
    name: [
      a / first + b / second
      for a, b in zip(logits[name], likelihoods[name], strict=True)
    ]
    for name in logits
  }


class Judged(NamedTuple):
  """Holds what one run says of a set.

  Attributes:
    guess: [M] index of the first step that is flagged, or -1.
    ranked: the read steps up to the first error; None for a rule that has no
      scores.
  """

  guess: np.ndarray
  ranked: Ranked | None
  about: dict[str, Any]


def judge_run(by_set: Scores, parts: Mapping[str, Part]) -> dict[str, Judged]:
  """Judges the scores of one run on all sets; the threshold is DEV's."""
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
  threshold = best[DEV][0]
  return {
    name: Judged(
      localisation.predict_first_error(
        found[name].values, part.mask, threshold, found[name].read
      ),
      suite.rank_steps(part.chains, by_set[name]),
      {
        'threshold': threshold,
        'upper_bound': {'threshold': best[name][0], 'f1': best[name][1]},
      },
    )
    for name, part in parts.items()
  }


def judge_rule(parts: Mapping[str, Part]) -> dict[str, Judged]:
  """Judges the rule that reads only the number of steps, chosen on DEV."""
  shortest, position = choose_length_rule(parts[DEV])
  about = {'threshold': shortest, 'position': position}
  return {
    name: Judged(length_guess(part.mask, shortest, position), None, about)
    for name, part in parts.items()
  }


def measure(
  judged: Judged,
  reference: Judged,
  part: Part,
  seed: int,
  resamples: int,
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
    f'minus_{REFERENCE}': {'difference': lead, 'ci95': of_lead},
  }
  if judged.ranked is not None:
    auc, interval = ranking.auc_ci(judged.ranked, seed, resamples)
    lead, of_lead = ranking.auc_difference_ci(
      judged.ranked, reference.ranked.scores, seed, resamples
    )
    found['auc'] = {
      'value': auc,
      'ci95': interval,
      f'minus_{REFERENCE}': {'difference': lead, 'ci95': of_lead},
    }
  return found


def over_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Sums up the runs of a row: means, and intervals over problems and seeds.

  All seeds share the problems.
  """

  def mean(value: str, *keys: str) -> dict[str, Any]:
    each = [functools.reduce(operator.getitem, keys, run) for run in runs]
    values = np.array([one[value] for one in each])
    errors = over_seeds.error_of(np.array([one['ci95'] for one in each]))
    found = over_seeds.crossed(values, errors)
    return {
      value: float(found.mean),
      'ci95': [float(found.low), float(found.high)],
      'seeds': values.tolist(),
    }

  lead = f'minus_{REFERENCE}'
  row = mean('f1') | {
    name: float(np.mean([run[name] for run in runs]))
    for name in ('acc_error', 'acc_correct')
  }
  row[lead] = mean('difference', lead)
  if 'auc' in runs[0]:
    row['auc'] = mean('value', 'auc') | {lead: mean('difference', 'auc', lead)}
  return row


def compare(
  scores: Mapping[str, Sequence[Scores]],
  parts: Mapping[str, Part],
  seed: int,
  resamples: int,
) -> dict[str, dict[str, dict[str, Any]]]:
  """Judges all rows on all sets.

  Args:
    scores: row -> `Scores` of each of its runs; higher is more right. REFERENCE
      has to be a row of one run.
    parts: set -> chains. DEV has to be a set.

  Returns:
    set -> row -> numbers, those of each run in `runs`. There, `threshold` is
    chosen on DEV; `upper_bound` is the best threshold of the set itself.
    LENGTH_RULE has no scores; its threshold is a number of steps.
  """
  rows = {LENGTH_RULE: [judge_rule(parts)]} | {
    row: [judge_run(run, parts) for run in runs] for row, runs in scores.items()
  }
  [reference] = rows[REFERENCE]
  found: dict[str, dict[str, dict[str, Any]]] = {}
  for name, part in parts.items():
    for row, judged in rows.items():
      runs = [
        measure(run[name], reference[name], part, seed, resamples)
        for run in judged
      ]
      found.setdefault(name, {})[row] = over_runs(runs) | {'runs': runs}
  return found
