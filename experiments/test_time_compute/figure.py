"""Accuracy against compute, one panel for each difficulty."""

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import figures
from experiments.test_time_compute.tables import interval_of

STYLES = {
  'majority': ('tab:gray', '--'),
  'best of N, ORM': ('tab:orange', '--'),
  'best of N, PRM': ('tab:blue', '-'),
  'weighted vote': ('tab:cyan', '-'),
  'beam': ('tab:green', '-'),
  'dvts': ('tab:olive', '-'),
  'lookahead': ('tab:purple', '-'),
  'rebase': ('tab:red', '-'),
  'mcts': ('tab:brown', '-'),
  'refine': ('tab:pink', '-'),
  'early_rejection': ('tab:blue', ':'),
}


def draw(results: Mapping[str, Any], path: pathlib.Path) -> None:
  """Writes the figure as SVG."""
  figure, panels = figures.make_panels(
    len(results), (4.2 * len(results), 4.2), sharey=True
  )
  for panel, (title, found) in zip(panels, results.items(), strict=True):
    for name, (colour, line) in STYLES.items():
      points = found['methods'].get(name, [])
      mean = [100 * point['accuracy']['mean'] for point in points]
      ends = [interval_of(point) for point in points]
      low = [m - 100 * low for m, (low, _) in zip(mean, ends, strict=True)]
      high = [100 * high - m for m, (_, high) in zip(mean, ends, strict=True)]
      panel.errorbar(
        [point['flops'] for point in points],
        mean,
        yerr=[low, high],
        color=colour,
        linestyle=line,
        marker='o',
        markersize=3,
        linewidth=1.2,
        elinewidth=0.5,
        label=name.replace('_', ' '),
      )
    panel.set_xscale('log', base=2)
    panel.set_title(f'{title} operations')
    panel.set_xlabel('FLOPs a problem, policy and judge')
    panel.grid(alpha=0.25)
  panels[0].set_ylabel('right answers, %')
  figure.legend(
    *panels[0].get_legend_handles_labels(), loc='lower center', ncols=6
  )
  figure.tight_layout(rect=(0, 0.12, 1, 1))
  figures.save(figure, path)
