"""Figures of the experiments: panels side by side, written as SVG.

Equal numbers give equal bytes.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use('svg')
from matplotlib import pyplot

# Without a salt the ids within an SVG are drawn at random.
matplotlib.rcParams['svg.hashsalt'] = 'prm_jax'
COLOURS = pyplot.get_cmap('tab10').colors
MANY_COLOURS = pyplot.get_cmap('tab20').colors


def make_panels(
  count: int,
  size: tuple[float, float],
  font_size: int = 9,
  rows: int = 1,
  **options: Any,
) -> tuple[Any, Sequence[Any]]:
  """Makes a figure with panels.

  Args:
    size: width and height of the whole figure, in inches.
    font_size: size of its texts, in points.
    rows: number of rows, which are full.
    options: further arguments of `pyplot.subplots`.

  Returns:
    The figure and its panels.
  """
  matplotlib.rcParams['font.size'] = font_size
  figure, panels = pyplot.subplots(
    rows, count // rows, figsize=size, squeeze=False, **options
  )
  return figure, panels.ravel()


def draw_curve(
  panel: Any,
  x: Sequence[float],
  accuracy: Mapping[str, Sequence[float]],
  style: str = '-',
  **options: Any,
) -> Any:
  """Draws an accuracy in percent as a line, with its interval as a band.

  Args:
    accuracy: `mean`, `low` and `high`, each a share for every x.
    options: colour and other arguments of `panel.plot`.

  Returns:
    The line.
  """
  mean, low, high = (
    [100 * value for value in accuracy[name]]
    for name in ('mean', 'low', 'high')
  )
  (line,) = panel.plot(x, mean, style, **options)
  panel.fill_between(
    x, low, high, color=line.get_color(), alpha=0.12, linewidth=0
  )
  return line


def save(figure: Any, path: pathlib.Path) -> None:
  """Writes the figure as SVG, without its date, and closes it."""
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, metadata={'Date': None})
  pyplot.close(figure)
