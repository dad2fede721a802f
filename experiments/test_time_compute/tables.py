"""From results per problem to points with intervals, and the tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.findings import Effect, over
from experiments.tables import (
  between,
  percent,
  points,
  points_between,
  ratio_between,
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
  """Summarises one difficulty: the points of each method.

  Each seed has problems, misconceptions and models of its own. `ci95` is over
  the problems of all seeds; intervals over seeds, too, follow from `seeds`.
  """
  methods = [name for name in seeds[0] if not name.startswith('_')]
  found: dict[str, Any] = {'methods': {}}
  for name in methods:
    tokens = stacked(seeds, name, 'tokens').mean(0)
    mean, low, high = bootstrap.mean_ci(stacked(seeds, name, 'right'), 0)
    flops = flops_of(seeds, name).mean(0)
    found['methods'][name] = [
      {
        'size': size(seeds[0][name][k]),
        'accuracy': {'mean': mean[k], 'ci95': [low[k], high[k]]},
        'seeds': [float(np.mean(s[name][k]['right'])) for s in seeds],
        'flops': float(flops[k]),
        'tokens': float(tokens[k]),
      }
      for k in range(len(seeds[0][name]))
    ]
  found['over_optimisation'] = [seed['_over_optimisation'] for seed in seeds]
  return found


def point_of(
  found: Mapping[str, Any], method: str, wanted: int | None
) -> Mapping[str, Any]:
  """Returns the point of a method that has this size; None: the best one."""
  points_of_method = found['methods'][method]
  if wanted is None:
    return max(points_of_method, key=lambda point: point['accuracy']['mean'])
  return next(it for it in points_of_method if it['size'] == wanted)


def interval_of(point: Mapping[str, Any]) -> tuple[float, float]:
  """Returns the interval of a point over seeds and problems.

  With one seed it is over problems.
  """
  seeds, (low, high) = point['seeds'], point['accuracy']['ci95']
  # The problems of one seed are fewer than those of all.
  half = (high - low) / 2 * len(seeds) ** 0.5
  ci95 = over(seeds, [(x - half, x + half) for x in seeds]).ci95
  return (max(ci95[0], 0), ci95[1]) if ci95 else (low, high)


def difference(
  found: Mapping[str, Any], ours: tuple[str, int], theirs: tuple[str, int]
) -> Effect:
  """Compares two searches on the same seeds: the paired difference.

  Its interval is over the seeds alone. Seeds that differ by the same have none.
  """
  a, b = (point_of(found, *which)['seeds'] for which in (ours, theirs))
  leads = np.subtract(a, b)
  effect = over(leads.tolist())
  alike = np.allclose(leads, leads[0], rtol=0, atol=1e-9)
  return effect._replace(ci95=None) if alike else effect


def times_less(
  found: Mapping[str, Any], method: str, reference: tuple[str, int | None]
) -> dict[str, Any]:
  """Computes how many times less compute a method takes than a reference.

  See `compute.times_less`; each seed is a unit.
  """
  point = point_of(found, *reference)
  curve = found['methods'][method]
  accuracy = np.array([it['seeds'] for it in curve]).T
  flops = np.tile([it['flops'] for it in curve], (len(accuracy), 1))
  theirs = np.full(len(accuracy), point['flops']), np.array(point['seeds'])
  return compute.times_less((flops, accuracy), theirs)


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
          between(interval_of(point)),
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
  for title, ours, theirs in PAIRS:
    cells = []
    for found in results.values():
      effect = difference(found, ours, theirs)
      text = points(effect.value)
      if effect.ci95:
        text += f' ({points_between(effect.ci95)})'
      a, b = (point_of(found, *which) for which in (ours, theirs))
      cells.append(f'{text}, {times(b["flops"] / a["flops"], 2)}')
    rows.append([title, *cells])
  heads = [
    'paired difference (interval over the seeds alone, where they differ)',
    *(f'{k} operations' for k in results),
  ]
  return table(heads, rows)


def times_table(found: Mapping[str, Any]) -> str:
  """Shows how many times less compute each method takes for an accuracy."""
  rows = [
    [
      name.replace('_', ' '),
      *(
        '' if name == it[0] else _times_less(times_less(found, name, it))
        for it in REFERENCES
      ),
    ]
    for name in found['methods']
    if name != 'oracle'
  ]
  heads = []
  for method, wanted in REFERENCES:
    point = point_of(found, method, wanted)
    right = percent(point['accuracy']['mean'])
    heads.append(f'{method} with {point["size"]}: {right}%')
  return table(['method', *heads], rows)


def _times_less(found: Mapping[str, Any]) -> str:
  ratio = found['ratio']
  least = 'at least ' * found['smallest']
  text = 'not reached' if ratio is None else f'{least}{ratio:.1f}'
  if found['ci95'] is None:
    return text
  return f'{text} ({ratio_between(found["ci95"], found["open"])})'


def over_optimisation_table(document: Mapping[str, Any]) -> str:
  """Shows where best of n is best, and how it ends, for each seed."""
  rows = []
  for k, found in document['results'].items():
    each = zip(document['seeds'], found['over_optimisation'], strict=True)
    for seed, curves in each:
      for name, curve in curves.items():
        peak = curve['n'].index(curve['peak'])
        rows.append(
          [
            k,
            name,
            str(seed),
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


def render(document: Mapping[str, Any]) -> str:
  """Makes all tables."""
  results = document['results']
  parts = []
  for k, found in results.items():
    parts += [
      f'**{k} operations**',
      methods_table(found),
      'How many times less compute a method takes for the accuracy of the '
      'search at the head of the column (95% interval over seeds and '
      'problems; an end with < or > lies beyond the budgets; "at least": the '
      'smallest budget reaches it):',
      times_table(found),
    ]
  parts += [
    'The first minus the second in percentage points, and how many times less '
    'compute the first took:',
    differences_table(results),
    'Where best of n is best as n grows, and how it ends:',
    over_optimisation_table(document),
  ]
  return '\n\n'.join(parts)
