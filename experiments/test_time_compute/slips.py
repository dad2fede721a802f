"""When does a beam of 4 chains reach best of 16?

    python -m experiments.test_time_compute.slips --workdir /tmp/slips

The policy is the solver of the arithmetic domain, which needs no training. Its
errors are slips, which another sample repairs, or wrong beliefs, which most
samples share. Exact judges choose first, then PRMs that are trained on the
solver's chains. Writes slips.json and the table of SLIPS.md beside this file.
"""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import command_line
from experiments.arithmetic import chains_per_row, domain_flags, row_flags
from experiments.runner import Runner
from experiments.tables import (
  mean,
  mean_and_seeds,
  percent,
  points,
  points_between,
  table,
)
from prm_jax import TreeScorer, load, search
from prm_jax.data.config import ProblemsConfig
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.data.problems import read_problems
from prm_jax.evals import best_of_n, bootstrap, nulls
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import StepScorer
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.runtime import workdir as workdir_lib
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.workdir import write_json
from prm_jax.search.method import SearchConfig, Task

POOL = 64  # chains from which best of n is computed
WIDTH = 4
LEAD = 'beam with 4 minus best of 16'
MEASURES = (
  *('one chain', 'best of 4', 'best of 16', 'beam with 4', 'beam with 16'),
  'random per text, best of 16',
)
BY_STEPS, BY_VALUE, BY_PRM = 'exact steps', 'exact value', 'PRM'


class Setting(NamedTuple):
  """The solver's errors.

  Attributes:
    operations: steps of a chain.
    slip: probability that a step slips, in one sample of it only.
    wrong_facts: share of the facts that the solver believes wrongly; it uses a
      wrong belief in three of four samples.
  """

  operations: int
  slip: float
  wrong_facts: float = 0.0

  @property
  def name(self) -> str:
    beliefs = f', {100 * self.wrong_facts:g}% wrong beliefs'
    return (
      f'{self.operations} steps, {100 * self.slip:g}% slips'
      f'{beliefs if self.wrong_facts else ""}'
    )

  def domain(self, seed: int) -> ArithmeticConfig:
    return ArithmeticConfig(
      operations=self.operations,
      slip=self.slip,
      wrong_facts=self.wrong_facts,
      solver_seed=seed,
    )


SLIPS_10, SLIPS_20 = Setting(10, 0.2), Setting(20, 0.1)
# The domain of run.py, where errors are systematic.
SYSTEMATIC = tuple(Setting(k, 0.03, 0.18) for k in (3, 5, 7))
EXACT = (
  *SYSTEMATIC,
  *(Setting(10, slip) for slip in (0.05, 0.1, 0.2, 0.3)),
  *(Setting(20, slip) for slip in (0.025, 0.05, 0.1, 0.2)),
  # From slips to beliefs, at about one rate of errors in single chains.
  *(Setting(10, slip, w) for slip, w in ((0.15, 0.06), (0.1, 0.12))),
  Setting(10, 0.03, 0.18),
)
# Settings in which a PRM judges -> its updates.
LEARNED = {SYSTEMATIC[1]: 800, SLIPS_10: 800, SLIPS_20: 800}


def whole_chains(setting: Setting, samples: int) -> float:
  """Returns the probability that one of n chains has no slip at all."""
  right = (1 - setting.slip) ** setting.operations
  return 1 - (1 - right) ** samples


def whole_beam(setting: Setting, width: int) -> float:
  """Returns the probability that no step slips in all samples of a beam."""
  return (1 - setting.slip**width) ** setting.operations


def read_tasks(setting: Setting, seed: int, count: int) -> list[Task]:
  """Draws the test problems of a seed."""
  problems = ProblemsConfig(
    test_problems=count, arithmetic=setting.domain(seed)
  )
  return [
    Task(p.id, p.text, p.truth, p.dataset)
    for p in read_problems(problems, 'test', seed)
  ]


def run_search(
  tasks: Sequence[Task],
  models: tuple[SolverPolicy, StepScorer],
  seed: int,
  method: str,
  **options: int,
) -> list[search.Found]:
  """Searches all problems by the lowest step; results in the tasks' order.

  Raises:
    SystemExit: a search failed.
  """
  found = {
    each.task.id: each
    for each in search.run(
      tasks,
      *models,
      method,
      options,
      SearchConfig(aggregate='min'),
      search.RunConfig(key=f'{seed}/{method}', concurrent=len(tasks)),
    )
  }
  for each in found.values():
    if each.failed:
      raise SystemExit(f'error: {method} failed: {each.failed}')
  return [found[task.id] for task in tasks]


def measure(
  setting: Setting, seed: int, judge: StepScorer, problems: int
) -> dict[str, Any]:
  """Searches the problems of one seed with one judge.

  Returns:
    name of a measure -> `value` and `ci95` over problems; `tokens`, those that
    the policy writes for a problem, by method.
  """
  tasks = read_tasks(setting, seed, problems)
  models = SolverPolicy(setting.domain(seed), seed), judge

  def right(found: Sequence[search.Found]) -> np.ndarray:
    return np.array([float(bool(it.chosen.outcome)) for it in found])

  def tokens(found: Sequence[search.Found]) -> float:
    return float(np.mean([it.ledger['tokens'] for it in found]))

  beams = {
    n: run_search(tasks, models, seed, 'beam', samples=n, width=WIDTH)
    for n in (4, 16)
  }
  pool = run_search(tasks, models, seed, 'best_of_n', samples=POOL)
  chains = [it.chains for it in pool]
  scores = np.array(
    [[c.meta['search']['chain_score'] for c in row] for row in chains]
  )
  correct = np.array([[bool(c.outcome) for c in row] for row in chains])
  texts = np.array([_number([c.steps for c in row]) for row in chains])
  best = best_of_n.best_of_n_curve(scores, correct, (1, 4, 16))
  null = nulls.random_per_text_curve(texts, correct, (16,))[:, 0]
  by_name = dict(
    zip(
      MEASURES,
      (*best.T, *(right(found) for found in beams.values()), null),
      strict=True,
    )
  )
  by_name[LEAD] = by_name['beam with 4'] - by_name['best of 16']
  measured: dict[str, Any] = {}
  for name, values in by_name.items():
    value, low, high = bootstrap.mean_ci(values, seed)
    measured[name] = {'value': value, 'ci95': [low, high]}
  measured['tokens'] = {
    'beam with 4': tokens(beams[4]),
    'best of 16': tokens(pool) * 16 / POOL,
  }
  return measured


def _number(texts: Sequence[tuple[str, ...]]) -> list[int]:
  """Numbers equal texts alike."""
  ids: dict[tuple[str, ...], int] = {}
  return [ids.setdefault(text, len(ids)) for text in texts]


def train(
  runner: Runner, setting: Setting, seed: int, quick: bool
) -> tuple[pathlib.Path, dict[str, float]]:
  """Trains a PRM on chains of the solver; returns its workdir and its F1."""
  k = setting.operations
  folder = f'seed_{seed}/prm_{k}_{setting.slip}_{setting.wrong_facts}'
  path = runner.main(
    'prm_math.py',
    folder,
    *domain_flags(seed, k, 'data'),
    *row_flags(k, end=False),
    f'--config.data.arithmetic.slip={setting.slip}',
    f'--config.data.arithmetic.wrong_facts={setting.wrong_facts}',
    f'--config.data.batch_size={32 // chains_per_row(k)}',
    f'--config.data.train_problems={128 if quick else 4096}',
    '--config.data.test_problems=50',
    '--config.data.test_samples=4',
    '--config.evaluation.ns=1,4',
    '--config.orm_baseline=False',
    f'--config.train.steps={40 if quick else LEARNED[setting]}',
    f'--config.train.checkpoint_every={40 if quick else LEARNED[setting]}',
  )
  results = workdir_lib.read_results(path)['results']
  return path, {
    'value': results['localisation']['arithmetic']['f1'],
    'ci95': results['localisation']['arithmetic']['ci95'],
  }


def kept(path: pathlib.Path, make: Callable[[], Any]) -> Any:
  """Reads what an earlier command measured, or measures and keeps it."""
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, make())
  return json.loads(path.read_text())


def run_seed(runner: Runner, seed: int, quick: bool) -> dict[str, Any]:
  """Runs all settings and judges of a seed: name -> measures."""
  problems = 16 if quick else 200
  found = {}

  def add(setting: Setting, judge: str, make: Callable[[], Any]) -> None:
    name = f'{setting.name}: {judge}'
    file = runner.workdir / f'seed_{seed}_of_{problems}' / f'{name}.json'
    found[name] = kept(file, make)
    print(f'seed {seed}, {name}: done', flush=True)

  for setting in EXACT[:: 4 if quick else 1]:
    for judge, kind in ((BY_STEPS, 'steps'), (BY_VALUE, 'value')):
      exact = ExactScorer(setting.domain(seed), kind)
      add(
        setting, judge, lambda s=setting, j=exact: measure(s, seed, j, problems)
      )
  for setting in LEARNED:
    path, f1 = train(runner, setting, seed, quick)
    add(
      setting,
      BY_PRM,
      lambda s=setting, p=path, f=f1: (
        measure(s, seed, TreeScorer(load(p), 1024), problems)
        | {'first-error F1': f}
      ),
    )
  return found


def render(document: Mapping[str, Any]) -> str:
  """Makes the table, a row for each setting and judge."""
  closed = {s.name: s for s in EXACT if not s.wrong_facts}
  rows = []
  for name, seeds in document['runs'].items():
    runs = list(seeds.values())
    leads = [run[LEAD] for run in runs]
    setting = closed.get(name.split(': ')[0])
    rows.append(
      [
        name,
        *(percent(mean([run[m]['value'] for run in runs])) for m in MEASURES),
        points(mean([it['value'] for it in leads])),
        '; '.join(
          f'{points(it["value"])} ({points_between(it["ci95"])})'
          for it in leads
        ),
        f'{percent(whole_chains(setting, 16))}, '
        f'{percent(whole_beam(setting, WIDTH))}'
        if setting
        else '',
        mean_and_seeds([run['first-error F1']['value'] for run in runs])
        if 'first-error F1' in runs[0]
        else '',
      ]
    )
  heads = [
    'errors: judge',
    *MEASURES,
    f'{LEAD}, points',
    'each seed and its 95% interval over problems',
    'no step wrong, closed form: best of 16, beam with 4',
    'first-error F1 of the PRM',
  ]
  return table(heads, rows)


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--quick'
  )
  args = command_line.parse(parser)
  runner = Runner(args.workdir, args.jobs)
  calls = [(runner, seed, args.quick) for seed in args.seeds]
  runs: dict[str, dict[str, Any]] = {}
  for seed, found in zip(args.seeds, runner.all(run_seed, calls), strict=True):
    for name, measured in found.items():
      runs.setdefault(name, {})[str(seed)] = measured
  document = command_line.about(args) | {'runs': runs}
  command_line.write(
    args.output, document, render(document), 'slips.json', 'SLIPS.md'
  )


if __name__ == '__main__':
  main()
