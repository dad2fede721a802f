"""Verified accuracy, and what the PRM says, against chains."""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use('svg')
from matplotlib import pyplot

# Equal bytes from equal numbers.
matplotlib.rcParams.update({'svg.hashsalt': 'prm_jax', 'font.size': 9})


def draw(found: Mapping[str, Any], path: pathlib.Path) -> None:
  """Writes the figure as SVG."""
  figure, (right, said) = pyplot.subplots(1, 2, figsize=(8.8, 4.4))
  colours = pyplot.get_cmap('tab10').colors
  for colour, (form, told) in zip(colours, found['arms'].items(), strict=False):
    mean, low, high = (
      [100 * value for value in told['accuracy'][name]]
      for name in ('mean', 'low', 'high')
    )
    right.plot(found['chains'], mean, color=colour, label=form)
    right.fill_between(
      found['chains'], low, high, color=colour, alpha=0.12, linewidth=0
    )
    said.plot(found['chains'], told['score'], color=colour)
  right.set_ylabel('right answers on held-out problems, %')
  said.set_ylabel("a chain's lowest PRM score, mean")
  for panel in (right, said):
    panel.set_xlabel('chains sampled')
    panel.grid(alpha=0.25)
  figure.legend(*right.get_legend_handles_labels(), loc='lower center', ncols=4)
  figure.tight_layout(rect=(0, 0.12, 1, 1))
  figure.savefig(path, metadata={'Date': None})
  pyplot.close(figure)
