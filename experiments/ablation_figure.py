"""What each arm of an ablation measures: a panel a measure, a row an arm."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use('svg')
from matplotlib import pyplot

# Equal bytes from equal numbers.
matplotlib.rcParams.update({'svg.hashsalt': 'prm_jax', 'font.size': 9})


def draw(
  document: Mapping[str, Any], names: Sequence[str], path: pathlib.Path
) -> None:
  """Writes the figure as SVG: each seed with its 95% interval, and the mean."""
  runs = document['runs']
  figure, panels = pyplot.subplots(
    1,
    len(names),
    figsize=(1.8 + 2.4 * len(names), 0.9 + 0.42 * len(runs)),
    sharey=True,
    squeeze=False,
  )
  for panel, name in zip(panels[0], names, strict=True):
    for row, seeds in enumerate(runs.values()):
      known = [seed[name] for seed in seeds.values() if name in seed]
      for k, found in enumerate(known):
        _draw_seed(panel, row + 0.16 * (k - (len(known) - 1) / 2), found)
      if known:
        mean = sum(100 * found['value'] for found in known) / len(known)
        panel.plot([mean], [row], 'D', color='black', markersize=4)
    panel.set_xlabel(f'{name}, %')
    panel.grid(axis='x', alpha=0.25)
  panels[0][0].set_yticks(range(len(runs)), list(runs))
  panels[0][0].invert_yaxis()
  figure.tight_layout()
  figure.savefig(path, metadata={'Date': None})
  pyplot.close(figure)


def _draw_seed(panel: Any, height: float, found: Mapping[str, Any]) -> None:
  value = 100 * found['value']
  if found['ci95']:
    low, high = (100 * bound for bound in found['ci95'])
    panel.plot([low, high], [height] * 2, color='tab:blue', linewidth=1)
  panel.plot([value], [height], 'o', color='tab:blue', markersize=2.5)
