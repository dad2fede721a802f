"""The tables of this experiment's README, made from its results.json."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.tables import mean, mean_and_seeds, table
from prm_jax.evals.suite import NULL

AGGREGATES = ('min', 'prod', 'mean', 'last')
LIGHTMAN = 2.6  # Lightman et al. (2023), section 4.2
MEASURES = {
  'F1': lambda run: run['localisation']['f1'],
  'min': lambda run: run['best_of_64']['prm_min']['mean'],
  'last': lambda run: run['best_of_64']['prm_last']['mean'],
  'vote': lambda run: run['best_of_64']['weighted_vote']['mean'],
}


def label_table(labels: Sequence[dict[str, Any]]) -> str:
  """Shows how often the labels of each source are right, and their cost."""
  rows = []
  for name in labels[0]:
    seeds = [seed[name] for seed in labels]
    known = seeds[0]['accuracy'] is not None
    rows.append(
      [
        name,
        mean_and_seeds([it['accuracy'] for it in seeds]) if known else 'soft',
        f'{mean([it["labelled"] for it in seeds]):,.0f}',
        f'{mean([it["tokens_per_chain"] for it in seeds]):,.0f}',
      ]
    )
  heads = (
    'labels | first error right, % of chains | chains labelled | '
    'tokens sampled per chain'
  )
  return table(heads, rows)


def interval(runs: Sequence[dict[str, Any]]) -> str:
  """Formats each seed's 95% interval, over problems, of best of 64 by min."""
  intervals = [run['best_of_64']['prm_min']['ci95'] for run in runs]
  return '; '.join(
    f'{100 * low:.0f} to {100 * high:.0f}' for low, high in intervals
  )


def run_table(
  labels: Sequence[dict[str, Any]],
  runs: Sequence[dict[str, Any]],
  names: Sequence[str],
  kind: str,
) -> str:
  """Shows the PRM of each kind of label, beside choices that need no labels.

  Args:
    names: the kinds of label.
    kind: 'equal chains' or 'equal tokens'.
  """
  rows = []
  for name in names:
    seeds = [seed[f'{kind}: {name}'] for seed in runs]
    chains = mean([seed[name][kind] for seed in labels])
    cells = {
      measure: mean_and_seeds([read(run) for run in seeds])
      for measure, read in MEASURES.items()
    }
    rows.append(
      [
        name,
        f'{chains:,.0f}',
        cells['F1'],
        cells['min'],
        interval(seeds),
        cells['last'],
        cells['vote'],
      ]
    )
  plain = {
    'majority': 'majority',
    'random': 'random',
    'random per text': NULL,
    'oracle': 'oracle',
  }
  for name, method in plain.items():
    seeds = [seed[f'{kind}: {names[0]}']['best_of_64'][method] for seed in runs]
    right = mean_and_seeds([curve['mean'] for curve in seeds])
    rows.append([f'no labels: {name}', '', '', right, '', '', ''])
  heads = [
    f'labels, {kind}',
    'chains',
    'first-error F1',
    'best of 64 by min',
    'its 95% intervals',
    'by last',
    'weighted vote',
  ]
  return table(heads, rows)


def aggregation_table(
  runs: Sequence[dict[str, Any]], names: Sequence[str], kind: str
) -> str:
  """Shows best of 64 by every aggregate of a chain's step scores."""
  rows = []
  for name in names:
    seeds = [seed[f'{kind}: {name}']['best_of_64'] for seed in runs]
    rows.append(
      [
        name,
        *(
          mean_and_seeds([curves[f'prm_{how}']['mean'] for curves in seeds])
          for how in AGGREGATES
        ),
      ]
    )
  return table([f'labels, {kind}', *AGGREGATES], rows)


def efficiency(
  runs: dict[str, Any], budgets: Sequence[int], measure: str
) -> float | None:
  """Returns how many times fewer chains active selection needs.

  Fits parallel lines over log2(chains), one for each method, by least squares;
  their horizontal distance is the factor for the same result. None where more
  chains do not help.
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
  """Shows active beside random selection, and the data efficiency below."""
  titles = {'F1': 'first-error F1', 'min': 'best of 64 by min'}
  rows = [
    [
      method,
      title,
      *(
        mean_and_seeds([MEASURES[name](s[f'{method}: {b}']) for s in runs])
        for b in budgets
      ),
    ]
    for method in ('active', 'random')
    for name, title in titles.items()
  ]
  heads = ['selection', 'measure', *(f'{b} a problem' for b in budgets)]
  parts = [table(heads, rows)]
  for name, title in (('F1', 'first-error F1'), ('min', 'best of 64')):
    factors = [efficiency(seed, budgets, name) for seed in runs]
    shown = ', '.join('none' if f is None else f'{f:.2f}' for f in factors)
    parts.append(
      f'Data efficiency of active selection by {title}, each seed: {shown} '
      f'(Lightman et al. find {LIGHTMAN}).'
    )
  return '\n\n'.join(parts)


def render(
  found: dict[str, Any], names: Sequence[str], budgets: Sequence[int]
) -> str:
  """Makes all tables."""
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
