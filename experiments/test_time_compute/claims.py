"""The claims of test_time_compute."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.ablations import intervals, values
from experiments.findings import (
  TIMES,
  Case,
  Claim,
  Effect,
  Finder,
  Found,
  judge,
  over,
)
from experiments.tables import mean, percent, times
from experiments.test_time_compute.slips import (
  BY_PRM,
  BY_STEPS,
  BY_VALUE,
  LEAD,
  SLIPS_10,
  SLIPS_20,
  SYSTEMATIC,
  Setting,
)
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
    effect = Effect(
      *(found[name] for name in ('ratio', 'ci95', 'open', 'smallest'))
    )
    seeds = len(point_of(results, *BEST_OF_64)['seeds'])
    cases.append(Case(effect, f'{k} operations', '', seeds))
  null = baselines(document, *BEST_OF_64, 'best of 64')
  own = [
    times(times_less(found, BEST_OF_64[0], BEST_OF_64)['ratio'])
    for found in document['results'].values()
  ]
  null += '; fewer candidates alone, at the fewest that are as good, '
  null += ', '.join(own)
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


def beam_by(rows: Sequence[tuple[Setting, str]]) -> Finder:
  """Makes a finder that compares beam with 4 and best of 16 by some judges.

  Args:
    rows: the solver's errors and the judge of each case.
  """

  def find(document: Mapping[str, Any]) -> Found:
    cases, nulls = [], []
    for setting, judge_ in rows:
      row = f'{setting.name}: {judge_}'
      leads = values(document, row, LEAD)
      effect = over(leads, intervals(document, row, LEAD))
      cases.append(Case(effect, row, '', len(leads)))
      nulls.append(percent(mean(values(document, row, 'best of 4'))))
    null = f'best of 4 {", ".join(nulls)}'
    return judge(cases, null, (-MARGIN, math.inf))

  return find


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
  Claim(
    "Beam search with 4 chains comes within 2 points of best of 16's accuracy "
    'where all errors are slips, which another sample repairs',
    'none; the probability that no step slips is 1 - (1 - (1 - s)^K)^16 for '
    'best of 16 and (1 - s^4)^K for beam',
    beam_by(
      [(s, judge) for s in (SLIPS_10, SLIPS_20) for judge in (BY_STEPS, BY_PRM)]
    ),
    'slips.json',
  ),
  Claim(
    "Beam search with 4 chains comes within 2 points of best of 16's accuracy "
    'where errors are wrong beliefs, if the judge is perfect',
    'none',
    beam_by([(setting, BY_VALUE) for setting in SYSTEMATIC]),
    'slips.json',
  ),
)
