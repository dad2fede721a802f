"""Makes the sections about choosing among the samples of a problem.

Best of N, beside its null; how chain scores rank right above wrong chains; and
which chains were read. Each function takes one section of results.json and
rejects one that does not have the documented form. Sections of earlier versions
lack the null: what is made of it is then left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import markupsafe

from prm_jax.report import figures
from prm_jax.report.ranking_rows import ranking_row
from prm_jax.report.values import (
  difference,
  flatten_rows,
  fraction,
  interval,
  is_number,
  list_of,
  pair,
  percent,
  points,
)
from prm_jax.runtime.errors import UserError

NULL = 'random_per_text'
# Key in results -> name on the page, style in the style sheet. This is the
# order of the table; other keys come last, under their own names.
SERIES = {
  'orm': ('ORM', 'orm'),
  'majority': ('majority vote', 'vote'),
  'weighted_vote': ('weighted vote', 'vote dashed'),
  NULL: ('random score for each text', 'reference null'),
  'random': ('random pick', 'reference'),
  'oracle': ('oracle', 'reference dashed'),
}
# Beside a line there is room for so much, on phones too.
SHORT = {NULL: 'random per text'}
# A lead over the null says nothing about these.
NO_LEAD = ('random', 'oracle', NULL)


def find_lead(names: Sequence[str], aggregate: str) -> str | None:
  """Returns the key of the curve that leads the tables, None for none.

  It is a PRM's, or without a PRM the ORM's. The config fixes which aggregation
  that is. To take the best one would be a choice made on the test problems.
  """
  prms = [name for name in names if name.startswith('prm_')]
  wanted = f'prm_{aggregate}'
  if wanted in prms:
    return wanted
  return next((name for name in (*prms, 'orm') if name in names), None)


def ordered(names: Sequence[str], lead: str | None) -> list[str]:
  """Returns the methods as the tables list them: the leading PRM first."""
  prms = [name for name in names if name.startswith('prm_')]
  prms.sort(key=lambda name: name != lead)
  rest = [name for name in names if name not in prms]
  order = list(SERIES)
  rest.sort(key=lambda v: order.index(v) if v in order else len(order))
  return prms + rest


def name_of(key: str) -> str:
  """Returns a method's name on the page."""
  if key.startswith('prm_'):
    return f'PRM ({key.removeprefix("prm_")})'
  return SERIES.get(key, (key.replace('_', ' '),))[0]


def best_of_n(section: Mapping[str, Any], aggregate: str) -> dict[str, Any]:
  """Returns the figure and the tables of the best-of-N section.

  Args:
    section: accuracies against N by method.
    aggregate: the step aggregation whose PRM curve leads the table.

  Raises:
    UserError: the section does not have the documented form.
  """
  n = list_of(section, 'n', 'best_of_n', -1)
  if not n or any(not isinstance(v, int) or v < 1 for v in n):
    raise UserError(f'best_of_n.n is {n!r}: expected whole numbers >= 1')
  if sorted(set(n)) != n:
    raise UserError(f'best_of_n.n is {n!r}: expected ascending numbers')
  names = [name for name, v in section.items() if isinstance(v, Mapping)]
  lead = find_lead(names, aggregate)
  series = []
  for i, key in enumerate(ordered(names, lead)):
    where = f'best_of_n.{key}'
    mean, bands = _curve(section[key], where, len(n), fraction)
    style = SERIES.get(key, ('', 'other'))[1]
    if key.startswith('prm_'):
      style = 'prm lead' if key == lead else f'prm alternative-{i}'
    series.append(
      {
        'key': key,
        'name': name_of(key),
        'style': style,
        'mean': mean,
        'ci95': bands,
        'band': key == lead or key in ('orm', 'majority'),
        'over_null': _over_null(section[key], where, len(n))
        if key not in NO_LEAD
        else None,
        'cells': [
          (percent(m), interval(b))
          for m, b in zip(mean, bands or [None] * len(n), strict=True)
        ],
      }
    )
  known = any(math.isfinite(v) for s in series for v in s['mean'])
  notes = {k: v for k, v in section.items() if k not in (*names, 'n')}
  return {
    'n': n,
    'lead': lead,
    'series': series,
    'figure': _draw(n, series) if known else None,
    'intervals': any(s['ci95'] for s in series),
    'shaded': [s['name'] for s in series if s['band'] and s['ci95']],
    'null': NULL in names,
    'leads': [
      (
        s['name'],
        s['key'] == lead,
        # One sample is the same for every method.
        [
          (points(m), interval(b, points))
          for k, (m, b) in zip(n, s['over_null'], strict=True)
          if k > 1
        ],
      )
      for s in series
      if s['over_null'] and n[-1] > 1
    ],
    'notes': flatten_rows(notes),
  }


def _draw(
  n: Sequence[int], series: Sequence[Mapping[str, Any]]
) -> markupsafe.Markup:
  label = f'Line chart of problems answered right against N, at N = {n[-1]}: '
  label += ', '.join(f'{s["name"]} {percent(s["mean"][-1])}%' for s in series)
  lines = [{**s, 'name': SHORT.get(s['key'], s['name'])} for s in series]
  return markupsafe.Markup(figures.best_of_n(n, lines, label))


def _curve(
  values: Mapping[str, Any], where: str, count: int, check: Any
) -> tuple[list[float], list[tuple[float, float]] | None]:
  """Returns the means of a curve, and its intervals or None."""
  mean = [
    check(v, f'{where}.mean') for v in list_of(values, 'mean', where, count)
  ]
  if values.get('ci95') is None:
    return mean, None
  return mean, [
    pair(v, f'{where}.ci95', check) or (math.nan, math.nan)
    for v in list_of(values, 'ci95', where, count)
  ]


def _over_null(
  values: Mapping[str, Any], where: str, count: int
) -> list[tuple[float, tuple[float, float] | None]] | None:
  """Returns a method's leads over the null; None in results without it."""
  found = values.get('over_null')
  if found is None:
    return None
  if not isinstance(found, Mapping):
    raise UserError(f'{where}.over_null: expected an object')
  mean, bands = _curve(found, f'{where}.over_null', count, difference)
  return list(zip(mean, bands or [None] * count, strict=True))


def ranking(section: Mapping[str, Any], aggregate: str) -> dict[str, Any]:
  """Returns a row for each method: how its scores rank the chains.

  Raises:
    UserError: the section does not have the documented form.
  """
  names = [name for name, v in section.items() if isinstance(v, Mapping)]
  lead = find_lead(names, aggregate)
  texts = section.get('distinct_texts')
  if texts is not None and not is_number(texts):
    raise UserError(f'ranking.distinct_texts is {texts!r}: expected a number')
  left_out = section.get('left_out') or 0  # absent in earlier versions
  if not isinstance(left_out, int):
    raise UserError(f'ranking.left_out is {left_out!r}: expected a count')
  return {
    'rows': [
      ranking_row(section[key], f'ranking.{key}')
      | {'name': name_of(key), 'lead': key == lead}
      for key in ordered(names, lead)
    ],
    'texts': None if texts is None else f'{texts:.1f}',
    'left_out': f'{left_out:,}' if left_out else '',
  }
