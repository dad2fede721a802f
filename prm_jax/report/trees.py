"""Reads trees.jsonl, and prepares search trees as rows and a map for the page.

    {"id", "problem", "truth", "tree": Tree.to_dict(), "chosen": node, "method"}

Steps with the same text after the same steps are merged and counted. The chosen
chain is a column of rows. Alternatives to a step are indented below it, and
pruned ones are folded. Of a large tree the most promising steps are shown, and
the others counted.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import markupsafe

from prm_jax.inference.grading import answer_of
from prm_jax.report import files, tree_map, values
from prm_jax.report.chain_views import crop
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.search.tree import ROOT, Tree

MAX_TREES = 8
MAX_STEPS = 300  # of a tree, so that the page stays readable and small
MAX_MAPPED = 120  # steps in the map
MAX_EXCERPT = 160  # characters of a step, wider than the line that shows them
SMALLEST_FOLD = 3  # steps; fewer are faster to read than to open


@dataclasses.dataclass
class MergedStep:
  """Merges the nodes that have the same text after the same steps.

  Attributes:
    parent: index of the step before; the root is 0, its own parent.
    number: position in its chain, from 1.
    score: step score of the first node that has one.
    chain_score: chain score of the first node that has one.
    count: number of nodes.
    visits: visits of all nodes together.
    value: sum, over these visits, of the values that the method estimated.
    ended: number of chains that end here and may be chosen.
    dead: reasons for which chains were given up here, with counts.
    scratch: whether all nodes were only rolled out to look ahead.
    chosen: whether the step is in the chosen chain.
    kept: whether the step is in a chain that ended, or in the chosen one;
      otherwise it was pruned.
    size: number of steps in the subtree, including this one.
    children: indices of the steps after it.
  """

  parent: int
  text: str
  number: int
  score: float | None = None
  chain_score: float | None = None
  count: int = 0
  tokens: int = 0
  visits: int = 0
  value: float = 0.0
  ended: int = 0
  dead: Counter = dataclasses.field(default_factory=Counter)
  scratch: bool = True
  chosen: bool = False
  kept: bool = False
  size: int = 1
  children: list[int] = dataclasses.field(default_factory=list)

  @property
  def rank(self) -> tuple:
    """Returns a sort key: the chosen step, then kept ones, then by score."""
    score = -math.inf if self.chain_score is None else self.chain_score
    return not self.chosen, not self.kept, self.scratch, -score


def read_trees(path: paths.Path) -> tuple[list[dict[str, Any]], int]:
  """Reads the first MAX_TREES trees of a file.

  Returns:
    Their views, and the number of trees in the whole file.

  Raises:
    UserError: a line is no search tree.
  """
  views = []
  # Trees may be large, and a file may hold one for every problem.
  for where, record in itertools.islice(files.read_records(path), MAX_TREES):
    try:
      tree, chosen = _tree(record)
      views.append(tree_view(record, tree, chosen, f'tree-{len(views)}'))
    except files.MALFORMED:
      raise UserError(
        f'{where}: not a search tree; expected id, problem, truth, method, '
        'tree as Tree.to_dict gives it, and the index of the chosen node'
      ) from None
  return views, files.count_records(path)


def _tree(record: Mapping[str, Any]) -> tuple[Tree, int]:
  for name in ('problem', 'method'):
    if not isinstance(record[name], str):
      raise TypeError
  tree = Tree.from_dict(record['tree'])
  if record['chosen'] not in range(len(tree.nodes)):
    raise ValueError
  return tree, record['chosen']


def merge_equal_steps(tree: Tree, chosen: int) -> list[MergedStep]:
  """Merges equal siblings of a tree; parents come before their children."""
  steps = [MergedStep(ROOT, '', 0)]
  place = {ROOT: ROOT}
  known: dict[tuple[int, str], int] = {}
  for i, node in enumerate(tree.nodes[1:], 1):
    parent = place[node.parent]
    at = parent
    if node.step:
      at = known.setdefault((parent, node.step), len(steps))
      if at == len(steps):
        steps.append(MergedStep(parent, node.step, steps[parent].number + 1))
        steps[parent].children.append(at)
      steps[at].count += 1
    place[i] = at
    step = steps[at]
    step.tokens += node.tokens
    step.visits += node.visits
    step.value += node.visits * node.value
    if step.score is None:
      step.score = node.score
    if step.chain_score is None:
      step.chain_score = node.chain_score
    step.scratch &= node.scratch
    # If no other chain ended, one that was rolled out may be the chosen one.
    able = not node.dead and (not node.scratch or i == chosen)
    step.ended += node.ended and able
    if node.dead:
      step.dead[node.dead] += 1
  for i in tree.path(chosen):
    steps[place[i]].chosen = True
  for step in reversed(steps[1:]):
    step.kept |= step.chosen or bool(step.ended)
    steps[step.parent].kept |= step.kept
    steps[step.parent].size += step.size
  return steps


def select_promising(steps: Sequence[MergedStep], limit: int) -> set[int]:
  """Selects at most `limit` steps: the chosen chain, and the most promising.

  A step is selected together with all steps that lead to it. The chosen chain
  is always whole, even if it is longer than `limit`.
  """
  shown = {ROOT}
  for i in sorted(range(1, len(steps)), key=lambda i: steps[i].rank):
    path, at = [], i
    while at not in shown:
      path.append(at)
      at = steps[at].parent
    if len(shown) + len(path) <= limit + 1 or steps[i].chosen:
      shown.update(path)
  return shown


def tree_view(
  record: Mapping[str, Any], tree: Tree, chosen: int, name: str
) -> dict[str, Any]:
  """Returns a tree as the template shows it.

  Args:
    name: prefix for the ids of the tree's elements, unique in the page.
  """
  steps = merge_equal_steps(tree, chosen)
  shown = select_promising(steps, MAX_STEPS)
  label = (
    f'Map of a search tree of {len(steps) - 1:,} different steps; the chosen '
    f'chain has {len(tree.path(chosen))}'
  )
  mapped = shown & select_promising(steps, MAX_MAPPED)
  answer = answer_of(tree.problem, tree.steps(chosen))
  finished = tree.nodes[chosen].ended
  return {
    'id': crop(str(record.get('id', ''))),
    'problem': crop(record['problem']),
    'truth': crop(str(record.get('truth') or '')),
    'method': record['method'].replace('_', ' '),
    'answer': crop(answer) if finished and answer is not None else '',
    'finished': finished,
    'nodes': sum(bool(node.step) for node in tree.nodes),
    'distinct': len(steps) - 1,
    'hidden': len(steps) - len(shown),
    'rows': list(_rows(steps, shown, ROOT, 0, name)),
    'map': markupsafe.Markup(tree_map.draw(steps, mapped, label, name)),
    'unmapped': len(steps) - len(mapped),
  }


def _rows(
  steps: Sequence[MergedStep],
  shown: set[int],
  at: int,
  level: int,
  name: str,
  folded: bool = False,
) -> Iterator[dict[str, Any]]:
  """Yields rows for the steps after a step; the main line keeps its level.

  Args:
    at: index of the step whose followers are shown.
    level: level of indentation; inside a fold, counted within it.
    folded: whether the rows are inside a fold, where there is no other fold.
  """
  while True:
    children = [i for i in steps[at].children if i in shown]
    children.sort(key=lambda i: steps[i].rank)
    lost = sum(steps[i].size for i in steps[at].children if i not in shown)
    main = None
    if children and (steps[children[0]].kept or not steps[at].kept):
      main = children.pop(0)
      yield _row(steps[main], level, f'{name}-{main}')
    for kept in (True, False):
      beside = [i for i in children if steps[i].kept is kept]
      small = sum(steps[i].size for i in beside) < SMALLEST_FOLD
      if beside and (folded or small):
        yield from _unfolded_rows(steps, shown, beside, level + 1, name)
      elif beside:
        yield _folded_row(steps, shown, beside, level + 1, name)
    if lost:
      yield {'kind': 'more', 'level': level + 1, 'count': lost}
    if main is None:
      return
    at = main


def _unfolded_rows(
  steps: Sequence[MergedStep],
  shown: set[int],
  which: Sequence[int],
  level: int,
  name: str,
) -> Iterator[dict[str, Any]]:
  """Yields rows for some steps and everything after them, without folds."""
  for i in which:
    yield _row(steps[i], level, f'{name}-{i}')
    yield from _rows(steps, shown, i, level, name, True)


def _folded_row(
  steps: Sequence[MergedStep],
  shown: set[int],
  which: Sequence[int],
  level: int,
  name: str,
) -> dict[str, Any]:
  """Returns one row that opens to the rows of some steps and their subtrees."""
  heads = [steps[i] for i in which]
  below = sum(step.size for step in heads) - len(heads)
  words = [f'{len(heads):,} {"beside it" if heads[0].kept else "pruned"}']
  if scores := [step.score for step in heads if step.score is not None]:
    low, high = f'{min(scores):.2f}', f'{max(scores):.2f}'
    words.append(f'scored {low}' + (f' to {high}' if low != high else ''))
  if below:
    words.append(f'with {below:,} step{"s" * (below > 1)} after')
  return {
    'kind': 'fold',
    'level': level,
    'words': ', '.join(words),
    'rows': list(_unfolded_rows(steps, shown, which, 0, name)),
  }


def _row(step: MergedStep, level: int, name: str) -> dict[str, Any]:
  known = step.score is not None
  facts = []
  if step.chain_score is not None:
    facts.append(f'chain score {step.chain_score:.4g}')
  if step.count > 1:
    facts.append(f'proposed {step.count} times')
  if step.tokens:
    facts.append(f'{step.tokens:,} tokens')
  if step.visits:
    mean = step.value / step.visits
    facts.append(f'{step.visits:,} visits of mean value {mean:.3g}')
  facts += [f'given up: {why} ({n})' for why, n in step.dead.most_common()]
  if step.scratch:
    facts.append('rolled out to look ahead')
  state = 'chosen' if step.chosen else 'kept' if step.kept else 'pruned'
  return {
    'kind': 'step',
    'id': name,
    'level': level,
    'number': step.number,
    'excerpt': step.text[:MAX_EXCERPT],
    'text': crop(step.text),
    'score': f'{step.score:.2f}' if known else values.NOTHING,
    'share': f'{100 * min(max(step.score, 0), 1):.0f}%' if known else '',
    'state': state,
    'count': step.count,
    'ended': bool(step.ended),
    'dead': ', '.join(step.dead) if step.dead.total() == step.count else '',
    'facts': ' · '.join(facts),
  }
