"""The claims of test_time_compute."""

import math
from collections.abc import Mapping
from typing import Any

from experiments.findings import TIMES, Case, Claim, Effect, Found, judge
from experiments.tables import percent
from experiments.test_time_compute.tables import (
  difference,
  point_of,
  times_less,
)

BEST_OF_64 = ('best of N, PRM', 64)
BEST_OF_16 = ('best of N, PRM', 16)
TIMES_LESS = 5.0
# Beam is as good as best of 16 if it is less than this below it.
MARGIN = 0.02


def baselines(
  document: Mapping[str, Any], method: str, size: int, name: str
) -> str:
  """Shows the accuracy of a search that others are compared with."""
  shown = [
    percent(point_of(found, method, size)['accuracy']['mean'])
    for found in document['results'].values()
  ]
  return f'{name} {", ".join(shown)}'


def little_compute(document: Mapping[str, Any]) -> Found:
  """Finds how much less compute beam takes for best of 64's accuracy."""
  cases = []
  for k, results in document['results'].items():
    found = times_less(results, 'beam', BEST_OF_64)
    effect = Effect(found['ratio'], found['ci95'], found['open'])
    seeds = len(point_of(results, *BEST_OF_64)['seeds'])
    cases.append(Case(effect, f'{k} operations', '', seeds))
  null = baselines(document, *BEST_OF_64, 'best of 64')
  return judge(cases, null, (TIMES_LESS, math.inf), TIMES)


def beam_with_4(document: Mapping[str, Any]) -> Found:
  """Finds whether beam with 4 is at most a margin below best of 16."""
  cases = [
    Case(
      difference(found, ('beam', 4), BEST_OF_16),
      f'{k} operations',
      '',
      len(point_of(found, *BEST_OF_16)['seeds']),
    )
    for k, found in document['results'].items()
  ]
  null = baselines(document, 'best of N, PRM', 4, 'best of 4')
  return judge(cases, null, (-MARGIN, math.inf))


CLAIMS = (
  Claim(
    "Beam search reaches best of 64's accuracy with a fifth of its compute "
    '(interpolated between sizes)',
    'aim of this project',
    little_compute,
  ),
  Claim(
    "Beam search with 4 chains comes within 2 points of best of 16's accuracy",
    'equal, on MATH (Beeching et al., 2024)',
    beam_with_4,
  ),
)
