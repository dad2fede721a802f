"""From results per problem to points with intervals, and the tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.tables import (
  between,
  percent,
  points,
  points_between,
  table,
  times,
)
from prm_jax.evals import bootstrap, compute

# Paired comparisons: (what, ours, theirs), each a method and its size.
PAIRS = (
  ('beam with 4 and best of 16 by PRM', ('beam', 4), ('best of N, PRM', 16)),
  ('beam and best of N by PRM, 16 each', ('beam', 16), ('best of N, PRM', 16)),
  ('beam and weighted vote, 16 each', ('beam', 16), ('weighted vote', 16)),
  ('beam and REBASE, 16 each', ('beam', 16), ('rebase', 16)),
  ('PRM and ORM, best of 16', ('best of N, PRM', 16), ('best of N, ORM', 16)),
)
SIZE = ('n', 'samples', 'simulations')
# The accuracy of these is to be reached with less compute: method and size,
# or None for the size with the highest accuracy.
REFERENCES = (
  ('best of N, ORM', None),
  ('best of N, PRM', 16),
  ('best of N, PRM', 64),
  ('weighted vote', 64),
)


def size(point: Mapping[str, Any]) -> int:
  """Returns the number of samples or simulations of a point of a curve."""
  return next(int(point[name]) for name in SIZE if name in point)


def stacked(seeds: Sequence[Mapping[str, Any]], method: str, name: str):
  """Stacks a number of a method: [Q, K], problems of all seeds by points."""
  rows = [
    np.stack([np.asarray(p[name], float) for p in seed[method]], 1)
    for seed in seeds
  ]
  return np.concatenate(rows)


def flops_of(seeds: Sequence[Mapping[str, Any]], method: str) -> np.ndarray:
  """Returns the FLOPs of policy and PRM together: [Q, K]."""
  return stacked(seeds, method, 'policy_flops') + stacked(
    seeds, method, 'prm_flops'
  )


def summarise(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Summarises one difficulty: the points of each method, and comparisons.

  The problems of all seeds are pooled; each seed has problems, misconceptions
  and models of its own.
  """
  methods = [name for name in seeds[0] if not name.startswith('_')]
  found: dict[str, Any] = {'methods': {}, 'differences': {}, 'times_less': []}
  right = {name: stacked(seeds, name, 'right') for name in methods}
  flops = {name: flops_of(seeds, name) for name in methods}
  for name in methods:
    tokens = stacked(seeds, name, 'tokens').mean(0)
    mean, low, high = bootstrap.mean_ci(right[name], 0)
    found['methods'][name] = [
      {
        'size': size(seeds[0][name][k]),
        'accuracy': {'mean': mean[k], 'ci95': [low[k], high[k]]},
        'seeds': [float(np.mean(s[name][k]['right'])) for s in seeds],
        'flops': float(flops[name][:, k].mean()),
        'tokens': float(tokens[k]),
      }
      for k in range(len(seeds[0][name]))
    ]
  for title, ours, theirs in PAIRS:
    a, b = (column(seeds, right, *which) for which in (ours, theirs))
    mean, low, high = bootstrap.paired_difference_ci(a, b, 0)
    ratio = column(seeds, flops, *theirs).mean()
    ratio /= column(seeds, flops, *ours).mean()
    found['differences'][title] = {
      'mean': mean,
      'ci95': [low, high],
      'times_less_compute': float(ratio),
    }
  for reference, wanted in REFERENCES:
    k = int(right[reference].mean(0).argmax())
    if wanted:
      k = [size(point) for point in seeds[0][reference]].index(wanted)
    theirs = flops[reference][:, k], right[reference][:, k]
    found['times_less'].append(
      {
        'method': reference,
        'size': size(seeds[0][reference][k]),
        'accuracy': float(theirs[1].mean()),
        'ours': {
          name: compute.times_less((flops[name], right[name]), theirs)
          for name in methods
          if name not in (reference, 'oracle')
        },
      }
    )
  found['over_optimisation'] = [seed['_over_optimisation'] for seed in seeds]
  return found


def column(
  seeds: Sequence[Mapping[str, Any]],
  values: Mapping[str, np.ndarray],
  method: str,
  wanted: int,
) -> np.ndarray:
  """Returns the values [Q] of the point of a method that has this size."""
  sizes = [size(point) for point in seeds[0][method]]
  return values[method][:, sizes.index(wanted)]


def methods_table(found: Mapping[str, Any]) -> str:
  """Shows accuracy and compute of every method at every size."""
  rows = []
  for name, curve in found['methods'].items():
    for point in curve:
      accuracy = point['accuracy']
      rows.append(
        [
          name.replace('_', ' '),
          str(point['size']),
          percent(accuracy['mean']),
          between(accuracy['ci95']),
          ', '.join(map(percent, point['seeds'])),
          f'{point["flops"] / 1e9:.2f}',
          f'{point["tokens"]:,.0f}',
        ]
      )
  heads = (
    'method | samples | right, % | 95% interval | each seed | '
    'GFLOP a problem | tokens a problem'
  )
  return table(heads, rows)


def differences_table(results: Mapping[str, Any]) -> str:
  """Shows the paired comparisons, by operations."""
  rows = []
  for title, _, _ in PAIRS:
    cells = []
    for found in results.values():
      pair = found['differences'][title]
      difference = f'{points(pair["mean"])} ({points_between(pair["ci95"])})'
      cells.append(f'{difference}, {times(pair["times_less_compute"], 2)}')
    rows.append([title, *cells])
  heads = ['paired difference', *(f'{k} operations' for k in results)]
  return table(heads, rows)


def times_table(found: Mapping[str, Any]) -> str:
  """Shows how many times less compute each method takes for an accuracy."""
  asked = found['times_less']
  rows = [
    [
      name.replace('_', ' '),
      *(_times_less(it['ours'].get(name)) for it in asked),
    ]
    for name in found['methods']
    if name != 'oracle'
  ]
  heads = [
    f'{it["method"]} with {it["size"]}: {percent(it["accuracy"])}%'
    for it in asked
  ]
  return table(['method', *heads], rows)


def _times_less(found: Mapping[str, Any] | None) -> str:
  if found is None:
    return ''
  if found['ratio'] is None:
    return 'not reached'
  low, high = found['ci95']
  least = 'at least ' if found['smallest'] else ''
  share = f'; {100 * found["reached"]:.0f}%' if found['reached'] < 1 else ''
  return f'{least}{found["ratio"]:.1f} ({low:.1f} to {high:.1f}{share})'


def over_optimisation_table(results: Mapping[str, Any]) -> str:
  """Shows where best of n is best, and how it ends, for each seed."""
  rows = []
  for k, found in results.items():
    for number, seed in enumerate(found['over_optimisation']):
      for name, curve in seed.items():
        peak = curve['n'].index(curve['peak'])
        rows.append(
          [
            k,
            name,
            str(number),
            str(curve['peak']),
            percent(curve['accuracy'][peak]),
            percent(curve['accuracy'][-1]),
            'yes' if curve['over_optimised'] else 'no',
          ]
        )
  heads = (
    'operations | PRM trained on | seed | best n | accuracy there | '
    'at the last n | beyond noise'
  )
  return table(heads, rows)


def render(results: Mapping[str, Any]) -> str:
  """Makes all tables."""
  parts = []
  for k, found in results.items():
    parts += [
      f'**{k} operations**',
      methods_table(found),
      'How many times less compute a method takes for the accuracy of the '
      'search at the head of the column (95% interval, and the share of '
      'resamples that reach it where not all do; "at least": the smallest '
      'budget reaches it):',
      times_table(found),
    ]
  parts += [
    'The first minus the second in percentage points, and how many times less '
    'compute the first took:',
    differences_table(results),
    'Where best of n is best as n grows, and how it ends:',
    over_optimisation_table(results),
  ]
  return '\n\n'.join(parts)
