"""Judges steps by features of their text alone: baselines of any scorer.

A PRM that does not beat the length of a step has not learned to judge it. Each
feature is used as a score would be; whether high or low values mean right, and
below which value a step is flagged, is chosen on dev chains.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.evals import calibration, localisation, steps

FEATURES: Mapping[str, Callable[[str, int], float]] = {
  'length': lambda step, place: float(len(step)),
  'digits': lambda step, place: float(sum(c.isdigit() for c in step)),
  'place': lambda step, place: float(place),
}


class Rule(NamedTuple):
  """Says how a feature is used.

  Attributes:
    sign: 1 if high values mean right, else -1.
    threshold: steps are flagged whose signed feature is below it.
  """

  sign: int
  threshold: float


def scores(chains: Sequence[Chain], feature: str) -> np.ndarray:  # [M, P]
  """Returns a feature of every step, 0 at padding."""
  of_step = FEATURES[feature]
  rows = [
    [of_step(step, i) for i, step in enumerate(chain.steps)] for chain in chains
  ]
  return steps.pad(rows)[0]


def choose_rules(
  chains: Sequence[Chain],
  labels: np.ndarray,  # [M, P]
  known: np.ndarray,  # [M, P] steps whose label is known
  first: np.ndarray,  # [M] first errors
) -> dict[str, Rule]:
  """Chooses the rule of every feature on dev chains with both kinds.

  The sign is that with the higher AUC, the threshold that with the highest
  first-error F1.
  """
  _, mask = steps.pad([[0.0] * len(chain.steps) for chain in chains])
  rules = {}
  for name in FEATURES:
    values = scores(chains, name)
    auc = calibration.auroc(values[known], labels[known] >= 0.5)
    sign = -1 if auc is not None and auc < 0.5 else 1
    threshold, _ = localisation.choose_threshold(sign * values, mask, first)
    rules[name] = Rule(sign, threshold)
  return rules
