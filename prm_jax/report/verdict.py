"""Sums up a run's numbers in a paragraph that outsiders can read.

The paragraph heads the page. It is made from the sections that `sections.py`
has checked, and states what was measured, favourable or not. It never claims
that a difference is real, only that two intervals overlap or do not.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.report.sections import format_percent

RIVALS = {
  'majority': 'majority vote',
  'weighted_vote': 'weighted vote',
  'orm': 'the ORM',
}


def verdict(
  best: Mapping[str, Any] | None,
  localised: Mapping[str, Any] | None,
  calibrated: Sequence[Mapping[str, Any]],
) -> str:
  """Returns the paragraph; '' if there is no section to sum up.

  Args:
    best: the view from `sections.best_of_n`, or None.
    localised: the view from `sections.localisation`, or None.
    calibrated: views from `sections.calibration`, one for each data set.
  """
  sentences = _sum_up_best_of_n(best) if best else []
  if localised and localised['rows']:
    sentences.append(_sum_up_localisation(localised['rows']))
  off = [
    f'{100 * one["ece"]:.1f} points on {one["dataset"]}'
    for one in calibrated
    if not math.isnan(one['ece'])
  ]
  if off:
    sentences.append(
      'Read as probabilities, its step scores are off by '
      f'{" and ".join(off)} on average (expected calibration error).'
    )
  # Non-breaking spaces keep an interval on one line.
  return re.sub(r', (?=[\d.]+\])', ',\N{NO-BREAK SPACE}', ' '.join(sentences))


def _sum_up_best_of_n(best: Mapping[str, Any]) -> list[str]:
  """Compares the PRM with its rivals at the largest N."""
  at = {}
  for s in best['series']:
    pair = s['ci95'][-1] if s['ci95'] else None
    at[s['key']] = (s['name'], format_percent(s['mean'][-1], pair), pair)
  if best['lead'] is None:
    return []
  name, value, pair = at[best['lead']]
  rivals = [key for key in RIVALS if key in at]
  clauses = [
    f'At N = {best["n"][-1]} the {name} picks a right answer for {value} of '
    'problems'
  ]
  clauses += [f'{RIVALS[key]} {at[key][1]}' for key in rivals]
  sentences = ['; '.join(clauses) + '.']
  relations: dict[str, list[str]] = {}
  for key in rivals:
    if pair and at[key][2]:
      how = _relation(pair, at[key][2])
      relations.setdefault(how, []).append(RIVALS[key])
  if relations:
    overlaps = [f'{how} {_joined(names)}' for how, names in relations.items()]
    sentences.append(f'Its 95% interval {_joined(overlaps)}.')
  if 'random' in at and 'oracle' in at:
    sentences.append(
      f'A random pick gives {at["random"][1]}; a perfect pick would give '
      f'{at["oracle"][1]}.'
    )
  return sentences


def _relation(pair: tuple[float, float], other: tuple[float, float]) -> str:
  if pair[0] > other[1]:
    return 'lies above that of'
  return 'lies below that of' if pair[1] < other[0] else 'overlaps that of'


def _sum_up_localisation(rows: Sequence[Mapping[str, Any]]) -> str:
  """Gives F1 for each data set, beside its best trivial baseline."""
  best: dict[str, Mapping[str, Any]] = {}
  for row in rows:
    known = best.get(row['dataset'], {'value': -1.0})
    if row['baseline'] and row['value'] > known['value']:
      best[row['dataset']] = row
  parts = []
  for row in rows:
    if not row['baseline']:
      top = best.get(row['dataset'])
      beside = f' ({top["name"]}: {top["f1"]})' if top else ''
      score = f'{row["f1"]} {row["interval"]}'.rstrip()
      parts.append(f'{score} on {row["dataset"]}{beside}')
  aside = '; in parentheses, the best trivial baseline' if best else ''
  return f'It names the first wrong step with F1 {_joined(parts)}{aside}.'


def _joined(parts: Sequence[str]) -> str:
  """Joins parts to "a, b and c"."""
  *most, last = parts
  return f'{", ".join(most)} and {last}' if most else last
