"""Votes over final answers: the chains of best-of-N, chosen otherwise.

Answers are equal by what they mean, not by their text. A chain that states no
answer does not vote.
"""

import math
from collections.abc import Sequence

from prm_jax.data.verify.final_answer import final_answer
from prm_jax.inference.grading import same_answer
from prm_jax.search.method import SearchConfig, best
from prm_jax.search.tree import Tree


def majority(
  tree: Tree, candidates: Sequence[int], config: SearchConfig
) -> int:
  """The first chain with the most frequent answer (Wang et al., 2022).

  Of equally frequent ones it is the answer that came first. No PRM is asked.
  """
  del config
  groups = by_answer(tree, candidates)
  return max(groups, key=len)[0] if groups else candidates[0]


def weighted_vote(
  tree: Tree, candidates: Sequence[int], config: SearchConfig
) -> int:
  """The best chain with the answer whose chains have the most score together.

  Weighted best-of-N (Li et al., 2022; Uesato et al., 2022):

      answer = argmax_a sum_{i: a_i = a} score(chain_i)

  with the product itself where chain scores are its logarithm. Of equal sums
  it is the answer that came first.
  """
  groups = by_answer(tree, candidates)
  if not groups:
    return best(tree, candidates, config)
  scores = {i: tree.nodes[i].chain_score for group in groups for i in group}
  if config.aggregate == 'prod':
    # Relative to the greatest, so that those of long chains do not underflow.
    greatest = max(scores.values())
    scores = {i: math.exp(score - greatest) for i, score in scores.items()}
  winner = max(groups, key=lambda group: sum(scores[i] for i in group))
  return best(tree, winner, config)


def by_answer(tree: Tree, candidates: Sequence[int]) -> list[list[int]]:
  """The chains that ended with an answer, those of equal answers together.

  An answer that could not be compared in time is another.
  """
  groups: list[tuple[str, list[int]]] = []
  for i in candidates:
    answer = final_answer(tree.steps(i)) if tree.nodes[i].ended else None
    if answer is None:
      continue
    for other, group in groups:
      if same_answer(tree.problem, answer, other):
        group.append(i)
        break
    else:
      groups.append((answer, [i]))
  return [group for _, group in groups]
