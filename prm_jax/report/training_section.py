"""Makes the training section: loss curves and all other logged metrics."""

import math
from collections.abc import Mapping
from typing import Any

import markupsafe

from prm_jax.report import figures

SMOOTHING = 0.02  # share of the run that a curve averages over
LOSSES = ('loss', 'step_loss', 'lm_loss')


def smoothing_of(metric: str) -> float:
  """Returns the share of the run to average a metric over, or 0 for none."""
  # Schedules and evaluations carry no noise that an average would remove.
  exact = metric == 'lr' or metric.startswith('eval/')
  return 0.0 if exact else SMOOTHING


def training(curves: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
  """Draws the loss as a large figure and every other metric as a small one.

  Args:
    curves: run name -> `style` and `metrics` (see `files.read_metrics`). Each
      run is a curve of its own, so that an ORM stands beside the PRM.

  Returns:
    What the template shows, or None if nothing was logged.
  """
  metrics = []
  for run in curves.values():
    metrics += [name for name in run['metrics'] if name not in metrics]
  if not metrics:
    return None
  metrics.sort(key=lambda name: LOSSES.index(name) if name in LOSSES else 9)
  views, broken = [], []
  for name in metrics:
    series = [
      {'name': run, 'style': c['style'], 'points': c['metrics'][name]}
      for run, c in curves.items()
      if name in c['metrics']
    ]
    ends = []
    for s in series:
      values = [y for _, y in s['points'] if math.isfinite(y)]
      lost = len(s['points']) - len(values)
      if lost:
        broken.append(f'{s["name"]} {name}: {lost:,}')
      if values:
        last = s['points'][-1][0]
        ends.append(
          f'{s["name"]} from {values[0]:.3g} to {values[-1]:.3g} at step '
          f'{last:,}'
        )
    label = f'Line chart of {name} against training step: {"; ".join(ends)}'
    small = name != metrics[0]
    drawn = figures.curves(series, name, label, smoothing_of(name), small)
    views.append(markupsafe.Markup(drawn))
  return {
    'main': views[0],
    'name': metrics[0],
    'others': views[1:],
    'runs': [(run, c['style']) for run, c in curves.items()],
    'smoothing': f'{SMOOTHING:.0%}',
    'broken': ', '.join(broken),
  }
