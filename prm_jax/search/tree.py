"""What a search has found so far: every step that was proposed, with its score.

Node 0 is the problem. Any other node is a step after its parent's, or, without
a step, the policy's word that the chain ends at its parent.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ROOT = 0


class Stream(NamedTuple):
  """What a chain is drawn from: key and number of its samples.

  A step that is asked for with its parent's stream is the one that would have
  come had the policy not been stopped (of a policy that runs here).
  """

  key: str
  number: int


@dataclasses.dataclass
class Node:
  """A step that was proposed.

  Attributes:
    parent: index of the node that it follows; -1 of the root.
    step: its text; '' of the root, and where the chain ends without one more.
    stream: what it was drawn from; None of the root.
    ended: whether the chain ends here.
    dead: why nothing may follow and the chain is not to be chosen; '' where it
      is alive. Methods are not shown what is dead.
    scratch: whether it was rolled out to look ahead only.
    score: the PRM's, in [0, 1]; None where it was not asked.
    chain_score: the aggregate of the scores from the first step to this one.
    tokens: that the policy wrote; those of several steps that came at once are
      counted at the last.
    logprob: as `Completion`'s, where tokens are counted.
    depth: steps from the problem to this one, it included.
    drawn: samples asked for of what follows it; the first of a node with a
      stream is the stream's own next step.
    ahead, last: samples asked for to look ahead from it; in the end.
    visits, value: a method's own: how often it went this way, and what it
      thinks of it.
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


class Tree:
  """Nodes, each after its parent.

  Attributes:
    problem: its text.
    nodes: the root first.
    children: of each node, in the order in which they came.
  """

  def __init__(self, problem: str) -> None:
    self.problem = problem
    self.nodes = [Node(-1)]
    self.children: list[list[int]] = [[]]

  def add(self, node: Node) -> int:
    """Appends a node, and gives its index."""
    if node.step:
      node.depth = self.nodes[node.parent].depth + 1
    else:
      node.depth = self.nodes[node.parent].depth
    self.nodes.append(node)
    self.children.append([])
    self.children[node.parent].append(len(self.nodes) - 1)
    return len(self.nodes) - 1

  def path(self, index: int) -> list[int]:
    """The nodes with a step from the problem to this one, it included."""
    found = []
    while index != ROOT:
      if self.nodes[index].step:
        found.append(index)
      index = self.nodes[index].parent
    return found[::-1]

  def steps(self, index: int) -> tuple[str, ...]:
    """The steps from the problem to this node, its own included."""
    return tuple(self.nodes[i].step for i in self.path(index))

  def scores(self, index: int) -> list[float | None]:
    """The scores of these steps."""
    return [self.nodes[i].score for i in self.path(index)]

  def in_order(self) -> Iterator[int]:
    """Every node, depth first.

    Chains that are drawn one after the other and those that grow side by side
    come in the same order, so that the first of equals is the same.
    """
    waiting = [ROOT]
    while waiting:
      index = waiting.pop()
      yield index
      waiting.extend(reversed(self.children[index]))

  def alive(self, scratch: bool = False) -> list[int]:
    """Nodes that may be gone on from or chosen, in order; never the root.

    Args:
      scratch: those that were rolled out to look ahead, instead.
    """
    return [
      i
      for i in self.in_order()
      if i != ROOT
      and not self.nodes[i].dead
      and self.nodes[i].scratch == scratch
    ]

  def ended(self, scratch: bool = False) -> list[int]:
    """Of these, where a chain ends."""
    return [i for i in self.alive(scratch) if self.nodes[i].ended]

  def live_children(self, index: int) -> list[int]:
    """Those of a node that are alive, ended ones included."""
    return [
      i
      for i in self.children[index]
      if not self.nodes[i].dead and not self.nodes[i].scratch
    ]

  def to_dict(self) -> dict[str, Any]:
    """JSON types only; `from_dict`'s inverse. Of nodes what is not default."""
    return {
      'problem': self.problem,
      'nodes': [_told(node) for node in self.nodes],
    }

  @classmethod
  def from_dict(cls, record: Mapping[str, Any]) -> 'Tree':
    """A tree from `to_dict`'s form."""
    tree = cls(record['problem'])
    nodes = [Node(**values) for values in record['nodes']]
    for node in nodes:
      node.stream = node.stream and Stream(*node.stream)
    tree.nodes[ROOT] = nodes[ROOT]
    for node in nodes[1:]:
      tree.add(node)
    return tree


def _told(node: Node) -> dict[str, Any]:
  default = Node(node.parent)
  values = {
    name: value
    for name, value in vars(node).items()
    if name == 'parent' or value != getattr(default, name)
  }
  if node.stream is not None:
    values['stream'] = list(node.stream)
  return values
