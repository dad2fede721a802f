"""Sums up a run's numbers in a few paragraphs that outsiders can read.

They head the page. They are made from the sections that the page has checked,
and state what was measured, favourable or not, each beside what a scorer
without any knowledge reaches. They never claim that a difference is real, only
where an interval lies.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.report.values import format_percent, interval, percent, points

RIVALS = {
  'majority': 'majority vote',
  'weighted_vote': 'weighted vote',
  'orm': 'the ORM',
}


def verdict(
  best: Mapping[str, Any] | None,
  localised: Mapping[str, Any] | None,
  calibrated: Sequence[Mapping[str, Any]],
) -> list[str]:
  """Returns the paragraphs, none if there is no section to sum up.

  Args:
    best: the view from `selection_section.best_of_n`, or None.
    localised: the view from `localisation_section.localisation`, or None.
    calibrated: views from `sections.calibration`, one for each data set.
  """
  found = [_sum_up_best_of_n(best) if best else []]
  if localised and localised['rows']:
    found.append(_sum_up_localisation(localised['rows']))
  found.append(_sum_up_ranking(calibrated))
  found.append(_sum_up_calibration(calibrated))
  return [_unbroken(' '.join(sentences)) for sentences in found if sentences]


def _unbroken(text: str) -> str:
  """Puts non-breaking spaces into intervals, which keep them on one line."""
  return re.sub(r', (?=[+-]?[\d.]+\])', ',\N{NO-BREAK SPACE}', text)


def _sum_up_best_of_n(best: Mapping[str, Any]) -> list[str]:
  """Compares what leads with the null and its rivals at the largest N."""
  at = {}
  for s in best['series']:
    pair = s['ci95'][-1] if s['ci95'] else None
    at[s['key']] = (s['name'], format_percent(s['mean'][-1], pair), pair)
  if best['lead'] is None:
    return []
  name, value, pair = at[best['lead']]
  rivals = [key for key in RIVALS if key in at and key != best['lead']]
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
  return sentences + _sum_up_null(best, at)


def _sum_up_null(
  best: Mapping[str, Any], at: Mapping[str, tuple[str, str, Any]]
) -> list[str]:
  """Says what a scorer without knowledge reaches, and the leads over it."""
  perfect = at.get('oracle', ('', '', None))[1]
  perfect = f'; a perfect pick would give {perfect}.' if perfect else '.'
  leads = {
    s['key']: s['over_null'][-1] for s in best['series'] if s['over_null']
  }
  if best['lead'] not in leads:
    if 'random' not in at:
      return []
    return [f'A random pick gives {at["random"][1]}{perfect}']
  clauses = [
    f'{"it leads" if key == best["lead"] else RIVALS[key]} by {_lead(*found)}'
    for key, found in leads.items()
    if key == best['lead'] or key in RIVALS
  ]
  null = at['random_per_text'][1]
  return [
    f'A random score for each text gives {null}{perfect}',
    f'Over that null {_joined(clauses)}.',
  ]


def _lead(value: float, bounds: tuple[float, float] | None) -> str:
  shown = f'{points(value)} points {interval(bounds, points)}'.rstrip()
  if bounds and bounds[0] <= 0 <= bounds[1]:
    shown += ' (0 is in the interval)'
  return shown


def _relation(pair: tuple[float, float], other: tuple[float, float]) -> str:
  if pair[0] > other[1]:
    return 'lies above that of'
  return 'lies below that of' if pair[1] < other[0] else 'overlaps that of'


def _sum_up_localisation(rows: Sequence[Mapping[str, Any]]) -> list[str]:
  """Gives F1 for each data set, beside its best trivial baseline."""
  best: dict[str, Mapping[str, Any]] = {}
  for row in rows:
    known = best.get(row['dataset'], {'value': -1.0})
    if row['kind'] == 'baseline' and row['value'] > known['value']:
      best[row['dataset']] = row
  parts: list[str] = []
  verdicts: dict[str, list[str]] = {}
  for row in rows:
    if row['kind'] == 'lead':
      top = best.get(row['dataset'])
      beside = f' ({top["name"]}: {top["f1"]})' if top else ''
      score = f'{row["f1"]} {row["interval"]}'.rstrip()
      parts.append(f'{score} on {row["dataset"]}{beside}')
      low, high = row['bounds'] or (row['value'], row['value'])
      if top and not low > top['value']:
        how = 'below' if high < top['value'] else 'not clearly above'
        verdicts.setdefault(how, []).append(row['dataset'])
  aside = '; in parentheses, the best trivial baseline' if best else ''
  return [f'It names the first wrong step with F1 {_joined(parts)}{aside}.'] + [
    f'That is {how} the baseline on {_joined(names)}.'
    for how, names in verdicts.items()
  ]


def _sum_up_ranking(calibrated: Sequence[Mapping[str, Any]]) -> list[str]:
  """Gives the AUC of steps for each data set, beside the best feature's."""
  parts, has_features = [], False
  for one in calibrated:
    ours = [row for row in one['ranking'] if row['lead']]
    features = [row for row in one['ranking'] if not row['lead']]
    if not ours or math.isnan(ours[0]['value']):
      continue
    known = [row for row in features if not math.isnan(row['value'])]
    top = max(known, key=lambda row: row['value'], default=None)
    beside = f' ({top["name"]}: {top["auc"]})' if top else ''
    has_features |= bool(top)
    shown = f'{ours[0]["auc"]} {ours[0]["interval"]}'.rstrip()
    parts.append(f'{shown} on {one["dataset"]}{beside}')
  if not parts:
    return []
  said = '; in parentheses, the best feature of the text' * has_features
  return [
    f'It ranks right steps above wrong ones with AUC {_joined(parts)}{said}.'
  ]


def _sum_up_calibration(calibrated: Sequence[Mapping[str, Any]]) -> list[str]:
  """Gives log loss and the error of unsure scores, or the error of all."""
  losses, unsure, off = [], [], []
  for one in calibrated:
    if not math.isnan(one['log_loss']):
      null = one['constant_loss']
      beside = '' if math.isnan(null) else f' ({null:.3f})'
      losses.append(f'{one["log_loss"]:.3f}{beside} on {one["dataset"]}')
      if not math.isnan(one['unsure']):
        unsure.append(
          f'{100 * one["unsure"]:.1f} points on {one["dataset"]} '
          f'({percent(one["unsure_share"])}% of its steps)'
        )
    elif not math.isnan(one['ece']):
      off.append(f'{100 * one["ece"]:.1f} points on {one["dataset"]}')
  sentences = []
  if losses:
    sentences.append(
      f'As probabilities its step scores have log loss {_joined(losses)}; in '
      'parentheses, that of always saying the share of right steps.'
    )
  if unsure:
    sentences.append(
      f'Scores from 0.05 to 0.95 are off by {_joined(unsure)} on average.'
    )
  if off:
    sentences.append(
      f'Read as probabilities, its step scores are off by {_joined(off)} on '
      'average (expected calibration error).'
    )
  return sentences


def _joined(parts: Sequence[str]) -> str:
  """Joins parts to "a, b and c"."""
  *most, last = parts
  return f'{", ".join(most)} and {last}' if most else last
