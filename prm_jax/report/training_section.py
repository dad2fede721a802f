"""Makes the training section: loss curves and all other logged metrics."""

import math
from collections.abc import Mapping, Sequence
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

  A metric with one value, or none that is finite, has no curve: its value is a
  row.

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
  drawn, single, broken = {}, [], []
  for name in metrics:
    series = [
      {'name': run, 'style': c['style'], 'points': c['metrics'][name]}
      for run, c in curves.items()
      if name in c['metrics']
    ]
    shown = []
    for s in series:
      known = [(x, y) for x, y in s['points'] if math.isfinite(y)]
      if lost := len(s['points']) - len(known):
        broken.append(f'{s["name"]} {name}: {lost:,}')
      if len(known) > 1:
        shown.append(s)
      elif known:
        ((step, value),) = known
        where = f'{s["name"]}, {name}'
        single.append((where, f'{value:.4g}, at step {step:,}'))
    if shown:
      drawn[name] = _draw(name, shown, small=bool(drawn))
  views = list(drawn.values())
  return {
    'main': views[0] if views else None,
    'name': next(iter(drawn), ''),
    'others': views[1:],
    'single': single,
    'runs': [(run, c['style']) for run, c in curves.items()],
    'smoothing': f'{SMOOTHING:.0%}',
    'broken': ', '.join(broken),
  }


def _draw(
  name: str, series: Sequence[Mapping[str, Any]], small: bool
) -> markupsafe.Markup:
  ends = []
  for s in series:
    values = [y for _, y in s['points'] if math.isfinite(y)]
    ends.append(
      f'{s["name"]} from {values[0]:.3g} to {values[-1]:.3g} at step '
      f'{s["points"][-1][0]:,}'
    )
  label = f'Line chart of {name} against training step: {"; ".join(ends)}'
  drawn = figures.curves(series, name, label, smoothing_of(name), small)
  return markupsafe.Markup(drawn)
