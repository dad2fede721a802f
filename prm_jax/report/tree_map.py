"""Draws the map of a search tree, which shows its shape, as inline SVG.

Depth runs to the right, and the chosen chain along the top. Each step is a box
with its score as colour and number, and a link to its row in the page, which
`trees.py` prepares. A pruned subtree is one box.
"""

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from prm_jax.report.svg import add, new_svg, to_text
from prm_jax.report.values import NOTHING

WIDTH, HEIGHT = 34, 18  # of a box
COLUMN, ROW = 52, 24  # from one box to the next
MARGIN = 6


def draw(steps: Sequence[Any], shown: set[int], label: str, name: str) -> str:
  """Draws the map.

  Args:
    steps: the tree's steps (`trees.MergedStep`), the root first.
    shown: indices of the steps to draw; all that lead to them are included.
    label: the text alternative; the page's rows hold the same information.
    name: prefix of the rows' ids, which are NAME-INDEX.

  Returns:
    The SVG as text.
  """
  places, rows = layout(steps, shown)
  columns = 1 + max(column for column, _ in places.values())
  width = COLUMN * (columns - 1) + WIDTH + 2 * MARGIN
  height = ROW * (rows - 1) + HEIGHT + 2 * MARGIN
  svg = new_svg(width, height, label, 'map')
  # At natural size the numbers stay readable; the page scrolls the map.
  svg.set('style', f'width: {width}px')
  svg.set('role', 'group')
  # The chosen steps are drawn last, to lie on top.
  drawn = sorted(places, key=lambda i: steps[i].chosen)
  for i in drawn:
    if i:
      _edge(svg, places[steps[i].parent], places[i], _state(steps[i]))
  for i in drawn:
    _box(svg, steps[i], places[i], f'#{name}-{i}' if i else '')
  return to_text(svg)


def layout(
  steps: Sequence[Any], shown: set[int]
) -> tuple[dict[int, tuple[int, int]], int]:
  """Returns the (column, row) of each box by step, and the number of rows.

  The first child continues its parent's row; every other begins a new row.
  """
  places, row = {}, 0
  stack = [(0, True)]
  while stack:
    i, first = stack.pop()
    row += not first
    places[i] = steps[i].number, row
    if i and not steps[i].kept:
      continue  # its box stands for the whole pruned subtree
    children = [c for c in steps[i].children if c in shown]
    children.sort(key=lambda c: steps[c].rank)
    stack += [(c, n == 0) for n, c in enumerate(children)][::-1]
  return places, row + 1


def _state(step: Any) -> str:
  return 'chosen' if step.chosen else 'kept' if step.kept else 'pruned'


def _edge(
  svg: ElementTree.Element,
  start: tuple[int, int],
  end: tuple[int, int],
  state: str,
) -> None:
  (x0, y0), (x1, y1) = (_middle(place) for place in (start, end))
  left, right = x0 + WIDTH / 2, x1 - WIDTH / 2
  turn = (left + right) / 2
  path = (
    f'M{left} {y0}H{turn}V{y1}H{right}' if y0 != y1 else f'M{left} {y0}H{right}'
  )
  add(svg, 'path', class_=f'edge {state}', d=path)


def _box(
  svg: ElementTree.Element, step: Any, place: tuple[int, int], link: str
) -> None:
  x, y = _middle(place)
  if not link:
    add(svg, 'circle', class_='root', cx=x, cy=y, r=5)
    return
  target = add(svg, 'a', href=link, class_=f'box {_state(step)}')
  known = step.score is not None
  if known:
    target.set('style', f'--s:{100 * min(max(step.score, 0), 1):.0f}%')
  number = f'{step.score:.2f}' if known else NOTHING
  score = f'score {number}' if known else 'no score'
  words = [f'step {step.number}', score, _state(step)]
  words += [f'{step.count} times'] * (step.count > 1)
  words += [f'{step.size - 1} steps after it'] * (
    not step.kept and step.size > 1
  )
  words += ['the chain ends here'] * bool(step.ended)
  target.set('aria-label', ', '.join(words))
  add(target, 'title', ', '.join(words))
  box = {'x': x - WIDTH / 2, 'y': y - HEIGHT / 2}
  radius = HEIGHT / 2 if step.ended else 3
  add(target, 'rect', **box, width=WIDTH, height=HEIGHT, rx=radius)
  add(target, 'text', number, class_='middle', x=x, y=y, dy='0.35em')


def _middle(place: tuple[int, int]) -> tuple[float, float]:
  column, row = place
  return (
    MARGIN + WIDTH / 2 + COLUMN * column,
    MARGIN + HEIGHT / 2 + ROW * row,
  )
