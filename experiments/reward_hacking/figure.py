"""Verified accuracy, and the PRM's scores, against sampled chains."""

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import figures


def draw(found: Mapping[str, Any], path: pathlib.Path) -> None:
  """Writes the figure as SVG."""
  figure, (accuracy, scores) = figures.make_panels(2, (8.8, 4.4))
  for colour, (form, arm) in zip(
    figures.COLOURS, found['arms'].items(), strict=False
  ):
    figures.draw_curve(
      accuracy, found['chains'], arm['accuracy'], color=colour, label=form
    )
    scores.plot(found['chains'], arm['score'], color=colour)
  accuracy.set_ylabel('right answers on held-out problems, %')
  scores.set_ylabel("a chain's lowest PRM score, mean")
  for panel in (accuracy, scores):
    panel.set_xlabel('chains sampled')
    panel.grid(alpha=0.25)
  figure.legend(
    *accuracy.get_legend_handles_labels(), loc='lower center', ncols=4
  )
  figure.tight_layout(rect=(0, 0.12, 1, 1))
  figures.save(figure, path)
