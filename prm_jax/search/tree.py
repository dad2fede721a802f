"""What a search has found so far: every step that was proposed, with its score.

Node 0 is the problem. Any other node is a step after its parent's, or, without
a step, the policy's word that the chain ends at its parent.
"""

import dataclasses
from collections.abc import Mapping
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
    drawn: samples asked for of what follows it.
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
  visits: int = 0
  value: float = 0.0


class Tree:
  """Nodes, each after its parent.

  Attributes:
    problem: its text.
    nodes: the root first.
    children: of each node, in the order in which they came.
  """

  def __init__(self, problem: str):
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

  def alive(self) -> list[int]:
    """Nodes that may be gone on from or chosen; the root is none of them."""
    return [
      i
      for i, node in enumerate(self.nodes)
      if i != ROOT and not node.dead and not node.scratch
    ]

  def ended(self) -> list[int]:
    """Of these, where a chain ends."""
    return [i for i in self.alive() if self.nodes[i].ended]

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
    tree.nodes[ROOT] = Node(**record['nodes'][ROOT])
    for values in record['nodes'][1:]:
      tree.add(Node(**values | {'stream': Stream(*values['stream'])}))
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
