"""Turns the sections of results.json into what the page shows.

Each function takes one section, as `evals` computed it and JSON holds it. It
rejects a section that does not have the documented form, and returns the texts,
rows and figures that the template shows.
"""

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

import markupsafe

from prm_jax.report import figures
from prm_jax.runtime.errors import UserError

# Key in results -> name on the page, style in the style sheet. This is the
# order of the table; other keys come last, under their own names.
SERIES = {
  'orm': ('ORM', 'orm'),
  'majority': ('majority vote', 'vote'),
  'weighted_vote': ('weighted vote', 'vote dashed'),
  'random': ('random pick', 'reference'),
  'oracle': ('oracle', 'reference dashed'),
}
NOTHING = '\N{EN DASH}'  # shown where there is no value
NAMES = {
  'ece': 'expected calibration error',
  'brier': 'Brier score',
  'auroc': 'AUROC',
  'step_auroc': 'AUROC, steps',
  'first_error_auc': 'first-error AUC',
  'accuracy': 'step accuracy',
  'accuracy_until_first_error': 'step accuracy, up to the first error',
}


def is_number(value: Any) -> bool:
  """Returns whether a JSON value is a number; true and false are not."""
  return isinstance(value, int | float) and not isinstance(value, bool)


def _fraction(value: Any, where: str) -> float:
  """Checks a fraction in [0, 1]; null becomes NaN: there is no value."""
  if value is None:
    return math.nan
  # Rounding errors may put a mean of ones slightly above 1.
  if not is_number(value) or value < -1e-9 or value > 1 + 1e-9:
    raise UserError(f'{where} is {value!r}: expected a fraction in [0, 1]')
  return value if math.isnan(value) else min(max(float(value), 0.0), 1.0)


def _list(
  section: Mapping[str, Any], name: str, where: str, length: int
) -> list[Any]:
  values = section.get(name)
  if not isinstance(values, list) or length not in (-1, len(values)):
    many = 'a list' if length < 0 else f'a list of {length}'
    raise UserError(f'{where}.{name}: expected {many}')
  return values


def _pair(value: Any, where: str) -> tuple[float, float] | None:
  if value is None:
    return None
  if not isinstance(value, list) or len(value) != 2:
    raise UserError(f'{where} is {value!r}: expected [low, high]')
  return _fraction(value[0], where), _fraction(value[1], where)


def _percent(value: float) -> str:
  return NOTHING if math.isnan(value) else f'{100 * value:.1f}'


def _interval(pair: tuple[float, float] | None) -> str:
  if pair is None or math.isnan(pair[0] + pair[1]):
    return ''
  return f'[{100 * pair[0]:.1f}, {100 * pair[1]:.1f}]'


def format_percent(value: float, pair: tuple[float, float] | None) -> str:
  """Formats a fraction and its interval as percentages: 85.5% [82.5, 87.5]."""
  return f'{_percent(value)}% {_interval(pair)}'.rstrip()


def _text(value: Any) -> str:
  if value is None:
    return NOTHING
  if isinstance(value, float):
    return f'{value:.6g}'
  return value if isinstance(value, str) else json.dumps(value)


def flatten_rows(section: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns (name, text) rows of nested values, with names joined by dots."""
  rows = []
  for name, value in section.items():
    if isinstance(value, Mapping):
      rows += [(f'{name}.{below}', text) for below, text in flatten_rows(value)]
    elif name == 'wall_seconds' and is_number(value):
      clock = datetime.timedelta(seconds=round(value))
      rows.append((name, f'{_text(value)} ({clock})'))
    else:
      rows.append((NAMES.get(name, name), _text(value)))
  return rows


def best_of_n(section: Mapping[str, Any], aggregate: str) -> dict[str, Any]:
  """Returns the figure and the table of the best-of-N section.

  Args:
    section: accuracies against N by method.
    aggregate: the step aggregation whose PRM curve leads the table.

  Raises:
    UserError: the section does not have the documented form.
  """
  n = _list(section, 'n', 'best_of_n', -1)
  if not n or any(not isinstance(v, int) or v < 1 for v in n):
    raise UserError(f'best_of_n.n is {n!r}: expected whole numbers >= 1')
  if sorted(set(n)) != n:
    raise UserError(f'best_of_n.n is {n!r}: expected ascending numbers')
  names = [name for name, v in section.items() if isinstance(v, Mapping)]
  prms = [name for name in names if name.startswith('prm_')]
  # The config fixes which aggregation leads. To take the best one would be a
  # choice made on the test problems.
  lead = f'prm_{aggregate}' if f'prm_{aggregate}' in prms else None
  lead = lead or (prms[0] if prms else None)
  prms.sort(key=lambda name: name != lead)
  rest = [name for name in names if name not in prms]
  order = list(SERIES)
  rest.sort(key=lambda v: order.index(v) if v in order else len(order))
  series = []
  for i, key in enumerate(prms + rest):
    where = f'best_of_n.{key}'
    values = section[key]
    mean = [
      _fraction(v, f'{where}.mean')
      for v in _list(values, 'mean', where, len(n))
    ]
    bands = None
    if values.get('ci95') is not None:
      bands = [
        _pair(v, f'{where}.ci95') or (math.nan, math.nan)
        for v in _list(values, 'ci95', where, len(n))
      ]
    name, style = SERIES.get(key, (key.replace('_', ' '), 'other'))
    if key in prms:
      name = f'PRM ({key.removeprefix("prm_")})'
      style = 'prm lead' if key == lead else f'prm alternative-{i}'
    series.append(
      {
        'key': key,
        'name': name,
        'style': style,
        'mean': mean,
        'ci95': bands,
        'band': key == lead or key in ('orm', 'majority'),
        'cells': [
          (_percent(m), _interval(b))
          for m, b in zip(mean, bands or [None] * len(n), strict=True)
        ],
      }
    )
  label = f'Line chart of problems answered right against N, at N = {n[-1]}: '
  label += ', '.join(f'{s["name"]} {_percent(s["mean"][-1])}%' for s in series)
  notes = flatten_rows(
    {k: v for k, v in section.items() if k not in (*names, 'n')}
  )
  return {
    'n': n,
    'lead': lead,
    'series': series,
    'figure': markupsafe.Markup(figures.best_of_n(n, series, label)),
    'intervals': any(s['ci95'] for s in series),
    'shaded': [s['name'] for s in series if s['band'] and s['ci95']],
    'notes': notes,
  }


def unread(section: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns a row for each data set: the steps that the window cut off."""
  rows = []
  for name, values in section.items():
    counts = values if isinstance(values, Mapping) else {}
    found = [
      counts.get(k) for k in ('steps', 'of_steps', 'chains', 'of_chains')
    ]
    if any(not isinstance(count, int) for count in found):
      raise UserError(
        f'unread.{name}: expected counts steps, of_steps, chains, of_chains'
      )
    steps, of_steps, chains, of_chains = found
    rows.append(
      (
        name,
        f'{steps:,} of {of_steps:,} steps, in {chains:,} of {of_chains:,} '
        "chains, lie beyond the model's window. They have no score, and their "
        'chains lose to chains that were read whole',
      )
    )
  return rows


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
    rows.append(row | {'name': 'PRM', 'baseline': False})
    if 'by_position' in values:
      positions = _list(values, 'by_position', where, -1)
      places.append((dataset, by_position(positions, f'{where}.by_position')))
    baselines = values.get('baselines') or {}
    if not isinstance(baselines, Mapping):
      raise UserError(f'{where}.baselines: expected an object')
    for name, baseline in baselines.items():
      if not isinstance(baseline, Mapping):
        raise UserError(f'{where}.baselines.{name}: expected an object')
      row = _localisation_row(baseline, f'{where}.baselines.{name}') | shared
      rows.append(row | {'name': name.replace('_', ' '), 'baseline': True})
  return {'rows': rows, 'notes': flatten_rows(notes), 'places': places}


COUNTS = ('right_kept', 'right_flagged', 'wrong_kept', 'wrong_flagged')


def by_position(positions: list[Any], where: str) -> list[dict[str, Any]]:
  """Returns a row for each position: its right and wrong steps, % flagged."""
  rows = []
  for k, each in enumerate(positions):
    values = each if isinstance(each, Mapping) else {}
    counts = [values.get(name) for name in COUNTS]
    if any(not isinstance(count, int) or count < 0 for count in counts):
      raise UserError(f'{where}[{k}]: expected counts {", ".join(COUNTS)}')
    kept, alarms, missed, found = counts
    right, wrong = kept + alarms, missed + found
    rows.append(
      {
        'step': f'{k + 1}{" and later" if values.get("and_later") else ""}',
        'right': f'{right:,}',
        'alarms': _percent(alarms / right if right else math.nan),
        'wrong': f'{wrong:,}',
        'found': _percent(found / wrong if wrong else math.nan),
      }
    )
  return rows


def _localisation_row(values: Mapping[str, Any], where: str) -> dict[str, Any]:
  if 'f1' not in values:
    raise UserError(f'{where}: expected f1')
  f1 = _fraction(values['f1'], f'{where}.f1')
  pair = _pair(values.get('ci95'), f'{where}.ci95')
  right, wrong = (
    _percent(_fraction(values.get(name), f'{where}.{name}'))
    for name in ('acc_correct', 'acc_error')
  )
  return {
    'value': f1,
    'f1': _percent(f1),
    'interval': _interval(pair),
    'acc_error': wrong,
    'acc_correct': right,
    'threshold': _text(values.get('threshold')),
    'undecided': values.get('count_undecided') or 0,
  }


def wilson(accuracy: float, count: int) -> tuple[float, float]:
  """Returns the 95% score interval of a share (Wilson, 1927).

  Args:
    accuracy: the share of successes, in [0, 1].
    count: number of independent trials, >= 1.
  """
  z = 1.959964
  middle = accuracy + z * z / (2 * count)
  spread = accuracy * (1 - accuracy) / count + z * z / (4 * count * count)
  scale = 1 + z * z / count
  half = z * math.sqrt(spread)
  return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def calibration(dataset: str, section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a data set's calibration, with a reliability diagram if binned."""
  if not isinstance(section, Mapping):
    raise UserError(f'calibration.{dataset}: expected an object')
  bins = []
  diagram = section.get('reliability') or {}
  if diagram:
    where = f'calibration.{dataset}.reliability'
    if not isinstance(diagram, Mapping):
      raise UserError(f'{where}: expected an object')
    counts = _list(diagram, 'count', where, -1)
    scores = _list(diagram, 'score', where, len(counts))
    shares = _list(diagram, 'accuracy', where, len(counts))
    for count, score, share in zip(counts, scores, shares, strict=True):
      if not is_number(count) or count < 0:
        raise UserError(f'{where}.count holds {count!r}: expected a count')
      if count:
        right = _fraction(share, f'{where}.accuracy')
        mean = _fraction(score, f'{where}.score')
        if math.isnan(right + mean):
          raise UserError(f'{where}: no number in a bin of {count} steps')
        bins.append(
          {
            'count': int(count),
            'score': mean,
            'accuracy': right,
            'interval': wilson(right, count),
          }
        )
  figure = None
  if bins:
    label = 'Reliability diagram, mean score to share of right steps: '
    label += ', '.join(
      f'{b["score"]:.2f} to {b["accuracy"]:.2f} ({b["count"]} steps)'
      for b in bins
    )
    figure = markupsafe.Markup(figures.reliability(bins, label))
  numbers = {k: v for k, v in section.items() if k != 'reliability'}
  return {
    'dataset': dataset,
    'rows': flatten_rows(numbers),
    'ece': _fraction(section.get('ece'), f'calibration.{dataset}.ece'),
    'figure': figure,
    'bins': [
      (f'{b["score"]:.3f}', f'{b["accuracy"]:.3f}', f'{b["count"]:,}')
      for b in bins
    ],
  }
