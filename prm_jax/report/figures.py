"""The report's figures: plain numbers in, inline SVG text out.

`page.py` calls these with what it read from a run and puts the text into the
page. The SVG holds no colour and no font: a style sheet (`STYLE`) gives both
by class name, so one drawing serves light, dark, phone and print, and equal
numbers give equal bytes. Lengths are user units of the viewBox (CSS pixels
when drawn at natural size), y pointing down.
"""

import importlib.resources
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

Scale = Callable[[float], float]
Points = Sequence[tuple[float, float]]

# Colours and strokes of every figure, and the page's palette.
STYLE = (
  importlib.resources.files('prm_jax.report')
  .joinpath('figure.css')
  .read_text('utf-8')
)

# One polyline of this many vertices is as fine as a screen can show; it keeps
# a run of a million steps within tens of kilobytes.
MAX_VERTICES = 600
LABEL_GAP = 20  # room for one line of text at the size phones get


def linear(low: float, high: float, start: float, end: float) -> Scale:
  """Maps [low, high] onto [start, end]; an empty domain maps to the middle."""
  if high == low:
    return lambda value: (start + end) / 2
  return lambda value: start + (value - low) / (high - low) * (end - start)


def log2(low: float, high: float, start: float, end: float) -> Scale:
  """`linear` over base-2 logarithms; low, high and values must be > 0."""
  inner = linear(math.log2(low), math.log2(high), start, end)
  return lambda value: inner(math.log2(value))


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
  """Round numbers in [low, high], about `count` of them, 1-2-5 spaced."""
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

  Where they cannot all fit, they overflow past `low`.
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


def smooth(values: Sequence[float], span: float) -> list[float]:
  """Exponential moving average over about `span` values, bias-corrected.

  A value that is not finite leaves the average where it was.
  """
  decay = math.exp(-1 / max(span, 1e-9))
  total = weight = 0.0
  averages = []
  for value in values:
    if math.isfinite(value):
      total = decay * total + (1 - decay) * value
      weight = decay * weight + (1 - decay)
    averages.append(total / weight if weight else math.nan)
  return averages


def thin(points: Points, limit: int = MAX_VERTICES) -> list:
  """At most `limit` points, each stretch kept by its lowest and highest.

  Taking every k-th point would hide a spike; this cannot.
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
  """An axis number in few characters: 0.25, 40, 1.5k, 2M, 3e-05."""
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
  """A child element; numbers become user units, `class_` becomes `class`."""
  plain = {
    name.rstrip('_').replace('_', '-'): (
      value if isinstance(value, str) else f'{value:.4g}'
    )
    for name, value in attributes.items()
  }
  child = ElementTree.SubElement(parent, tag, plain)
  child.text = text or None
  return child


def svg_of(
  width: float, height: float, label: str, kind: str
) -> ElementTree.Element:
  """The outer element, with the text that a screen reader speaks."""
  view = f'0 0 {width} {height}'
  spoken = {'role': 'img', 'aria-label': label}
  return ElementTree.Element(
    'svg', spoken | {'viewBox': view, 'class': f'figure {kind}'}
  )


def text_of(svg: ElementTree.Element) -> str:
  return ElementTree.tostring(svg, encoding='unicode')


def standalone(svg: str) -> str:
  """A figure as a file of its own: with its style and a background."""
  start, rest = svg.split('>', 1)
  paper = '.figure { background: var(--paper); }'
  return (
    f'{start} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}{paper}</style>'
    f'{rest}\n'
  )


def line_of(points: Points, sx: Scale, sy: Scale) -> str:
  """Path data; a value that is not finite breaks the line there."""
  data, pen = [], 'M'
  for x, y in points:
    if math.isfinite(y):
      data.append(f'{pen}{sx(x):.1f} {sy(y):.1f}')
      pen = 'L'
    else:
      pen = 'M'
  return ''.join(data)


def axes(
  svg: ElementTree.Element,
  box: tuple[float, float, float, float],
  sx: Scale,
  sy: Scale,
  x_ticks: Sequence[tuple[float, str]],
  y_ticks: Sequence[tuple[float, str]],
  names: tuple[str, str],
  drop: float = 44,
) -> None:
  """Grid lines, numbers, and the names of the x and y axes.

  `box` is left, top, right, bottom; the x name sits `drop` below the plot.
  """
  left, top, right, bottom = box
  for value, text in y_ticks:
    y = sy(value)
    add(svg, 'line', class_='grid', x1=left, x2=right, y1=y, y2=y)
    add(svg, 'text', text, class_='tick end', x=left - 7, y=y, dy='0.35em')
  for value, text in x_ticks:
    x = sx(value)
    add(svg, 'line', class_='axis', x1=x, x2=x, y1=bottom, y2=bottom + 4)
    add(svg, 'text', text, class_='tick middle', x=x, y=bottom + 6, dy='0.95em')
  add(svg, 'line', class_='axis', x1=left, x2=right, y1=bottom, y2=bottom)
  add(svg, 'text', names[1], class_='name', x=0, y=top - 12)
  # Set to the right end: below the numbers, clear of them at any text size.
  add(svg, 'text', names[0], class_='name end', x=right, y=bottom + drop)


def _clip(
  svg: ElementTree.Element, box: tuple[float, float, float, float]
) -> ElementTree.Element:
  """A nested SVG cuts off what leaves the plot, without ids that can clash.

  Its viewBox repeats the outer coordinates, so the scales stay the same.
  """
  left, top, right, bottom = box
  width, height = right - left, bottom - top
  view = f'{left} {top} {width} {height}'
  return add(
    svg, 'svg', x=left, y=top, width=width, height=height, viewBox=view
  )


def best_of_n(
  n: Sequence[int],
  series: Sequence[Mapping[str, Any]],
  label: str,
) -> str:
  """Accuracy against the number of samples, log-2 axis, interval bands.

  Args:
    n: numbers of samples, ascending, each >= 1.
    series: `name`, `style` (a class of the style sheet), `mean` (fractions,
      one per n), `ci95` (pairs, or None) and `band` (whether to shade it).
    label: the text alternative.
  """
  svg = svg_of(640, 420, label, 'wide')
  box = left, top, right, bottom = 46, 30, 472, 366
  seen = [value for s in series for value in s['mean'] if math.isfinite(value)]
  seen += [
    end
    for s in series
    if s['band']
    for pair in s['ci95'] or ()
    for end in pair
    if math.isfinite(end)
  ]
  low, high = min(seen, default=0.0), max(seen, default=1.0)
  pad = 0.03 * (high - low) or 0.05
  low, high = max(0.0, low - pad), min(1.0, high + pad)
  sx, sy = (
    log2(n[0], n[-1], left + 8, right - 8),
    linear(low, high, bottom, top),
  )
  x_ticks = [(value, short(value)) for value in n[:: math.ceil(len(n) / 9)]]
  y_ticks = [(v, f'{100 * v:.4g}') for v in nice_ticks(low, high, 8)]
  names = ('samples per problem, N', 'problems answered right, %')
  axes(svg, box, sx, sy, x_ticks, y_ticks, names)
  for s in series:
    if s['band'] and s['ci95']:
      ends = list(zip(n, s['ci95'], strict=True))
      edge = [(x, hi) for x, (_, hi) in ends]
      edge += [(x, lo) for x, (lo, _) in reversed(ends)]
      if all(math.isfinite(y) for _, y in edge):
        add(
          svg,
          'path',
          class_=f'band {s["style"]}',
          d=line_of(edge, sx, sy) + 'Z',
        )
  for s in reversed(series):  # the first line lies on top
    points = list(zip(n, s['mean'], strict=True))
    add(svg, 'path', class_=f'line {s["style"]}', d=line_of(points, sx, sy))
    for x, y in points:
      if math.isfinite(y):
        dot = f'dot {s["style"]}'
        add(svg, 'circle', class_=dot, cx=sx(x), cy=sy(y), r=2.5)
  _end_labels(svg, series, [s['mean'][-1] for s in series], sy, box)
  return text_of(svg)


def _end_labels(
  svg: ElementTree.Element,
  series: Sequence[Mapping[str, Any]],
  values: Sequence[float],
  sy: Scale,
  box: tuple[float, float, float, float],
) -> None:
  """Each line's name at its right end, with a leader where it was moved."""
  _, top, right, bottom = box
  named = [
    (s, sy(v)) for s, v in zip(series, values, strict=True) if math.isfinite(v)
  ]
  places = spread([y for _, y in named], LABEL_GAP, top, bottom)
  for (s, y), place in zip(named, places, strict=True):
    leader = f'M{right - 4} {y:.1f}L{right + 10} {place:.1f}'
    add(svg, 'path', class_=f'leader {s["style"]}', d=leader)
    at = {'class_': f'label {s["style"]}', 'x': right + 14, 'y': place}
    add(svg, 'text', s['name'], **at, dy='0.35em')


def curves(
  series: Sequence[Mapping[str, Any]],
  y_label: str,
  label: str,
  average: float,
  small: bool,
  x_label: str = 'training step',
) -> str:
  """Metrics against training steps: raw values faint, their average strong.

  Args:
    series: `name`, `style` and `points` (step, value), ascending in step.
    y_label: the name of the metric.
    label: the text alternative.
    average: share of the run that the strong line averages over; 0 draws
      the values as they are.
    small: one of several side by side, without names at the line ends.
  """
  size = (340, 200, 326, 32) if small else (640, 380, 572, 44)
  width, height, end, drop = size
  svg = svg_of(width, height, label, 'small' if small else 'wide')
  box = left, top, right, bottom = 46, 30, end, height - drop - 8
  steps = [x for s in series for x, _ in s['points']]
  averages = [
    smooth([y for _, y in s['points']], average * len(s['points']))
    for s in series
  ]
  # The view follows the bulk of the values: one spike must not flatten the
  # curve. What is cut off is drawn to the edge of the plot.
  seen = []
  for s, line in zip(series, averages, strict=True):
    raw = sorted(y for _, y in s['points'] if math.isfinite(y))
    seen += raw[len(raw) // 100 : len(raw) - len(raw) // 100]
    seen += [y for y in line if math.isfinite(y)]
  low, high = min(seen, default=0.0), max(seen, default=1.0)
  pad = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
  low, high = max(low - pad, min(0.0, low)), high + pad
  sx = linear(min(steps), max(steps), left, right)
  sy = linear(low, high, bottom, top)
  names = (x_label, y_label)
  x_ticks = nice_ticks(min(steps), max(steps), 4 if small else 6)
  x_ticks = [(v, short(v)) for v in x_ticks if v == int(v)]
  y_ticks = [(v, short(v)) for v in nice_ticks(low, high, 4 if small else 6)]
  axes(svg, box, sx, sy, x_ticks, y_ticks, names, drop)
  plot = _clip(svg, box)
  for s in series:
    raw = line_of(thin(s['points']), sx, sy)
    add(plot, 'path', class_=f'raw {s["style"]}', d=raw)
  for s, line in reversed(list(zip(series, averages, strict=True))):
    points = [(x, y) for (x, _), y in zip(s['points'], line, strict=True)]
    d = line_of(thin(points), sx, sy)
    add(plot, 'path', class_=f'line {s["style"]}', d=d)
  if not small:
    _end_labels(svg, series, [line[-1] for line in averages], sy, box)
  return text_of(svg)


def reliability(bins: Sequence[Mapping[str, Any]], label: str) -> str:
  """Share of right steps against mean score, with the counts underneath.

  Args:
    bins: `score` and `accuracy` (fractions), `count`, `interval` (a pair).
      Bins without steps are left out by the caller.
    label: the text alternative.
  """
  svg = svg_of(336, 440, label, 'small')
  box = left, top, right, bottom = 46, 30, 326, 310
  sx, sy = linear(0, 1, left, right), linear(0, 1, bottom, top)
  ticks = [(i / 5, f'{20 * i}') for i in range(6)]
  axes(svg, box, sx, sy, [], ticks, ('', 'steps that are right, %'))
  add(svg, 'path', class_='diagonal', d=f'M{left} {bottom}L{right} {top}')
  for b in bins:
    x, (lo, hi) = sx(b['score']), b['interval']
    add(svg, 'line', class_='whisker prm', x1=x, x2=x, y1=sy(lo), y2=sy(hi))
  points = [(b['score'], b['accuracy']) for b in bins]
  add(svg, 'path', class_='line prm', d=line_of(points, sx, sy))
  for b in bins:
    x, y = sx(b['score']), sy(b['accuracy'])
    add(svg, 'circle', class_='dot prm', cx=x, cy=y, r=3.5)
  most = max((b['count'] for b in bins), default=1)
  base = 400
  counts = linear(0, most, base, 346)
  # Linear in the count: bars compare by length.
  under = (left, 346, right, base)
  x_ticks = [(i / 5, f'{i / 5:.1f}') for i in range(6)]
  y_ticks = [(0, '0'), (most, short(most))]
  axes(svg, under, sx, counts, x_ticks, y_ticks, ('mean score', 'steps'), 32)
  for b in bins:
    x, y = sx(b['score']) - 5, counts(b['count'])
    bar = add(
      svg, 'rect', class_='bar prm', x=x, y=y, width=10, height=base - y
    )
    add(bar, 'title', f'{b["count"]} steps at mean score {b["score"]:.2f}')
  return text_of(svg)
