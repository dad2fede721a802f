"""Draws the report's figures: plain numbers in, inline SVG text out.

The sections of the page call these with numbers from a run, and `page.py` puts
the text into the page. Colours and fonts come from a style sheet (`STYLE`), by
class name. One drawing therefore serves light and dark screens, phones and
print, and equal numbers give equal bytes.
"""

import importlib.resources
import math
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.report import svg
from prm_jax.report.svg import Plot

# Colours and strokes of every figure, and the page's palette.
STYLE = (
  importlib.resources.files('prm_jax.report')
  .joinpath('figure.css')
  .read_text('utf-8')
)
LABEL_GAP = 20  # height of one line of text at the size that phones show


def standalone(figure: str) -> str:
  """Returns a figure as a file of its own, with style and background."""
  start, rest = figure.split('>', 1)
  paper = '.figure { background: var(--paper); }'
  return (
    f'{start} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}{paper}</style>'
    f'{rest}\n'
  )


def smooth(values: Sequence[float], span: float) -> list[float]:
  """Returns the exponential moving average over about `span` values.

  It is bias-corrected. A value that is not finite leaves it unchanged.
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


def best_of_n(
  n: Sequence[int],
  series: Sequence[Mapping[str, Any]],
  label: str,
) -> str:
  """Draws accuracy against the number of samples, with interval bands.

  Args:
    n: numbers of samples, ascending, each >= 1.
    series: `name`, `style` (a class of the style sheet), `mean` (fractions,
      one per n), `ci95` (pairs, or None) and `band` (whether to shade it).
    label: the text alternative.
  """
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
  plot = Plot(
    svg.new_svg(640, 420, label, 'wide'),
    box,
    svg.log2(n[0], n[-1], left + 8, right - 8),
    svg.linear(low, high, bottom, top),
  )
  plot.add_axes(
    [(value, svg.short(value)) for value in n[:: math.ceil(len(n) / 9)]],
    [(v, f'{100 * v:.4g}') for v in svg.nice_ticks(low, high, 8)],
    ('samples per problem, N', 'problems answered right, %'),
  )
  for s in series:
    if s['band'] and s['ci95']:
      ends = list(zip(n, s['ci95'], strict=True))
      edge = [(x, hi) for x, (_, hi) in ends]
      edge += [(x, lo) for x, (lo, _) in reversed(ends)]
      if all(math.isfinite(y) for _, y in edge):
        band = {'class_': f'band {s["style"]}', 'd': plot.path(edge) + 'Z'}
        svg.add(plot.svg, 'path', **band)
  for s in reversed(series):  # so that the first line lies on top
    points = list(zip(n, s['mean'], strict=True))
    line = {'class_': f'line {s["style"]}', 'd': plot.path(points)}
    svg.add(plot.svg, 'path', **line)
    for x, y in points:
      if math.isfinite(y):
        dot = {'class_': f'dot {s["style"]}', 'cx': plot.x(x), 'cy': plot.y(y)}
        svg.add(plot.svg, 'circle', **dot, r=2.5)
  _label_line_ends(plot, series, [s['mean'][-1] for s in series])
  return svg.to_text(plot.svg)


def _label_line_ends(
  plot: Plot, series: Sequence[Mapping[str, Any]], values: Sequence[float]
) -> None:
  """Writes each line's name at its right end, where its last value lies."""
  _, top, right, bottom = plot.box
  named = [
    (s, plot.y(v))
    for s, v in zip(series, values, strict=True)
    if math.isfinite(v)
  ]
  places = svg.spread([y for _, y in named], LABEL_GAP, top, bottom)
  for (s, y), place in zip(named, places, strict=True):
    # A label may have been moved: a leader joins it to its line.
    leader = f'M{right - 4} {y:.1f}L{right + 10} {place:.1f}'
    svg.add(plot.svg, 'path', class_=f'leader {s["style"]}', d=leader)
    at = {'class_': f'label {s["style"]}', 'x': right + 14, 'y': place}
    svg.add(plot.svg, 'text', s['name'], **at, dy='0.35em')


def curves(
  series: Sequence[Mapping[str, Any]],
  y_label: str,
  label: str,
  average: float,
  small: bool,
  x_label: str = 'training step',
) -> str:
  """Draws a metric against training steps: values faint, their average strong.

  Args:
    series: `name`, `style` and `points` (step, value), ascending in step.
    average: share of the run that the strong line averages over; 0 draws the
      values as they are.
    small: whether the figure is one of several side by side; such a figure has
      no names at the line ends.
  """
  size = (340, 200, 326, 32) if small else (640, 380, 572, 44)
  width, height, end, drop = size
  box = left, top, right, bottom = 46, 30, end, height - drop - 8
  steps = [x for s in series for x, _ in s['points']]
  averages = [
    smooth([y for _, y in s['points']], average * len(s['points']))
    for s in series
  ]
  # The view follows the bulk of the values, so that one spike does not flatten
  # the curve. Lines that leave the view are drawn up to the edge of the plot.
  seen = []
  for s, line in zip(series, averages, strict=True):
    raw = sorted(y for _, y in s['points'] if math.isfinite(y))
    seen += raw[len(raw) // 100 : len(raw) - len(raw) // 100]
    seen += [y for y in line if math.isfinite(y)]
  low, high = min(seen, default=0.0), max(seen, default=1.0)
  pad = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
  low, high = max(low - pad, min(0.0, low)), high + pad
  plot = Plot(
    svg.new_svg(width, height, label, 'small' if small else 'wide'),
    box,
    svg.linear(min(steps), max(steps), left, right),
    svg.linear(low, high, bottom, top),
  )
  count = 4 if small else 6
  x_ticks = svg.nice_ticks(min(steps), max(steps), count)
  plot.add_axes(
    [(v, svg.short(v)) for v in x_ticks if v == int(v)],
    [(v, svg.short(v)) for v in svg.nice_ticks(low, high, count)],
    (x_label, y_label),
    drop,
  )
  clipped = plot.add_clipped()
  for s in series:
    raw = plot.path(svg.thin(s['points']))
    svg.add(clipped, 'path', class_=f'raw {s["style"]}', d=raw)
  for s, line in reversed(list(zip(series, averages, strict=True))):
    points = [(x, y) for (x, _), y in zip(s['points'], line, strict=True)]
    average_line = plot.path(svg.thin(points))
    svg.add(clipped, 'path', class_=f'line {s["style"]}', d=average_line)
  if not small:
    _label_line_ends(plot, series, [line[-1] for line in averages])
  return svg.to_text(plot.svg)


def reliability(bins: Sequence[Mapping[str, Any]], label: str) -> str:
  """Draws the share of right steps against mean score, and counts underneath.

  Args:
    bins: `score` and `accuracy` (fractions), `count` (>= 1), `interval` (a
      pair).
  """
  figure = svg.new_svg(336, 440, label, 'small')
  box = left, top, right, bottom = 46, 30, 326, 310
  plot = Plot(
    figure, box, svg.linear(0, 1, left, right), svg.linear(0, 1, bottom, top)
  )
  ticks = [(i / 5, f'{20 * i}') for i in range(6)]
  plot.add_axes([], ticks, ('', 'steps that are right, %'))
  diagonal = f'M{left} {bottom}L{right} {top}'
  svg.add(figure, 'path', class_='diagonal', d=diagonal)
  for b in bins:
    x, (low, high) = plot.x(b['score']), map(plot.y, b['interval'])
    whisker = {'x1': x, 'x2': x, 'y1': low, 'y2': high}
    svg.add(figure, 'line', class_='whisker prm', **whisker)
  points = [(b['score'], b['accuracy']) for b in bins]
  svg.add(figure, 'path', class_='line prm', d=plot.path(points))
  for x, y in points:
    dot = {'cx': plot.x(x), 'cy': plot.y(y), 'r': 3.5}
    svg.add(figure, 'circle', class_='dot prm', **dot)
  most = max((b['count'] for b in bins), default=1)
  roof, base = 346, 400
  # Linear in the count, so that the bars compare by length.
  bars = Plot(
    figure,
    (left, roof, right, base),
    plot.x,
    svg.linear(0, most, base, roof),
  )
  bars.add_axes(
    [(i / 5, f'{i / 5:.1f}') for i in range(6)],
    [(0, '0'), (most, svg.short(most))],
    ('mean score', 'steps'),
    drop=32,
  )
  for b in bins:
    y = bars.y(b['count'])
    place = {'x': bars.x(b['score']) - 5, 'y': y}
    size = {'width': 10, 'height': base - y}
    bar = svg.add(figure, 'rect', class_='bar prm', **place, **size)
    text = f'{b["count"]} steps at mean score {b["score"]:.2f}'
    svg.add(bar, 'title', text)
  return svg.to_text(figure)


def risk_coverage(
  curve: Mapping[str, Any],
  wanted: float,
  point: tuple[float, float] | None,
  label: str,
) -> str:
  """Draws the error rate among answered problems against their share.

  Args:
    curve: `coverage`, `risk` and `aurc_random`, fractions.
    wanted: the error rate that was asked for, drawn as a dotted line.
    point: coverage and error of the chosen filter, or None.
  """
  figure = svg.new_svg(640, 360, label, 'wide')
  box = left, top, right, bottom = 46, 30, 620, 306
  points = list(zip(curve['coverage'], curve['risk'], strict=True))
  highest = max([y for _, y in points] + [wanted, curve['aurc_random'] or 0.0])
  high = min(1.0, 1.1 * highest) or 1.0
  plot = Plot(
    figure,
    box,
    svg.linear(0, 1, left, right),
    svg.linear(0, high, bottom, top),
  )
  plot.add_axes(
    [(i / 5, f'{20 * i}') for i in range(6)],
    [(v, f'{100 * v:.4g}') for v in svg.nice_ticks(0, high, 6)],
    ('problems answered, %', 'wrong among the answered, %'),
  )
  line = f'M{left} {plot.y(wanted):.1f}H{right}'
  svg.add(figure, 'path', class_='diagonal', d=line)
  at = {'class_': 'tick', 'x': left + 4, 'y': plot.y(wanted) - 5}
  svg.add(figure, 'text', 'wanted', **at)
  curve_line = plot.path(svg.thin(points))
  svg.add(figure, 'path', class_='line prm', d=curve_line)
  if point:
    dot = {'cx': plot.x(point[0]), 'cy': plot.y(point[1]), 'r': 5}
    svg.add(figure, 'circle', class_='dot prm', **dot)
  return svg.to_text(figure)
