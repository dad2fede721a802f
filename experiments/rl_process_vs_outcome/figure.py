"""Verified accuracy against chains, one panel for each length."""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use('svg')
from matplotlib import pyplot

# Equal bytes from equal numbers.
matplotlib.rcParams.update({'svg.hashsalt': 'prm_jax', 'font.size': 9})


def draw(results: Mapping[str, Any], path: pathlib.Path) -> None:
  """Writes the figure as SVG."""
  figure, panels = pyplot.subplots(
    1, len(results), figsize=(4.4 * len(results), 4.4), sharey=True
  )
  panels = [panels] if len(results) == 1 else list(panels)
  arms = list(
    dict.fromkeys(arm for found in results.values() for arm in found['arms'])
  )
  colours = pyplot.get_cmap('tab10').colors
  drawn = {}
  for panel, (title, found) in zip(panels, results.items(), strict=True):
    for arm, told in found['arms'].items():
      values = told['accuracy']
      mean, low, high = (
        [100 * value for value in values[name]]
        for name in ('mean', 'low', 'high')
      )
      colour = colours[arms.index(arm) % len(colours)]
      style = '-' if arm.startswith('outcome') else '--'
      (line,) = panel.plot(
        found['chains'], mean, style, color=colour, linewidth=1.3
      )
      panel.fill_between(
        found['chains'], low, high, color=colour, alpha=0.12, linewidth=0
      )
      drawn.setdefault(arm, line)
    panel.set_title(f'{title} operations')
    panel.set_xlabel('chains sampled')
    panel.grid(alpha=0.25)
  panels[0].set_ylabel('right answers on held-out problems, %')
  figure.legend(
    drawn.values(),
    drawn,
    loc='lower center',
    ncols=min(len(drawn), 2 * len(results)),
  )
  rows = -(-len(drawn) // (2 * len(results)))
  figure.tight_layout(rect=(0, 0.03 + 0.05 * rows, 1, 1))
  figure.savefig(path, metadata={'Date': None})
  pyplot.close(figure)
