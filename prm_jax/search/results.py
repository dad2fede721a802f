"""What a search hands on: the chosen chain first, with its tree and ledger."""

from typing import Any

from prm_jax.data.chains import Chain
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.inference.grading import ends_right
from prm_jax.search.method import Task
from prm_jax.search.tree import Tree


def to_chains(
  tree: Tree,
  chosen: int,
  task: Task,
  name: str,
  ledger: dict[str, Any],
) -> list[Chain]:
  """The chosen chain, then the others that ended; `meta['search']` tells.

  The first has `tree` and `ledger` there, too.

  Args:
    chosen: the node at which it ends.
    name: of who made them.
  """
  order = [chosen, *(i for i in tree.ended() if i != chosen)]
  found = [_chain(tree, i, task, n, name) for n, i in enumerate(order)]
  found[0].meta['search'] |= {'tree': tree.to_dict(), 'ledger': ledger}
  return found


def _chain(tree: Tree, index: int, task: Task, number: int, name: str) -> Chain:
  steps, node = tree.steps(index), tree.nodes[index]
  outcome = None
  if task.truth:
    outcome = node.ended and ends_right(task.text, steps, task.truth)
  return Chain(
    task.text,
    steps,
    answer=final_answer(steps) if node.ended else None,
    outcome=outcome,
    meta={
      'id': f'{task.id} # {number}',
      'problem_id': task.id,
      'dataset': task.dataset,
      'generator': name,
      'truth': task.truth,
      'search': {
        'node': index,
        'ended': node.ended,
        'scores': tree.scores(index),
        'chain_score': node.chain_score,
      },
    },
  )
