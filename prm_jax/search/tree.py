"""Holds the tree of a search: every step that was proposed, with its score.

Node 0 is the problem. Every other node is a step that follows its parent's or,
if it has no step, marks that the policy ended the chain at its parent.
"""

import dataclasses
import sys
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ROOT = 0


class Stream(NamedTuple):
  """Identifies the random draws of a chain: the key and number of its sample.

  A step that is asked for with its parent's stream is the one that a policy
  running here would have written next without being stopped.
  """

  key: str
  number: int


@dataclasses.dataclass
class Node:
  """Holds a step that was proposed.

  Attributes:
    parent: index of the node before it; -1 for the root.
    step: text of the step; '' for the root and for a node that only ends the
      chain.
    stream: random stream that it was drawn from; None for the root.
    ended: whether the chain ends here.
    dead: why the chain is given up here; '' while it is alive. A dead node is
      neither expanded nor chosen, and methods do not see it.
    scratch: whether it was rolled out only to look ahead.
    score: the PRM's step score in [0, 1]; None if the PRM was not asked.
    chain_score: aggregate of the scores from the first step to this one.
    tokens: number of tokens that the policy wrote; for several steps written
      together they are counted at the last one.
    logprob: log-probability as in `Completion`, at the node with the tokens.
    depth: number of steps from the problem to this one, included.
    drawn: number of samples asked for after it; the first of them continues
      the node's own stream.
    ahead: number of samples asked for after it to look ahead.
    last: number of samples asked for after it to end the search.
    visits, value: number of visits and mean value that MCTS keeps.
  """

  parent: int
  step: str = ''
  stream: Stream | None = None
  ended: bool = False
  dead: str = ''
  scratch: bool = False
  score: float | None = None
  chain_score: float | None = None
  tokens: int = 0
  logprob: float | None = None
  depth: int = 0
  drawn: int = 0
  ahead: int = 0
  last: int = 0
  visits: int = 0
  value: float = 0.0


def _types(hint: Any) -> set[type]:
  """Returns the types that a field may have; a float may be read as an int."""
  types = set(typing.get_args(hint) or (hint,))
  return types | {int} if float in types else types


# Types of each field of a node, and of each part of its stream.
_TYPES = {
  name: _types(hint)
  for cls in (Node, Stream)
  for name, hint in typing.get_type_hints(cls).items()
}


class Tree:
  """Holds the nodes of a search, each after its parent.

  Attributes:
    problem: text of the problem.
    nodes: all nodes, the root first.
    children: indices of the children of each node, in the order in which they
      were added.
  """

  def __init__(self, problem: str) -> None:
    self.problem = problem
    self.nodes = [Node(-1)]
    self.children: list[list[int]] = [[]]

  def add(self, node: Node) -> int:
    """Appends a node and returns its index."""
    if node.step:
      node.depth = self.nodes[node.parent].depth + 1
    else:
      node.depth = self.nodes[node.parent].depth
    self.nodes.append(node)
    self.children.append([])
    self.children[node.parent].append(len(self.nodes) - 1)
    return len(self.nodes) - 1

  def path(self, index: int) -> list[int]:
    """Returns the nodes with a step from the problem to this one, included."""
    backwards = []
    while index != ROOT:
      if self.nodes[index].step:
        backwards.append(index)
      index = self.nodes[index].parent
    return backwards[::-1]

  def steps(self, index: int) -> tuple[str, ...]:
    """Returns the steps from the problem to this node, its own included."""
    return tuple(self.nodes[i].step for i in self.path(index))

  def scores(self, index: int) -> list[float | None]:
    """Returns the scores of the steps from the problem to this node."""
    return [self.nodes[i].score for i in self.path(index)]

  def in_order(self) -> Iterator[int]:
    """Yields the index of every node, depth first.

    This order is the same whether chains were drawn one after another or grew
    side by side, so that ties between chains are broken in the same way.
    """
    waiting = [ROOT]
    while waiting:
      index = waiting.pop()
      yield index
      waiting.extend(reversed(self.children[index]))

  def alive(self, scratch: bool = False) -> list[int]:
    """Returns the nodes that may be expanded or chosen, depth first.

    The root is never among them.

    Args:
      scratch: returns the nodes that were rolled out to look ahead instead.
    """
    return [
      i
      for i in self.in_order()
      if i != ROOT
      and not self.nodes[i].dead
      and self.nodes[i].scratch == scratch
    ]

  def ended(self, scratch: bool = False) -> list[int]:
    """Returns those of the `alive` nodes at which a chain ends."""
    return [i for i in self.alive(scratch) if self.nodes[i].ended]

  def ends(self) -> list[int]:
    """Returns those of the `alive` nodes at which a chain ends or may go on.

    Inner steps are left out. A whole chain that a limit cut off has none of
    these nodes, because its last one is dead.
    """
    return [
      i for i in self.alive() if self.nodes[i].ended or not self.children[i]
    ]

  def live_children(self, index: int) -> list[int]:
    """Returns the children of a node that are alive, ended ones included."""
    return [
      i
      for i in self.children[index]
      if not self.nodes[i].dead and not self.nodes[i].scratch
    ]

  def to_dict(self) -> dict[str, Any]:
    """Returns the tree as JSON types; `from_dict` reads it.

    Fields of a node that have their default are left out.
    """
    return {
      'problem': self.problem,
      'nodes': [_node_to_dict(node) for node in self.nodes],
    }

  @classmethod
  def from_dict(cls, record: Mapping[str, Any]) -> 'Tree':
    """Makes a tree from the form that `to_dict` returns.

    Raises:
      LookupError, TypeError, ValueError: the record has another form.
    """
    tree = cls(record['problem'])
    if not isinstance(tree.problem, str):
      raise TypeError('problem')
    nodes = [Node(**values) for values in record['nodes']]
    for i, node in enumerate(nodes):
      node.stream = node.stream and Stream(*node.stream)
      _check_node(node, i)
    tree.nodes[ROOT] = nodes[ROOT]
    for node in nodes[1:]:
      tree.add(node)
    return tree


def _check_node(node: Node, index: int) -> None:
  """Raises TypeError or ValueError for what no node of a tree has."""
  values = vars(node) | (node.stream._asdict() if node.stream else {})
  for name, value in values.items():
    if type(value) not in _TYPES[name]:
      raise TypeError(name)
    # JSON has numbers that no float holds, and Python reads NaN from it.
    if type(value) in (int, float) and not abs(value) <= sys.float_info.max:
      raise ValueError(name)
  if node.parent not in (range(index) if index else (-1,)):
    raise ValueError('parent')


def _node_to_dict(node: Node) -> dict[str, Any]:
  default = Node(node.parent)
  values = {
    name: value
    for name, value in vars(node).items()
    if name == 'parent' or value != getattr(default, name)
  }
  if node.stream is not None:
    values['stream'] = list(node.stream)
  return values
