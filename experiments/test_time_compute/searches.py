"""Runs every method of search on the test problems of one policy and PRM.

    python -m experiments.test_time_compute.searches --policy DIR --prm DIR \
      --output FILE

run.py runs this for every seed and difficulty. The models are opened once; a
method that is in the output file already is not run again.
"""

import argparse
import json
import math
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm_jax import (
  SamplingConfig,
  Scorer,
  TreeScorer,
  load,
  load_policy,
  search,
)
from prm_jax.data.chains import Chain
from prm_jax.data.config import ProblemsConfig
from prm_jax.data.problems import read_problems
from prm_jax.evals import best_of_n, compute
from prm_jax.evals.policy import answer_ids
from prm_jax.inference import loading
from prm_jax.inference.score import aggregate
from prm_jax.jobs.settings import read_settings
from prm_jax.models import TransformerConfig, chain_flops
from prm_jax.runtime import paths
from prm_jax.runtime.workdir import write_json
from prm_jax.search.method import SearchConfig, Task

NS = (1, 2, 4, 8, 16, 32, 64)
AGGREGATE = 'min'
# The methods, with the options of each point of their curves.
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
  """Returns, for each problem, whether one search was right and what it cost.

  A problem for which the search failed is wrong.
  """
  ledgers = [result.ledger for result in found]

  def column(name: str) -> list[float]:
    return [ledger.get(name, 0) for ledger in ledgers]

  return {
    'right': [bool(it.chosen and it.chosen.outcome) for it in found],
    'policy_flops': column('policy_flops'),
    'prm_flops': column('prm_flops'),
    'tokens': column('tokens'),
    'scored_tokens': column('scored_tokens'),
    'failed': sum(bool(it.failed) for it in found),
  }


def ordered(
  tasks: Sequence[Task], found: Sequence[search.Found]
) -> list[search.Found]:
  """Sorts results, which come in the order in which they ended, by task."""
  by_id = {result.task.id: result for result in found}
  return [by_id[task.id] for task in tasks]


class Pool(NamedTuple):
  """64 chains of every problem, from one search by majority.

  A chain that did not come to its end is wrong, states no answer and has the
  worst score.

  Attributes:
    found: the search of each problem.
    ended: the chains of each problem that came to their end.
    correct: [Q, N] whether a chain's answer is right.
    answers: [Q, N] number of a chain's answer, -1 for none.
  """

  found: Sequence[search.Found]
  ended: list[list[Chain]]
  correct: np.ndarray
  answers: np.ndarray


def make_pool(found: Sequence[search.Found]) -> Pool:
  """Arranges the chains of each problem's search as arrays."""
  ended, correct, answers = [], [], []
  for each in found:
    chains = [c for c in each.chains if c.meta['search']['ended']]
    chains.sort(key=lambda chain: chain.meta['search']['node'])
    right = [bool(chain.outcome) for chain in chains]
    ids = answer_ids(each.task.text, [c.answer for c in chains], right)
    missing = NS[-1] - len(chains)
    ended.append(chains)
    correct.append(right + [False] * missing)
    answers.append(ids + [-1] * missing)
  return Pool(found, ended, np.array(correct), np.array(answers))


def chain_scores(pool: Pool, scorer: Scorer, how: str) -> np.ndarray:  # [Q, N]
  """Scores ended chains by one reward model; the others get -inf."""
  scores = np.full(pool.correct.shape, -np.inf)
  for row, chains in zip(scores, pool.ended, strict=True):
    scored = scorer.score_many([(c.problem, c.steps) for c in chains])
    row[: len(scored)] = [
      float(aggregate(np.asarray(s), np.ones(len(s), bool), how))
      for s in scored
    ]
  return scores


def policy_flops(pool: Pool, model: TransformerConfig) -> np.ndarray:  # [Q, K]
  """Returns the FLOPs of writing n of the chains; the problem is read once."""
  rows = []
  for each in pool.found:
    reading = chain_flops(model, 0, each.ledger.get('prompt_tokens', 0))
    writing = (each.ledger.get('policy_flops', 0) - reading) / NS[-1]
    rows.append([reading + n * writing for n in NS])
  return np.array(rows)


def scorer_flops(pool: Pool, scorer: Scorer) -> np.ndarray:  # [Q, K]
  """Returns the expected FLOPs of scoring n random chains, each step once.

  A step that c of the N chains have in common, with all steps before it, is
  read with probability 1 - C(N - c, n) / C(N, n).
  """
  N, fmt = NS[-1], scorer.format
  rows = []
  for chains in pool.ended:
    first = len(fmt.encode_prompt(chains[0].problem)) if chains else 0
    shared: Counter[tuple[str, ...]] = Counter()
    for chain in chains:
      shared.update(chain.steps[: p + 1] for p in range(len(chain.steps)))
    row = np.full(len(NS), chain_flops(scorer.model, 0, first))
    length = {(): first}  # of each prefix, in tokens
    for steps, count in sorted(shared.items(), key=lambda item: len(item[0])):
      size = len(fmt.encode_step(steps[-1], len(steps) == 1))
      before = length[steps[:-1]]
      length[steps] = before + size
      seen = [1 - math.comb(N - count, n) / math.comb(N, n) for n in NS]
      row += np.array(seen) * chain_flops(scorer.model, before, size)
    rows.append(row)
  return np.array(rows)


def best_of_n_curves(
  pool: Pool, prm: Scorer, orm: Scorer, model: TransformerConfig, seed: int
) -> dict[str, Any]:
  """Returns PRM, ORM, both votes and the oracle for every n, from one pool.

  They are exact expectations over all subsets of n chains; votes are means over
  random subsets.
  """
  by_prm = chain_scores(pool, prm, AGGREGATE)
  by_orm = chain_scores(pool, orm, 'last')
  correct, answers = pool.correct, pool.answers
  nothing = np.zeros((len(correct), len(NS)))
  scoring = scorer_flops(pool, prm)
  curves = {
    'best of N, PRM': (
      best_of_n.best_of_n_curve(by_prm, correct, NS),
      scoring,
    ),
    'best of N, ORM': (
      best_of_n.best_of_n_curve(by_orm, correct, NS),
      scorer_flops(pool, orm),
    ),
    'majority': (
      best_of_n.majority_curve(correct, answers, NS, seed),
      nothing,
    ),
    'weighted vote': (
      best_of_n.weighted_vote_curve(
        np.maximum(by_prm, 0.0), correct, answers, NS, seed
      ),
      scoring,
    ),
    'oracle': (best_of_n.oracle_curve(correct, NS), nothing),
  }
  writing = policy_flops(pool, model)
  tokens = (
    np.array([each.ledger.get('tokens', 0) for each in pool.found]) / NS[-1]
  )
  return {
    name: [
      {
        'n': n,
        'right': curve[:, k].tolist(),
        'policy_flops': writing[:, k].tolist(),
        'prm_flops': reading[:, k].tolist(),
        'tokens': (n * tokens).tolist(),
      }
      for k, n in enumerate(NS)
    ]
    for name, (curve, reading) in curves.items()
  }


class Searcher:
  """Searches the test problems of a policy with its PRM."""

  def __init__(self, args: argparse.Namespace, prm: Scorer):
    sampling = SamplingConfig(slots=args.slots, max_tokens=256, kept=args.rows)
    self._policy = load_policy(args.policy, sampling, seed=args.seed)
    self._tree_scorer = TreeScorer(prm, args.rows)
    self._tasks, self._args = read_tasks(args), args

  def search(
    self, method: str, options: Mapping[str, Any]
  ) -> list[search.Found]:
    """Runs one method with some options, from empty caches."""
    # What an earlier method had read would cost this one nothing.
    self._policy.forget()
    self._tree_scorer.forget()
    found = search.run(
      self._tasks,
      self._policy,
      self._tree_scorer,
      method,
      options,
      SearchConfig(aggregate=AGGREGATE),
      search.RunConfig(
        key=f'{self._args.seed}/{method}',
        concurrent=len(self._tasks),
        samples_per_round=self._args.at_once,
      ),
    )
    return ordered(self._tasks, list(found))


def pool_results(
  args: argparse.Namespace, searcher: Searcher, prm: Scorer
) -> dict[str, Any]:
  """Samples the pool; returns its curves, and best of n by each PRM."""
  pool = make_pool(searcher.search('majority', {'samples': NS[-1]}))
  model = loading.read_description(paths.open_path(args.policy)).model
  orm = load(f'{args.prm}/orm')
  curves = best_of_n_curves(pool, prm, orm, model, args.seed)
  prms = {"the policy's chains": prm}
  if args.prm_of_solver:
    prms["the solver's chains"] = load(args.prm_of_solver)
  curves['_over_optimisation'] = {
    name: compute.over_optimisation(
      chain_scores(pool, scorer, AGGREGATE), pool.correct, NS
    )
    for name, scorer in prms.items()
  }
  return curves


def read_tasks(args: argparse.Namespace) -> list[Task]:
  """Reads the test problems of the policy's own data, or those of a file."""
  config = json.loads((pathlib.Path(args.policy) / 'config.json').read_text())
  trained = read_settings(config)
  if args.problems_file:
    problems = ProblemsConfig(kind='file', path=args.problems_file)
  else:
    problems = ProblemsConfig(
      train_problems=trained.data.train_problems,
      dev_problems=trained.data.dev_problems,
      test_problems=trained.data.test_problems,
      arithmetic=trained.data.arithmetic,
    )
  problems = read_problems(problems, 'test', trained.seed)[: args.problems]
  return [Task(p.id, p.text, p.truth, p.dataset) for p in problems]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--policy', required=True, help="the policy's workdir")
  parser.add_argument('--prm', required=True, help="the PRM's workdir")
  parser.add_argument(
    '--prm-of-solver', help='workdir of a PRM trained on other chains'
  )
  parser.add_argument('--output', type=pathlib.Path, required=True)
  parser.add_argument('--problems', type=int, default=200)
  parser.add_argument(
    '--problems-file', default='', help='problems to search instead'
  )
  parser.add_argument('--slots', type=int, default=64)
  parser.add_argument('--at-once', type=int, default=4096)
  parser.add_argument(
    '--rows', type=int, default=1024, help='prefixes kept in each cache'
  )
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()

  prm = load(args.prm)
  searcher = Searcher(args, prm)
  done = {}
  if args.output.exists():
    done = json.loads(args.output.read_text())
  if 'majority' not in done:
    done |= pool_results(args, searcher, prm)
    write_json(args.output, done)
  for method, points in POINTS.items():
    ended = done.setdefault(method, [])
    for options in points[len(ended) :]:
      ended.append({**options, **point(searcher.search(method, options))})
      write_json(args.output, done)
      print(method, options, flush=True)


if __name__ == '__main__':
  main()
