"""Searches problems from Python, without a config or a workdir.

    found = prm_jax.search.run(tasks, policy, prm, 'beam', {'samples': 16})

Each problem gives a chosen chain with its tree and its cost. `jobs/search.py`
does the same from a config and can resume.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from prm_jax.data.chains import Chain
from prm_jax.inference.driver import SAMPLES_PER_ROUND, AskedModels, Work, drive
from prm_jax.inference.protocols import Policy, StepScorer
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least
from prm_jax.runtime.errors import UserError
from prm_jax.search.budget import Budget
from prm_jax.search.method import SearchConfig, Task
from prm_jax.search.methods import METHODS, check_models
from prm_jax.search.searching import SearchPlan, search_problem
from prm_jax.search.tree import Tree


class Found(NamedTuple):
  """Holds the result of one problem.

  Attributes:
    failed: why there is no result; '' if there is one.
    chosen: the chosen chain; None if the search failed.
    chains: all chains that ended, the chosen one first; () if it failed.
    tree: every step that was proposed; None if it failed.
    ledger: what was spent, as `Ledger.to_dict`; empty if it failed.
  """

  task: Task
  failed: str
  chosen: Chain | None
  chains: tuple[Chain, ...]
  tree: Tree | None
  ledger: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """Says how a run draws, what it may spend and how much it does together.

  Attributes:
    budget: limits for each problem; without limits the method ends by itself.
    key: key of the random draws, together with the id of each task.
    trees: trees of earlier searches, by the ids of their tasks. The search
      continues a copy and keeps its scores, so policy and PRM must be the same.
      Chain scores are aggregated anew, but the values of MCTS stay as they are.
      The ledger counts only what this run adds.
    concurrent: number of problems that are searched side by side.
    samples_per_round: largest number of samples that a round asks for.
  """

  budget: Budget = dataclasses.field(default_factory=Budget)
  key: str = '0'
  trees: Mapping[str, Tree] = dataclasses.field(default_factory=dict)
  concurrent: Annotated[int, at_least(1)] = 64
  samples_per_round: Annotated[int, at_least(1)] = SAMPLES_PER_ROUND

  def __post_init__(self) -> None:
    checks.check(self)


def run(
  tasks: Sequence[Task],
  policy: Policy,
  prm: StepScorer | None = None,
  method: str = 'best_of_n',
  options: Mapping[str, Any] | None = None,
  config: SearchConfig | None = None,
  how: RunConfig | None = None,
) -> Iterator[Found]:
  """Searches every problem and yields each result as soon as it is there.

  Args:
    tasks: problems with ids of their own.
    prm: None for methods that need none.
    method: a name in `methods.METHODS`.
    options: the method's own settings, by the names of its config's fields.

  Raises:
    UserError: The method is unknown, an option is wrong, a task has no problem
      or a truth that is not text, two tasks share an id, a model is missing or
      does not count the FLOPs that the budget limits, a tree is of another
      problem, or the method cannot work with the aggregate. If a model fails on
      the way, the results so far of the problems in flight are yielded first.
  """
  if method not in METHODS:
    raise UserError(f'method={method!r}: expected one of {", ".join(METHODS)}')
  config, how = config or SearchConfig(), how or RunConfig()
  check_models(method, policy, prm, how.budget)
  chosen = METHODS[method]
  try:
    with checks.below(method):
      own = chosen.config(**(options or {}))
  except TypeError as error:
    raise UserError(f'options of {method}: {error}') from None
  _check_tasks(tasks)
  prm_name = prm.name if prm and chosen.scores else ''
  name = ', '.join(filter(None, [method, policy.name, prm_name]))
  plan = SearchPlan(chosen, own, config, how.budget, how.key, name)

  def start(index: int) -> Work:
    task, tree = tasks[index], None
    if task.id in how.trees:
      tree = Tree.from_dict(how.trees[task.id].to_dict())
    return search_problem(task, plan, tree)

  models = AskedModels(policy=policy, prm=prm)
  for ended in drive(
    range(len(tasks)),
    start,
    models,
    how.concurrent,
    samples_per_round=how.samples_per_round,
  ):
    task = tasks[ended.index]
    if ended.failed:
      yield Found(task, ended.failed, None, (), None, {})
      continue
    about = ended.chains[0].meta['search']
    tree = Tree.from_dict(about['tree'])
    yield Found(task, '', ended.chains[0], ended.chains, tree, about['ledger'])


def _check_tasks(tasks: Sequence[Task]) -> None:
  """Raises UserError if a task cannot be searched, or not beside the others."""
  for task in tasks:
    if not isinstance(task.text, str) or not task.text.strip():
      raise UserError(
        f'the text of task {task.id!r} is {task.text!r}: expected a problem'
      )
    if not isinstance(task.truth, str):
      raise UserError(
        f'the truth of task {task.id!r} is {task.truth!r}: expected text, '
        "or '' if it is unknown"
      )
  for name, count in Counter(task.id for task in tasks).most_common(1):
    if count > 1:
      raise UserError(
        f'{count} tasks have the id {name!r}, and would be searched with the '
        'same draws; give each its own'
      )
