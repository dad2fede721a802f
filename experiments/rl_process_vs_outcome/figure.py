"""Verified accuracy against sampled chains, one panel for each length."""

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import figures

COLUMNS = 3  # panels in a row


def draw(results: Mapping[str, Any], path: pathlib.Path) -> None:
  """Writes the figure as SVG."""
  cells = len(results) + 1  # the last is the legend's
  columns = min(COLUMNS, cells)
  rows = -(-cells // columns)
  figure, panels = figures.make_panels(
    rows * columns, (4.2 * columns, 3.6 * rows), rows=rows, sharey=True
  )
  arms = list(
    dict.fromkeys(arm for found in results.values() for arm in found['arms'])
  )
  lines = {}
  for panel, found in zip(panels, results.values(), strict=False):
    for arm, measured in found['arms'].items():
      line = figures.draw_curve(
        panel,
        found['chains'],
        measured['accuracy'],
        '-' if arm.startswith('outcome') else '--',
        color=figures.MANY_COLOURS[arms.index(arm) % len(figures.MANY_COLOURS)],
        linewidth=1.3,
      )
      lines.setdefault(arm, line)
    panel.set_title(found['title'])
    panel.set_xlabel('chains sampled')
    panel.grid(alpha=0.25)
  for panel in panels[::columns]:
    panel.set_ylabel('right answers on held-out problems, %')
  for panel in panels[len(results) :]:
    panel.set_axis_off()
  panels[-1].legend(lines.values(), lines, loc='center')
  figure.tight_layout()
  figures.save(figure, path)
