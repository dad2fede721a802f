"""MATH-APS: search trees with Monte Carlo values (Luo et al., 2024).

OmegaPRM's output in two shapes: a list of solution prefixes, each beginning
with the question, or the tree itself. Both become nodes, and the nodes one
chain per leaf in which every value occurs once.
"""

from typing import Any, NamedTuple

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.readers import records
from prm_jax.data.readers.records import Fields, Skip
from prm_jax.runtime.errors import UserError

_UNKNOWN = StepLabel(None, 'rollout')
_ROOT = -1


class _Node(NamedTuple):
  parent: int  # index of an earlier node, _ROOT at the question
  step: str
  value: float


def read_math_aps(record: Fields) -> list[Chain] | Skip:
  """A list of {solution_prefix, mc_value}, nested by their texts.

  The parent of a prefix is the longest other prefix after which a line break
  follows in it; without the line break 'x = 4' would be a parent of 'x = 42'.
  A prefix that was estimated more than once owns its continuations once, with
  the first value; each further value is a chain of its own.
  """
  question = records.text(record, 'question')
  prefixes = []
  for i, entry in enumerate(records.items(record, 'reasoning_steps')):
    prefix = records.text(entry, 'solution_prefix')
    if not prefix.startswith(question):
      raise UserError(f'reasoning_steps[{i}] does not begin with the question')
    value = records.probability(
      records.field(entry, 'mc_value'), f'mc_value of reasoning_steps[{i}]'
    )
    prefixes.append((prefix, value))

  # A parent is shorter than its child, so sorting puts it first.
  prefixes.sort(key=lambda entry: len(entry[0]))
  first = {question: _ROOT}
  meta, nodes = {}, []
  for prefix, value in prefixes:
    if prefix == question:
      meta.setdefault('problem_value', value)
      continue
    parent = _parent(prefix, question, first)
    first.setdefault(prefix, len(nodes))
    step = prefix[len(parent) :].strip()
    nodes.append(_Node(first[parent], step, value))
  return _chains(record, nodes, meta)


def _parent(prefix: str, question: str, known: dict[str, int]) -> str:
  """The longest of `known` that ends where a line of `prefix` ends."""
  cut = prefix.rfind('\n')
  while cut > len(question):
    # Prefixes are stripped, blank lines between the steps are not.
    if prefix[:cut].rstrip() in known:
      return prefix[:cut].rstrip()
    cut = prefix.rfind('\n', 0, cut)
  return question


def read_math_aps_tree(record: Fields) -> list[Chain] | Skip:
  """A tree {text, mc_value, children} whose root is the question."""
  question = records.text(record, 'question')
  root = records.field(record, 'reasoning_steps')
  if records.text(root, 'text') != question:
    raise UserError("the root of 'reasoning_steps' is not the question")
  value = records.probability(records.field(root, 'mc_value'), 'mc_value')
  nodes = []
  # A stack, not recursion: the file decides how deep the tree is.
  stack = [(_ROOT, child) for child in reversed(_children(root))]
  while stack:
    parent, node = stack.pop()
    mc_value = records.probability(records.field(node, 'mc_value'), 'mc_value')
    nodes.append(_Node(parent, records.text(node, 'text'), mc_value))
    here = len(nodes) - 1
    stack += [(here, child) for child in reversed(_children(node))]
  return _chains(record, nodes, {'problem_value': value})


def _children(node: Any) -> list[Any]:
  return records.items(node, 'children')


def _chains(
  record: Fields, nodes: list[_Node], meta: Fields
) -> list[Chain] | Skip:
  """One chain per leaf; the first chain through a node has its value.

  A value estimates the chance of a right answer from that prefix, from a
  number of rollouts that the format does not tell.
  """
  if not nodes:
    return Skip('no step below the question')
  meta = meta | records.keep(record, 'question_id')
  if answers := records.keep(record, 'final_answer'):
    meta['reference_answer'] = answers['final_answer']
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
