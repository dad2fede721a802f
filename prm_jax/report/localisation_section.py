"""Makes the section about finding the first wrong step.

The PRM stands beside baselines that need no model. Sections of earlier versions
have fewer of these.
"""

import math
from collections.abc import Mapping
from typing import Any

from prm_jax.report.ranking_rows import FEATURES
from prm_jax.report.values import (
  NOTHING,
  flatten_rows,
  fraction,
  interval,
  is_number,
  list_of,
  pair,
  percent,
  section_of,
)
from prm_jax.runtime.errors import UserError

BASELINES = FEATURES | {
  'noise': 'noise at its best rate',
  'all_right': 'every step right',
  'first_step': 'first step wrong',
  'position': 'the same step in every chain',
  'random': 'uniform guess',
}


def localisation(section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the rows of each data set: its PRM, then trivial baselines."""
  rows, notes, places = [], {}, []
  for order, (dataset, values) in enumerate(section.items()):
    if not isinstance(values, Mapping):
      notes[dataset] = values
      continue
    where = f'localisation.{dataset}'
    shared = {'dataset': dataset, 'order': order}
    row = _localisation_row(values, where) | shared
    rows.append(row | {'name': 'PRM', 'kind': 'lead'})
    if upper := section_of(values, 'upper_bound', where):
      row = _localisation_row(upper, f'{where}.upper_bound') | shared
      name = 'PRM, best threshold of this set (upper bound)'
      rows.append(row | {'name': name, 'kind': 'upper'})
    if 'by_position' in values:
      positions = list_of(values, 'by_position', where, -1)
      if table := by_position(positions, f'{where}.by_position'):
        places.append((dataset, table))
    for name, baseline in section_of(values, 'baselines', where).items():
      if not isinstance(baseline, Mapping):
        raise UserError(f'{where}.baselines.{name}: expected an object')
      row = _localisation_row(baseline, f'{where}.baselines.{name}') | shared
      known = BASELINES.get(name, name.replace('_', ' '))
      row |= {'name': known, 'kind': 'baseline', 'undecided': 0}
      rows.append(row | {'flags': _baseline_flags(baseline, name)})
  return {'rows': rows, 'notes': flatten_rows(notes), 'places': places}


COUNTS = ('right_kept', 'right_flagged', 'wrong_kept', 'wrong_flagged')


def by_position(positions: list[Any], where: str) -> list[dict[str, Any]]:
  """Returns a row for each position: its right and wrong steps, % flagged.

  Positions at which there is no step are left out.
  """
  rows = []
  for k, each in enumerate(positions):
    values = each if isinstance(each, Mapping) else {}
    counts = [values.get(name) for name in COUNTS]
    if any(not isinstance(count, int) or count < 0 for count in counts):
      raise UserError(f'{where}[{k}]: expected counts {", ".join(COUNTS)}')
    kept, alarms, missed, found = counts
    right, wrong = kept + alarms, missed + found
    if not right + wrong:
      continue
    rows.append(
      {
        'step': f'{k + 1}{" and later" if values.get("and_later") else ""}',
        'right': f'{right:,}',
        'alarms': percent(alarms / right if right else math.nan),
        'wrong': f'{wrong:,}',
        'found': percent(found / wrong if wrong else math.nan),
      }
    )
  return rows


def _localisation_row(values: Mapping[str, Any], where: str) -> dict[str, Any]:
  if 'f1' not in values:
    raise UserError(f'{where}: expected f1')
  f1 = fraction(values['f1'], f'{where}.f1')
  bounds = pair(values.get('ci95'), f'{where}.ci95')
  right, wrong = (
    percent(fraction(values.get(name), f'{where}.{name}'))
    for name in ('acc_correct', 'acc_error')
  )
  threshold = values.get('threshold')
  below = f'below {threshold:.4g}' if is_number(threshold) else NOTHING
  return {
    'value': f1,
    'bounds': bounds,
    'f1': percent(f1),
    'interval': interval(bounds),
    'acc_error': wrong,
    'acc_correct': right,
    'flags': below,
    'undecided': values.get('count_undecided') or 0,
  }


def _baseline_flags(baseline: Mapping[str, Any], name: str) -> str:
  """Says which steps a baseline flags."""
  rate, position = baseline.get('rate'), baseline.get('position')
  threshold = baseline.get('threshold')
  if is_number(rate):
    return f'{100 * rate:.0f}%'
  if is_number(position):
    return f'step {position + 1}'
  if not is_number(threshold):
    return NOTHING
  # Where low values mean right, the feature is used with its sign turned.
  side, limit = ('above', -threshold) if threshold < 0 else ('below', threshold)
  if name == 'place':
    limit += 1  # the page counts steps from 1
  return f'{side} {limit:.4g}'
