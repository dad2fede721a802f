"""Elements, scales and axes of the report's figures, as SVG.

`figures.py` and `tree_map.py` draw with these. Lengths are user units of the
viewBox (CSS pixels at natural size), and y points down. The SVG holds no colour
and no font, which a style sheet gives by class name.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

Scale = Callable[[float], float]
Points = Sequence[tuple[float, float]]

# More vertices than this on a line are finer than a screen can show. The limit
# keeps a run of a million steps within tens of kilobytes.
MAX_VERTICES = 600


def linear(low: float, high: float, start: float, end: float) -> Scale:
  """Maps [low, high] onto [start, end]; an empty domain maps to the middle."""
  if high == low:
    return lambda value: (start + end) / 2
  return lambda value: start + (value - low) / (high - low) * (end - start)


def log2(low: float, high: float, start: float, end: float) -> Scale:
  """Maps base-2 logarithms as `linear` does; all values must be > 0."""
  inner = linear(math.log2(low), math.log2(high), start, end)
  return lambda value: inner(math.log2(value))


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
  """Returns about `count` round numbers in [low, high], 1-2-5 spaced."""
  span = (high - low) or 1.0
  power = 10.0 ** math.floor(math.log10(span / count))
  width = next(
    m * power for m in (1, 2, 5, 10, 20) if span / (m * power) <= count
  )
  first, last = math.ceil(low / width), math.floor(high / width)
  return [round(i * width, 12) for i in range(first, last + 1)]


def spread(
  positions: Sequence[float], gap: float, low: float, high: float
) -> list[float]:
  """Moves labels apart to at least `gap`, in order, within [low, high].

  If they do not all fit, they overflow past `low`.
  """
  order = sorted(range(len(positions)), key=lambda i: positions[i])
  placed = list(positions)
  floor = low
  for i in order:
    placed[i] = floor = max(placed[i], floor)
    floor += gap
  ceiling = high
  for i in reversed(order):
    placed[i] = ceiling = min(placed[i], ceiling)
    ceiling -= gap
  return placed


def thin(points: Points, limit: int = MAX_VERTICES) -> list:
  """Keeps at most `limit` points: the lowest and highest of each stretch.

  Keeping every k-th point instead could hide a spike.
  """
  if len(points) <= limit:
    return list(points)
  size = math.ceil(2 * len(points) / limit)
  kept = []
  for start in range(0, len(points), size):
    stretch = points[start : start + size]
    finite = [p for p in stretch if math.isfinite(p[1])] or [stretch[0]]
    ends = {min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])}
    kept += sorted(ends)
  return kept


def short(value: float) -> str:
  """Formats a number for an axis in few characters: 0.25, 40, 1.5k, 3e-05."""
  for unit, suffix in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(value) >= unit:
      return f'{value / unit:.4g}{suffix}'
  return f'{value:.4g}'


def add(
  parent: ElementTree.Element,
  tag: str,
  text: str = '',
  **attributes: str | float,
) -> ElementTree.Element:
  """Adds a child element and returns it.

  Args:
    **attributes: numbers are user units; `class_` becomes `class`.
  """
  plain = {
    name.rstrip('_').replace('_', '-'): (
      value if isinstance(value, str) else f'{value:.4g}'
    )
    for name, value in attributes.items()
  }
  child = ElementTree.SubElement(parent, tag, plain)
  child.text = text or None
  return child


def new_svg(
  width: float, height: float, label: str, kind: str
) -> ElementTree.Element:
  """Returns an empty SVG; a screen reader speaks its label."""
  view = f'0 0 {width} {height}'
  spoken = {'role': 'img', 'aria-label': label}
  return ElementTree.Element(
    'svg', spoken | {'viewBox': view, 'class': f'figure {kind}'}
  )


def to_text(svg: ElementTree.Element) -> str:
  """Returns the SVG as text."""
  return ElementTree.tostring(svg, encoding='unicode')


@dataclasses.dataclass(frozen=True)
class Plot:
  """Represents the area of an SVG in which values are drawn to scale.

  Attributes:
    svg: the SVG that holds the plot and its axes.
    box: left, top, right and bottom of the area.
    x: maps values to horizontal positions.
    y: maps values to vertical positions.
  """

  svg: ElementTree.Element
  box: tuple[float, float, float, float]
  x: Scale
  y: Scale

  def path(self, points: Points) -> str:
    """Returns path data; a value that is not finite interrupts the line."""
    data, pen = [], 'M'
    for x, y in points:
      if math.isfinite(y):
        data.append(f'{pen}{self.x(x):.1f} {self.y(y):.1f}')
        pen = 'L'
      else:
        pen = 'M'
    return ''.join(data)

  def add_axes(
    self,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    names: tuple[str, str],
    drop: float = 44,
  ) -> None:
    """Draws grid lines, numbers, and the names of the x and y axes.

    Args:
      x_ticks: (value, text) of the numbers on the x axis.
      y_ticks: (value, text) of the numbers on the y axis.
      names: names of the x and the y axis.
      drop: distance of the x axis's name from the bottom of the plot.
    """
    svg = self.svg
    left, top, right, bottom = self.box
    for value, text in y_ticks:
      y = self.y(value)
      add(svg, 'line', class_='grid', x1=left, x2=right, y1=y, y2=y)
      add(svg, 'text', text, class_='tick end', x=left - 7, y=y, dy='0.35em')
    for value, text in x_ticks:
      x = self.x(value)
      add(svg, 'line', class_='axis', x1=x, x2=x, y1=bottom, y2=bottom + 4)
      tick = {'class_': 'tick middle', 'x': x, 'y': bottom + 6}
      add(svg, 'text', text, **tick, dy='0.95em')
    add(svg, 'line', class_='axis', x1=left, x2=right, y1=bottom, y2=bottom)
    add(svg, 'text', names[1], class_='name', x=0, y=top - 12)
    # At the right end the name is clear of the numbers at any text size.
    name = {'class_': 'name end', 'x': right, 'y': bottom + drop}
    add(svg, 'text', names[0], **name)

  def add_clipped(self) -> ElementTree.Element:
    """Adds an element that cuts off whatever leaves the plot.

    It is a nested SVG, so that no ids can clash on a page. Its viewBox repeats
    the outer coordinates, so that the scales stay the same.
    """
    left, top, right, bottom = self.box
    size = {'width': right - left, 'height': bottom - top}
    view = f'{left} {top} {right - left} {bottom - top}'
    return add(self.svg, 'svg', x=left, y=top, **size, viewBox=view)
