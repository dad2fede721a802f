"""Verified accuracy against sampled chains, one panel for each length."""

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import figures


def draw(results: Mapping[str, Any], path: pathlib.Path) -> None:
  """Writes the figure as SVG."""
  # One panel is as wide as two, for the legend.
  width = 4.4 * max(2, len(results))
  figure, panels = figures.make_panels(len(results), (width, 4.4), sharey=True)
  arms = list(
    dict.fromkeys(arm for found in results.values() for arm in found['arms'])
  )
  lines = {}
  for panel, found in zip(panels, results.values(), strict=True):
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
  panels[0].set_ylabel('right answers on held-out problems, %')
  columns = int(width // 2.6)  # as wide as the longest name
  figure.legend(
    lines.values(), lines, loc='lower center', ncols=min(len(lines), columns)
  )
  rows = -(-len(lines) // columns)
  figure.tight_layout(rect=(0, 0.03 + 0.05 * rows, 1, 1))
  figures.save(figure, path)
