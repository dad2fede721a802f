"""The claims of human_labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.ablations import AUC, F1
from experiments.findings import Case, Claim, Finder, Found, crossed, judge
from experiments.human_labels.whole import BASELINES, PRM
from experiments.tables import mean, percent
from prm_jax.evals import over_seeds

WHOLE = ', whole'  # the part of a set whose solutions are read whole


def beats_baselines(measure: str) -> Finder:
  """Makes a finder that compares the PRM with the best baseline of each set.

  The errors of both over the problems add up, where both are known.

  Args:
    measure: what all are compared by.
  """

  def find(document: Mapping[str, Any]) -> Found:
    seeds = list(document['runs'].values())
    cases, nulls = [], []
    for part in seeds[0]:
      if not part.endswith(WHOLE):
        continue
      known = {
        row: _values(seeds, part, row, measure)
        for row in BASELINES
        if measure in seeds[0][part][row]
      }
      best = max(known, key=lambda row: mean(known[row]))
      ours = _values(seeds, part, PRM, measure)
      leads = np.subtract(ours, known[best]).tolist()
      errors = [_errors(seeds, part, row, measure) for row in (PRM, best)]
      effect = crossed(leads, np.hypot(*errors))
      name = part.removesuffix(WHOLE)
      sides = f'{percent(mean(ours))} to {percent(mean(known[best]))}'
      cases.append(Case(effect, name, sides, len(seeds)))
      shown = [f'{row} {percent(mean(them))}' for row, them in known.items()]
      nulls.append(f'{name}: {", ".join(shown)}')
    return judge(cases, '; '.join(nulls))

  return find


def _errors(
  seeds: Sequence[Mapping[str, Any]], part: str, row: str, measure: str
) -> np.ndarray:
  """Returns the standard error of each seed; 0 where no interval is known."""
  ci95 = [seed[part][row][measure].get('ci95') for seed in seeds]
  if not all(ci95):
    return np.zeros(len(seeds))
  return over_seeds.error_of(np.array(ci95))


def _values(
  seeds: Sequence[Mapping[str, Any]], part: str, row: str, measure: str
) -> list[float]:
  return [seed[part][row][measure]['value'] for seed in seeds]


CLAIMS = (
  Claim(
    'A PRM of 0.7M parameters from scratch learns from human step labels (F1 '
    'above the best baseline that reads no words, on solutions it reads whole)',
    '68 and 63, Qwen2.5-Math-7B on PRM800K (Zheng et al., 2024; Zhang et al., '
    '2025)',
    beats_baselines(F1),
    'whole.json',
  ),
  Claim(
    'A PRM of 0.7M parameters from scratch tells right steps from wrong ones '
    'better than their length, digits or place do (AUC, on solutions it reads '
    'whole)',
    'none',
    beats_baselines(AUC),
    'whole.json',
  ),
)
