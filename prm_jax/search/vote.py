"""Chooses among the chains of best-of-N by a vote over their final answers.

Answers are equal if they mean the same, whatever their text. A chain that
states no answer does not vote.
"""

import math
from collections.abc import Sequence

from prm_jax.inference.grading import answer_of, same_answer
from prm_jax.search.method import SearchConfig, best
from prm_jax.search.tree import Tree


def majority(
  tree: Tree, candidates: Sequence[int], config: SearchConfig
) -> int:
  """Returns the first chain with the most frequent answer (Wang et al., 2022).

  Among equally frequent answers the one that came first wins. This needs no
  PRM.
  """
  del config
  groups = group_by_answer(tree, candidates)
  return max(groups, key=len)[0] if groups else candidates[0]


def weighted_vote(
  tree: Tree, candidates: Sequence[int], config: SearchConfig
) -> int:
  """Returns the best chain with the answer of the highest total score.

  This is weighted best-of-N (Li et al., 2022; Uesato et al., 2022):

      answer = argmax_a sum_{i: a_i = a} score(chain_i)

  For the aggregate `prod`, whose chain scores are logarithms, the sum is over
  the products themselves. Among equal sums the answer that came first wins. A
  chain that the PRM did not come to score does not vote.
  """
  scored = [i for i in candidates if tree.nodes[i].chain_score is not None]
  groups = group_by_answer(tree, scored)
  if not groups:
    return best(tree, candidates, config)
  scores = {i: tree.nodes[i].chain_score for group in groups for i in group}
  if config.aggregate == 'prod':
    # Relative to the largest, as products over long chains underflow.
    greatest = max(scores.values())
    scores = {i: math.exp(score - greatest) for i, score in scores.items()}
  winner = max(groups, key=lambda group: sum(scores[i] for i in group))
  return best(tree, winner, config)


def group_by_answer(tree: Tree, candidates: Sequence[int]) -> list[list[int]]:
  """Groups the chains that ended with an answer by equal answers.

  Answers that could not be compared in time count as different.
  """
  groups: list[tuple[str, list[int]]] = []
  for i in candidates:
    ended = tree.nodes[i].ended
    answer = answer_of(tree.problem, tree.steps(i)) if ended else None
    if answer is None:
      continue
    for other, group in groups:
      if same_answer(tree.problem, answer, other):
        group.append(i)
        break
    else:
      groups.append((answer, [i]))
  return [group for _, group in groups]
