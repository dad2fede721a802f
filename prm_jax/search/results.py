"""Turns the tree of a finished search into chains, the chosen one first."""

from collections.abc import Sequence
from typing import Any

from prm_jax.data.chains import Chain
from prm_jax.inference.grading import answer_of, ends_right
from prm_jax.search.method import Task
from prm_jax.search.tree import Tree


def to_chains(
  tree: Tree,
  ends: Sequence[int],
  task: Task,
  name: str,
  ledger: dict[str, Any],
) -> list[Chain]:
  """Returns the chains that end at some nodes.

  Args:
    ends: nodes at which the chains end, that of the chosen one first. Grading
      an answer may take seconds, so name only those that are used.
    name: names of method, policy and PRM, for `meta['generator']`.
    ledger: what the search spent, in JSON types.

  Returns:
    Chains whose `meta['search']` has the `node` at which the chain ends,
    whether it `ended`, its step `scores` and its `chain_score`. The first
    chain's also has the `tree` and the `ledger`.
  """
  chains = [_to_chain(tree, i, task, n, name) for n, i in enumerate(ends)]
  chains[0].meta['search'] |= {'tree': tree.to_dict(), 'ledger': ledger}
  return chains


def _to_chain(
  tree: Tree, index: int, task: Task, number: int, name: str
) -> Chain:
  """Makes the chain that ends at a node; `number` makes its id unique."""
  steps, node = tree.steps(index), tree.nodes[index]
  outcome = None
  if task.truth:
    outcome = node.ended and ends_right(task.text, steps, task.truth)
  return Chain(
    task.text,
    steps,
    answer=answer_of(task.text, steps) if node.ended else None,
    outcome=outcome,
    meta={
      'id': f'{task.id} # {number}',
      'problem_id': task.id,
      'dataset': task.dataset,
      'generator': name,
      'truth': task.truth,
      'finished': node.ended,
      'search': {
        'node': index,
        'ended': node.ended,
        'scores': tree.scores(index),
        'chain_score': node.chain_score,
      },
    },
  )
