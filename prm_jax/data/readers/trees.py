"""Reads search trees with Monte Carlo values, such as MATH-APS.

OmegaPRM's output (Luo et al., 2024) comes in two formats: `math_aps`, a list of
solution prefixes that each begin with the question, and `math_aps_tree`, the
tree itself. `step_tree` is any tree, as a list of nodes that name their
parents. All are turned into nodes, and the nodes into one chain per leaf, so
that every value occurs in one chain.
"""

import re
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.readers import records
from prm_jax.data.readers.records import Fields, Skip
from prm_jax.runtime.errors import UserError

_UNKNOWN = StepLabel(None, 'rollout')
_ROOT = -1
_LINE_END = re.compile(r'(?<=\S)\s*\n')


class _Node(NamedTuple):
  """Holds a step of the tree; a list of nodes has parents before children."""

  parent: int  # index of an earlier node; _ROOT stands for the question
  step: str
  value: float | None


def read_math_aps(record: Fields) -> list[Chain] | Skip:
  """Reads a list of {solution_prefix, mc_value} as a tree.

  The parent of a prefix is the longest other prefix that it continues after a
  line break; without the line break 'x = 4' would be a parent of 'x = 42'. If a
  prefix has several values, the chains through it use the first one, and every
  other value becomes a chain that ends there.
  """
  question = records.text(record, 'question')
  prefixes = []
  for i, entry in enumerate(records.items(record, 'reasoning_steps')):
    prefix = records.text(entry, 'solution_prefix')
    rest = prefix.removeprefix(question)
    # "qualify" does not continue the question "q".
    if not prefix.startswith(question) or re.match(r'\S', rest):
      raise UserError(f'reasoning_steps[{i}] does not begin with the question')
    value = records.probability(
      records.field(entry, 'mc_value'), f'mc_value of reasoning_steps[{i}]'
    )
    prefixes.append((prefix, value))

  # A parent is shorter than its child, so sorting puts it first.
  prefixes.sort(key=lambda entry: len(entry[0]))
  first, lengths = {question: _ROOT}, {len(question)}
  meta, nodes = {}, []
  for prefix, value in prefixes:
    if prefix == question:
      meta.setdefault('problem_value', value)
      continue
    parent = _parent(prefix, question, first, lengths)
    lengths.add(len(prefix))
    first.setdefault(prefix, len(nodes))
    step = prefix[len(parent) :].strip()
    nodes.append(_Node(first[parent], step, value))
  return _chains(record, nodes, meta)


def _parent(
  prefix: str, question: str, known: Mapping[str, int], lengths: Set[int]
) -> str:
  """Returns the longest known prefix that ends at a line end of `prefix`.

  `lengths` are those of the known prefixes: only beginnings as long are looked
  up, because a text of many lines has many long ones.
  """
  # Known prefixes are stripped, but blank lines may stand between steps.
  ends = [match.start() for match in _LINE_END.finditer(prefix, len(question))]
  for end in reversed(ends):
    if end in lengths and prefix[:end] in known:
      return prefix[:end]
  return question


def read_math_aps_tree(record: Fields) -> list[Chain] | Skip:
  """Reads a tree {text, mc_value, children} whose root is the question."""
  question = records.text(record, 'question')
  root = records.field(record, 'reasoning_steps')
  if records.text(root, 'text') != question:
    raise UserError("the root of 'reasoning_steps' is not the question")
  value = records.probability(records.field(root, 'mc_value'), 'mc_value')
  nodes = []
  # A tree may be deeper than Python's limit of recursion.
  stack = [(_ROOT, child) for child in reversed(_children(root))]
  while stack:
    parent, node = stack.pop()
    mc_value = records.probability(records.field(node, 'mc_value'), 'mc_value')
    nodes.append(_Node(parent, records.text(node, 'text'), mc_value))
    here = len(nodes) - 1
    stack += [(here, child) for child in reversed(_children(node))]
  return _chains(record, nodes, {'problem_value': value})


def read_step_tree(record: Fields) -> list[Chain] | Skip:
  """Reads {question, nodes}; a node is {id, parent, text, value}.

  Nodes come in any order. The parent of the root is null and its text is the
  question; every other node is a step. `value` is the probability that rollouts
  from the node reach the right answer, or null if it is unknown.
  """
  question = records.text(record, 'question')
  places: dict[int | str, int] = {}
  children: list[list[int]] = []
  entries = records.items(record, 'nodes')
  for i, entry in enumerate(entries):
    name = _id(entry, 'id', f'nodes[{i}]')
    if name in places:
      raise UserError(f'nodes[{i}] has the id {records.show(name)} again')
    places[name] = i
    children.append([])
  roots = []
  for i, entry in enumerate(entries):
    if records.field(entry, 'parent') is None:
      roots.append(i)
      continue
    parent = _id(entry, 'parent', f'nodes[{i}]')
    if parent not in places:
      raise UserError(
        f'the parent {records.show(parent)} of nodes[{i}] is not among the '
        'nodes'
      )
    children[places[parent]].append(i)
  if len(roots) != 1:
    raise UserError(
      f'{len(roots)} nodes have no parent: expected one, the root'
    )
  if records.text(entries[roots[0]], 'text') != question:
    raise UserError(f'the root, nodes[{roots[0]}], is not the question')

  nodes, reached = [], set(roots)
  stack = [(_ROOT, i) for i in reversed(children[roots[0]])]
  while stack:
    parent, i = stack.pop()
    reached.add(i)
    step = records.text(entries[i], 'text')
    nodes.append(_Node(parent, step, _value(entries[i], i)))
    here = len(nodes) - 1
    stack += [(here, child) for child in reversed(children[i])]
  for i in range(len(entries)):
    # Its parents lead to each other and never to the root.
    if i not in reached:
      raise UserError(f'nodes[{i}] is on a cycle, or below one')
  value = _value(entries[roots[0]], roots[0])
  return _chains(
    record, nodes, {} if value is None else {'problem_value': value}
  )


def _id(node: Any, name: str, where: str) -> int | str:
  value = records.field(node, name)
  if type(value) not in (int, str):
    raise UserError(
      f'{name!r} of {where} is {records.show(value)}: expected text or an '
      'integer'
    )
  return value


def _value(node: Any, i: int) -> float | None:
  value = records.field(node, 'value')
  if value is None:
    return None
  return records.probability(value, f"'value' of nodes[{i}]")


def _children(node: Any) -> list[Any]:
  return records.items(node, 'children')


def _chains(
  record: Fields, nodes: list[_Node], meta: Fields
) -> list[Chain] | Skip:
  """Makes one chain per leaf; the first chain through a node gets its value.

  A value estimates the probability that rollouts from the prefix reach the
  right answer. The format does not tell the number of rollouts.
  """
  if not nodes:
    return Skip('no step below the question')
  meta = meta | records.keep(record, 'question_id')
  if answers := records.keep(record, 'final_answer'):
    meta['truth'] = answers['final_answer']
  question = records.text(record, 'question')
  inner = {node.parent for node in nodes}
  labelled = set()
  chains = []
  for leaf in range(len(nodes)):
    if leaf in inner:
      continue
    path, at = [], leaf
    while at != _ROOT:
      path.append(at)
      at = nodes[at].parent
    path.reverse()
    labels = [
      _UNKNOWN if i in labelled else StepLabel(nodes[i].value, 'rollout')
      for i in path
    ]
    labelled.update(path)
    steps = tuple(nodes[i].step for i in path)
    chains.append(Chain(question, steps, labels=tuple(labels), meta=meta))
  return chains
