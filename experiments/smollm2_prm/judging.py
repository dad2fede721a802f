"""From the step scores of every row to ProcessBench's numbers.

Every row has one threshold, the one with the highest F1 on dev, which is used
unchanged on the sets that are reported. Every row is compared in pairs with the
reference row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm_jax.data.chains import Chain, first_error
from prm_jax.evals import localisation, steps, suite

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


def judge(
  predicted: np.ndarray,  # [M]
  reference: np.ndarray,  # [M]
  part: Part,
  seed: int,
  resamples: int,
) -> dict[str, Any]:
  """Returns ProcessBench's numbers of a row, and its lead on the reference."""
  first, problems = part.first, suite.problem_ids(part.chains)
  result = localisation.localisation(predicted, first)
  _, *interval = localisation.f1_ci(predicted, first, problems, seed, resamples)
  lead, *lead_interval = localisation.f1_difference_ci(
    (predicted, reference), first, problems, seed, resamples
  )
  return result | {
    'ci95': interval,
    f'minus_{REFERENCE}': {'difference': lead, 'ci95': lead_interval},
  }


def compare(
  scores: Mapping[str, Scores],
  parts: Mapping[str, Part],
  seed: int,
  resamples: int,
) -> dict[str, dict[str, dict[str, Any]]]:
  """Judges all rows on all sets.

  Args:
    scores: row -> `Scores`; higher is more right. REFERENCE has to be a row.
    parts: set -> chains. DEV has to be a set.

  Returns:
    set -> row -> numbers. `threshold` is chosen on DEV; `upper_bound` is the
    best threshold of the set itself. LENGTH_RULE has no scores; its threshold
    is a number of steps.
  """
  shortest, position = choose_length_rule(parts[DEV])
  predicted = {
    LENGTH_RULE: {
      name: length_guess(part.mask, shortest, position)
      for name, part in parts.items()
    }
  }
  rule = {'threshold': shortest, 'position': position}
  about: dict[str, dict[str, dict]] = {
    LENGTH_RULE: {name: rule for name in parts}
  }
  for row, by_set in scores.items():
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
    predicted[row] = {
      name: localisation.predict_first_error(
        found[name].values, part.mask, threshold, found[name].read
      )
      for name, part in parts.items()
    }
    about[row] = {
      name: {
        'threshold': threshold,
        'upper_bound': {'threshold': best[name][0], 'f1': best[name][1]},
      }
      for name in parts
    }
  return {
    name: {
      row: judge(
        predicted[row][name],
        predicted[REFERENCE][name],
        part,
        seed,
        resamples,
      )
      | about[row][name]
      for row in predicted
    }
    for name, part in parts.items()
  }
