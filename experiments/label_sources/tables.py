"""The tables of this experiment's README, from its results.json."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

AGGREGATES = ('min', 'prod', 'mean', 'last')
LIGHTMAN = 2.6  # Lightman et al. (2023), section 4.2
MEASURES = {
  'F1': lambda run: run['localisation']['f1'],
  'min': lambda run: run['best_of_64']['prm_min']['mean'],
  'last': lambda run: run['best_of_64']['prm_last']['mean'],
  'vote': lambda run: run['best_of_64']['weighted_vote']['mean'],
}


def mean(values: Sequence[float]) -> float:
  return sum(values) / len(values)


def percent(values: Sequence[float]) -> str:
  """Mean of seeds, and each of them."""
  each = ', '.join(f'{100 * value:.1f}' for value in values)
  return f'{100 * mean(values):.1f} ({each})'


def label_table(labels: Sequence[dict[str, Any]]) -> str:
  lines = [
    '| labels | first error right, % of chains | chains labelled | tokens '
    'sampled per chain |',
    '| --- | --- | --- | --- |',
  ]
  for name in labels[0]:
    rows = [seed[name] for seed in labels]
    known = rows[0]['accuracy'] is not None
    right = percent([row['accuracy'] for row in rows]) if known else 'soft'
    lines.append(
      f'| {name} | {right} | {mean([row["labelled"] for row in rows]):,.0f} | '
      f'{mean([row["tokens_per_chain"] for row in rows]):,.0f} |'
    )
  return '\n'.join(lines)


def interval(runs: Sequence[dict[str, Any]]) -> str:
  """Each seed's 95% interval of best-of-64 by min, over problems."""
  pairs = [run['best_of_64']['prm_min']['ci95'] for run in runs]
  return '; '.join(
    f'{100 * low:.0f} to {100 * high:.0f}' for low, high in pairs
  )


def run_table(
  labels: Sequence[dict[str, Any]],
  runs: Sequence[dict[str, Any]],
  names: Sequence[str],
  kind: str,
) -> str:
  lines = [
    f'| labels, {kind} | chains | first-error F1 | best of 64 by min | its 95% '
    'intervals | by last | weighted vote |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for name in names:
    rows = [seed[f'{kind}: {name}'] for seed in runs]
    chains = mean([seed[name][kind] for seed in labels])
    cells = {
      measure: percent([read(row) for row in rows])
      for measure, read in MEASURES.items()
    }
    lines.append(
      f'| {name} | {chains:,.0f} | {cells["F1"]} | {cells["min"]} | '
      f'{interval(rows)} | {cells["last"]} | {cells["vote"]} |'
    )
  votes = {
    name: percent(
      [seed[f'{kind}: {names[0]}']['best_of_64'][name]['mean'] for seed in runs]
    )
    for name in ('majority', 'random', 'oracle')
  }
  lines += [
    f'| no labels: {name} | | | {value} | | | |'
    for name, value in votes.items()
  ]
  return '\n'.join(lines)


def aggregation_table(
  runs: Sequence[dict[str, Any]], names: Sequence[str], kind: str
) -> str:
  """Best of 64 by every aggregate of a chain's step scores."""
  lines = [
    f'| labels, {kind} | {" | ".join(AGGREGATES)} |',
    f'| --- |{" --- |" * len(AGGREGATES)}',
  ]
  for name in names:
    rows = [seed[f'{kind}: {name}']['best_of_64'] for seed in runs]
    cells = [
      percent([row[f'prm_{how}']['mean'] for row in rows]) for how in AGGREGATES
    ]
    lines.append(f'| {name} | {" | ".join(cells)} |')
  return '\n'.join(lines)


def efficiency(
  runs: dict[str, Any], budgets: Sequence[int], measure: str
) -> float | None:
  """Times fewer chains that active selection needs for the same result.

  Parallel lines over log2(chains), one for each method, by least squares; their
  horizontal distance. None where more chains do not help.
  """
  read = MEASURES[measure]
  rows, values = [], []
  for method in ('active', 'random'):
    for budget in budgets:
      rows.append([math.log2(budget), method == 'active', method == 'random'])
      values.append(read(runs[f'{method}: {budget}']))
  slope, active, random = np.linalg.lstsq(
    np.array(rows, float), np.array(values), rcond=None
  )[0]
  return float(2 ** ((active - random) / slope)) if slope > 0 else None


def active_table(runs: Sequence[dict[str, Any]], budgets: Sequence[int]) -> str:
  heads = ' | '.join(f'{budget} a problem' for budget in budgets)
  lines = [
    f'| selection | measure | {heads} |',
    '| --- | --- |' + ' --- |' * len(budgets),
  ]
  for method in ('active', 'random'):
    for measure in ('F1', 'min'):
      cells = [
        percent([MEASURES[measure](s[f'{method}: {budget}']) for s in runs])
        for budget in budgets
      ]
      title = {'F1': 'first-error F1', 'min': 'best of 64 by min'}[measure]
      lines.append(f'| {method} | {title} | {" | ".join(cells)} |')
  lines.append('')
  for measure, title in (('F1', 'first-error F1'), ('min', 'best of 64')):
    factors = [efficiency(seed, budgets, measure) for seed in runs]
    shown = ', '.join('none' if f is None else f'{f:.2f}' for f in factors)
    lines.append(
      f'Data efficiency by {title}, of each seed: {shown} (Lightman et al.: '
      f'{LIGHTMAN}).'
    )
    lines.append('')
  return '\n'.join(lines[:-1])


def render(
  found: dict[str, Any], names: Sequence[str], budgets: Sequence[int]
) -> str:
  """All tables, Markdown."""
  names = list(names)
  labels, runs = list(found['labels'].values()), list(found['runs'].values())
  return '\n\n'.join(
    [
      label_table(labels),
      *(
        run_table(labels, runs, names, kind)
        for kind in ('equal chains', 'equal tokens')
      ),
      aggregation_table(runs, names, 'equal chains'),
      active_table(runs, budgets),
    ]
  )
