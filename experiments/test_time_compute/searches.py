"""Every method of search on the test problems of one policy, PRM and ORM.

    python -m experiments.test_time_compute.searches --policy DIR --prm DIR \
      --prm-of-solver DIR --output FILE

What run.py runs for every seed and difficulty. Models are opened once; a method
that is in the file already is not run again.
"""

import argparse
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax import loading, manifest, search
from prm_jax.data.problems import read_problems
from prm_jax.evals import best_of_n, compute
from prm_jax.evals.policy import answer_ids
from prm_jax.generate import SamplingConfig
from prm_jax.policy import Scoring
from prm_jax.search.method import SearchConfig, Task
from prm_jax.tree_scorer import TreeScorer

NS = (1, 2, 4, 8, 16, 32, 64)
AGGREGATE = 'min'
# Methods with the options of each point of their curve.
POINTS: dict[str, Sequence[Mapping[str, Any]]] = {
  'beam': [{'samples': n, 'width': 4} for n in (4, 16, 64)],
  'dvts': [{'samples': n, 'width': 4} for n in (16, 64)],
  'lookahead': [{'samples': n, 'width': 4, 'steps': 1} for n in (4, 16)],
  'rebase': [{'samples': n} for n in (4, 16, 64)],
  'mcts': [{'simulations': n} for n in (4, 16, 64)],
  'refine': [{'samples': n, 'rounds': 4} for n in (1, 4, 16)],
  'early_rejection': [{'samples': n} for n in (4, 16, 64)],
}


def point(found: Sequence[search.Found]) -> dict[str, Any]:
  """One method at one budget: per problem whether it was right, and its cost.

  A problem of which nothing came is wrong.
  """
  ledgers = [each.ledger for each in found]

  def column(name: str) -> list[float]:
    return [ledger.get(name, 0) for ledger in ledgers]

  return {
    'right': [bool(each.chosen and each.chosen.outcome) for each in found],
    'policy_flops': column('policy_flops'),
    'prm_flops': column('prm_flops'),
    'tokens': column('tokens'),
    'scored_tokens': column('scored_tokens'),
    'failed': sum(bool(each.failed) for each in found),
  }


def ordered(
  tasks: Sequence[Task], found: Sequence[search.Found]
) -> list[search.Found]:
  """In the order of the tasks, not in that in which they ended."""
  by_id = {each.task.id: each for each in found}
  return [by_id[task.id] for task in tasks]


def best_of_n_curves(
  found: Sequence[search.Found], orm: TreeScorer, seed: int
) -> dict[str, Any]:
  """PRM, ORM, both votes and chance for every n, from one pool of 64 chains.

  Exact expectations over all n-subsets (votes are resampled); a chain costs
  what the pool's chains cost in the mean, its problem read once.
  """
  N = NS[-1]
  correct, answers, by_prm, by_orm, orm_flops = [], [], [], [], []
  for each in found:
    chains = sorted(each.chains, key=lambda c: c.meta['search']['node'])
    right = [bool(chain.outcome) for chain in chains]
    missing = N - len(chains)  # did not end: wrong, and worst
    ids = answer_ids(each.task.text, [c.answer for c in chains], right)
    correct.append(right + [False] * missing)
    answers.append(ids + [-1] * missing)
    scores = [chain.meta['search']['chain_score'] for chain in chains]
    by_prm.append(scores + [-math.inf] * missing)
    scored = orm.score([Scoring(c.problem, c.steps) for c in chains])
    by_orm.append([s.scores[-1] for (s,) in scored] + [-math.inf] * missing)
    orm_flops.append(sum(s.flops for (s,) in scored))
  correct, answers = np.array(correct), np.array(answers)
  by_prm, by_orm = np.array(by_prm), np.array(by_orm)
  curves = {
    'best of N, PRM': best_of_n.best_of_n_curve(by_prm, correct, NS),
    'best of N, ORM': best_of_n.best_of_n_curve(by_orm, correct, NS),
    'majority': best_of_n.majority_curve(correct, answers, NS, seed),
    'weighted vote': best_of_n.weighted_vote_curve(
      np.maximum(by_prm, 0.0), correct, answers, NS, seed
    ),
    'oracle': best_of_n.oracle_curve(correct, NS),
  }
  pool = point(found)
  costs = {
    'best of N, PRM': pool['prm_flops'],
    'best of N, ORM': orm_flops,
    'majority': [0.0] * len(found),
    'weighted vote': pool['prm_flops'],
    'oracle': [0.0] * len(found),
  }
  share = np.array(NS) / N
  return {
    name: [
      {
        'n': n,
        'right': curve[:, k].tolist(),
        'policy_flops': (np.array(pool['policy_flops']) * share[k]).tolist(),
        'prm_flops': (np.array(costs[name]) * share[k]).tolist(),
        'tokens': (np.array(pool['tokens']) * share[k]).tolist(),
      }
      for k, n in enumerate(NS)
    ]
    for name, curve in curves.items()
  }


def over_optimisation(
  found: Sequence[search.Found], prm: TreeScorer
) -> dict[str, Any]:
  """Best of n as n grows, by one PRM over a pool of chains."""
  correct, scores = [], []
  for each in found:
    missing = NS[-1] - len(each.chains)
    scored = prm.score([Scoring(c.problem, c.steps) for c in each.chains])
    scores.append([min(s.scores) for (s,) in scored] + [-math.inf] * missing)
    right = [bool(chain.outcome) for chain in each.chains]
    correct.append(right + [False] * missing)
  return compute.over_optimisation(np.array(scores), np.array(correct), NS)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--policy', required=True, help='its --workdir')
  parser.add_argument('--prm', required=True, help='its --workdir')
  parser.add_argument(
    '--prm-of-solver', required=True, help='of one trained on other chains'
  )
  parser.add_argument('--output', type=pathlib.Path, required=True)
  parser.add_argument('--problems', type=int, default=200)
  parser.add_argument('--problems-file', default='', help='instead of the test')
  parser.add_argument('--slots', type=int, default=64)
  parser.add_argument('--at-once', type=int, default=4096)
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()

  tasks = read_tasks(args)
  sampling = SamplingConfig(slots=args.slots, max_tokens=256, kept=1024)
  policy = loading.load_policy(args.policy, sampling, seed=args.seed)
  prm = TreeScorer(loading.load(args.prm), name='prm')
  orm = TreeScorer(loading.load(f'{args.prm}/orm'), name='orm')
  done = {}
  if args.output.exists():
    done = json.loads(args.output.read_text())

  def run(method: str, options: Mapping[str, Any]) -> list[search.Found]:
    found = search.run(
      tasks,
      policy,
      prm,
      method,
      options,
      SearchConfig(aggregate=AGGREGATE),
      key=f'{args.seed}/{method}',
      concurrent=len(tasks),
      at_once=args.at_once,
    )
    return ordered(tasks, list(found))

  if 'majority' not in done:
    pool = run('best_of_n', {'samples': NS[-1]})
    done |= best_of_n_curves(pool, orm, args.seed)
    naive = TreeScorer(loading.load(args.prm_of_solver), name='naive')
    done['_over_optimisation'] = {
      "the policy's chains": over_optimisation(pool, prm),
      "the solver's chains": over_optimisation(pool, naive),
    }
    manifest.write_json(args.output, done)
  for method, points in POINTS.items():
    ended = done.setdefault(method, [])
    for options in points[len(ended) :]:
      ended.append({**options, **point(run(method, options))})
      manifest.write_json(args.output, done)
      print(method, options, flush=True)


def read_tasks(args: argparse.Namespace) -> list[Task]:
  """The test problems of the policy's own data, or those of a file."""
  config = json.loads((pathlib.Path(args.policy) / 'config.json').read_text())
  section = {'kind': 'file', 'root': '', 'path': args.problems_file}
  if not args.problems_file:
    section = config['data'] | {'split': 'test'}
  problems = read_problems(section, config['seed'])[: args.problems]
  return [Task(p.id, p.text, p.truth, p.dataset) for p in problems]


if __name__ == '__main__':
  main()
