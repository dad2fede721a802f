"""Search as a function: problems in, for each a chosen chain and its tree.

    found = prm_jax.search.run(tasks, policy, prm, 'beam', key='0')

`jobs/search.py` does the same resumably, from a config.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax.data.chains import Chain
from prm_jax.inference.driver import AT_ONCE, Models, Work, drive
from prm_jax.inference.protocols import Policy, StepScorer
from prm_jax.runtime.errors import UserError
from prm_jax.search.budget import Budget
from prm_jax.search.method import SearchConfig, Task
from prm_jax.search.methods import METHODS, check_models
from prm_jax.search.searching import search
from prm_jax.search.tree import Tree


class Found(NamedTuple):
  """What came of one problem.

  Attributes:
    task: the problem.
    failed: why nothing came of it; '' where something did.
    chosen: the chain that was chosen; None where it failed.
    chains: all that ended, the chosen one first; () where it failed.
    tree: every step that was proposed; None where it failed.
    ledger: what it took, as `Ledger.to_dict`; empty where it failed.
  """

  task: Task
  failed: str
  chosen: Chain | None
  chains: tuple[Chain, ...]
  tree: Tree | None
  ledger: Mapping[str, Any]


def run(
  tasks: Sequence[Task],
  policy: Policy,
  prm: StepScorer | None = None,
  method: str = 'best_of_n',
  options: Mapping[str, Any] | None = None,
  config: SearchConfig | None = None,
  budget: Budget | None = None,
  key: str = '0',
  trees: Mapping[str, Tree] | None = None,
  concurrent: int = 64,
  at_once: int = AT_ONCE,
) -> Iterator[Found]:
  """Searches every problem; gives each as it ends.

  Args:
    prm: None for methods that ask none.
    method: one of `methods.METHODS`.
    options: of the method, as in its config's attributes.
    budget: of each problem; None: none, the method ends by itself.
    key: with each task's id what its search is drawn from.
    trees: of earlier searches, by the id of their tasks: the search goes on
      with a copy, and what it found counts, with its scores: ask the same
      policy and PRM. Chain scores are aggregated anew; the values of MCTS stay
      what they were under the old aggregate. The ledger is of the new part.
    concurrent: problems that are searched side by side.
    at_once: samples that a round asks for at most.

  Raises:
    UserError: the method is not known, an option is wrong, two tasks have one
      id, a model that is asked is missing or does not count the FLOPs of a
      budget in them, a tree is another problem's, or the method cannot do with
      the aggregate. Where a model gives up on the way, what was found of the
      problems in flight is given before.
  """
  if method not in METHODS:
    raise UserError(f'method={method!r}: expected one of {", ".join(METHODS)}')
  check_models(method, policy, prm, budget)
  chosen = METHODS[method]
  try:
    own = chosen.config(**(options or {}))
  except TypeError as error:
    raise UserError(f'options of {method}: {error}') from None
  for name, count in Counter(task.id for task in tasks).most_common(1):
    if count > 1:
      raise UserError(
        f'{count} tasks have the id {name!r}, and would be searched with the '
        'same draws; give each its own'
      )
  config, budget = config or SearchConfig(), budget or Budget()
  prm_name = prm.name if prm and chosen.scores else ''
  name = ', '.join(filter(None, [method, policy.name, prm_name]))

  def start(index: int) -> Work:
    task, tree = tasks[index], None
    if trees and task.id in trees:
      tree = Tree.from_dict(trees[task.id].to_dict())
    return search(task, chosen, own, config, budget, key, name, tree)

  models = Models(policy=policy, prm=prm)
  for ended in drive(
    range(len(tasks)), start, models, concurrent, at_once=at_once
  ):
    task = tasks[ended.index]
    if ended.failed:
      yield Found(task, ended.failed, None, (), None, {})
      continue
    about = ended.chains[0].meta['search']
    tree = Tree.from_dict(about['tree'])
    yield Found(task, '', ended.chains[0], ended.chains, tree, about['ledger'])
