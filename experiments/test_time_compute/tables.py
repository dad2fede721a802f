"""Per-problem results of all seeds -> points with intervals, and the tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.evals import bootstrap, compute

# Comparisons that are asked for: (what, ours, theirs): the method and the index
# of its point.
PAIRS = (
  ('beam with 4 and best of 16 by PRM', ('beam', 4), ('best of N, PRM', 16)),
  ('beam and best of N by PRM, 16 each', ('beam', 16), ('best of N, PRM', 16)),
  ('beam and weighted vote, 16 each', ('beam', 16), ('weighted vote', 16)),
  ('beam and REBASE, 16 each', ('beam', 16), ('rebase', 16)),
  ('PRM and ORM, best of 16', ('best of N, PRM', 16), ('best of N, ORM', 16)),
)
SIZE = ('n', 'samples', 'simulations')
# Whose accuracy is to be had for less: method and size; None: at its best.
REFERENCES = (
  ('best of N, ORM', None),
  ('best of N, PRM', 16),
  ('best of N, PRM', 64),
  ('weighted vote', 64),
)


def size(point: Mapping[str, Any]) -> int:
  """What a point of a curve is called by: its samples or simulations."""
  return next(int(point[name]) for name in SIZE if name in point)


def stacked(seeds: Sequence[Mapping[str, Any]], method: str, name: str):
  """[Q, K]: the problems of all seeds, the points of a method."""
  rows = [
    np.stack([np.asarray(p[name], float) for p in seed[method]], 1)
    for seed in seeds
  ]
  return np.concatenate(rows)


def flops_of(seeds: Sequence[Mapping[str, Any]], method: str) -> np.ndarray:
  """[Q, K] of both models."""
  return stacked(seeds, method, 'policy_flops') + stacked(
    seeds, method, 'prm_flops'
  )


def summarise(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """One difficulty: points of each method, and the comparisons.

  Problems of all seeds are pooled: each seed has problems, misconceptions and
  models of its own.
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
  """[Q] of the point of a method that has this size."""
  sizes = [size(point) for point in seeds[0][method]]
  return values[method][:, sizes.index(wanted)]


def percent(value: float) -> str:
  return f'{100 * value:.1f}'


def methods_table(found: Mapping[str, Any]) -> str:
  lines = [
    '| method | samples | right, % | 95% interval | each seed | GFLOP a '
    'problem | tokens a problem |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for name, points in found['methods'].items():
    for point in points:
      low, high = point['accuracy']['ci95']
      seeds = ', '.join(map(percent, point['seeds']))
      lines.append(
        f'| {name.replace("_", " ")} | {point["size"]} | '
        f'{percent(point["accuracy"]["mean"])} | {percent(low)} to '
        f'{percent(high)} | {seeds} | {point["flops"] / 1e9:.2f} | '
        f'{point["tokens"]:,.0f} |'
      )
  return '\n'.join(lines)


def differences_table(results: Mapping[str, Any]) -> str:
  lines = [
    '| paired difference | '
    + ' | '.join(f'{k} operations' for k in results)
    + ' |',
    '| --- |' + ' --- |' * len(results),
  ]
  for title, _, _ in PAIRS:
    cells = []
    for found in results.values():
      pair = found['differences'][title]
      low, high = pair['ci95']
      cells.append(
        f'{100 * pair["mean"]:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}), '
        f'{pair["times_less_compute"]:.2f}x'
      )
    lines.append(f'| {title} | {" | ".join(cells)} |')
  return '\n'.join(lines)


def times_table(found: Mapping[str, Any]) -> str:
  heads = [
    f'{each["method"]} with {each["size"]}: {percent(each["accuracy"])}%'
    for each in found['times_less']
  ]
  lines = [
    f'| method | {" | ".join(heads)} |',
    '| --- |' + ' --- |' * len(heads),
  ]
  for name in found['methods']:
    if name != 'oracle':
      cells = [_times(each['ours'].get(name)) for each in found['times_less']]
      lines.append(f'| {name.replace("_", " ")} | {" | ".join(cells)} |')
  return '\n'.join(lines)


def _times(found: Mapping[str, Any] | None) -> str:
  if found is None:
    return ''
  if found['ratio'] is None:
    return 'not reached'
  low, high = found['ci95']
  least = 'at least ' if found['smallest'] else ''
  share = f'; {100 * found["reached"]:.0f}%' if found['reached'] < 1 else ''
  return f'{least}{found["ratio"]:.1f} ({low:.1f} to {high:.1f}{share})'


def over_optimisation_table(results: Mapping[str, Any]) -> str:
  lines = [
    '| operations | PRM trained on | seed | best n | accuracy there | at the '
    'last n | beyond noise |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for k, found in results.items():
    for number, seed in enumerate(found['over_optimisation']):
      for name, told in seed.items():
        peak = told['n'].index(told['peak'])
        lines.append(
          f'| {k} | {name} | {number} | {told["peak"]} | '
          f'{percent(told["accuracy"][peak])} | '
          f'{percent(told["accuracy"][-1])} | '
          f'{"yes" if told["over_optimised"] else "no"} |'
        )
  return '\n'.join(lines)


def render(results: Mapping[str, Any]) -> str:
  """All tables, Markdown."""
  parts = []
  for k, found in results.items():
    parts += [
      f'**{k} operations**',
      methods_table(found),
      'How many times less compute than the search at the head of the column '
      'has, for its accuracy (95%; the share of resamples that reach it, where '
      'not all do; "at least": it is there at the smallest budget):',
      times_table(found),
    ]
  parts += [
    'Ours minus theirs in percent, and how many times less compute ours took:',
    differences_table(results),
    'Best of n as n grows:',
    over_optimisation_table(results),
  ]
  return '\n\n'.join(parts)
