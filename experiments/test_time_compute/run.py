"""Accuracy against compute, for every method of search.

    pip install -e '.[experiments]'
    python -m experiments.test_time_compute.run --workdir /tmp/test_time_compute

For each seed and difficulty of the arithmetic domain a policy is trained and
sampled, the verifier labels its chains, a PRM and an ORM are trained on them,
and every method searches the same test problems (`searches.py`). Writes
results.json, figure.svg and the tables of README.md beside this file.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import command_line
from experiments.arithmetic import domain_flags, row_flags
from experiments.runner import Runner
from experiments.test_time_compute import figure, tables
from prm_jax.runtime.errors import exit_on_user_error

# Operations of a problem -> updates of its policy and of its reward models. The
# longer a problem, the harder it is to find the operand that comes next: a
# policy of 8 operations still guesses it after 600 updates.
OPERATIONS = {3: (300, 500), 5: (600, 1000), 7: (900, 1200)}
# Seed and operations for which a PRM is trained on the solver's chains, too.
WITH_PRM_OF_SOLVER = (1, 5)


def train(
  runner: Runner, seed: int, operations: int, quick: bool
) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path | None]:
  """Trains the models of one seed and difficulty.

  Returns:
    The workdirs of the policy, of the PRM on its chains and, for one seed and
    difficulty, of a PRM on the solver's chains, which are all well formed.
  """
  folder = f'seed_{seed}/operations_{operations}'
  updates = (40, 40) if quick else OPERATIONS[operations]
  imitation, rewards = (f'--config.train.steps={n}' for n in updates)
  policy = runner.main(
    'policy_math.py',
    f'{folder}/policy',
    *domain_flags(seed, operations, 'data'),
    *row_flags(operations, end=True),
    '--config.data.test_problems=200',
    imitation,
  )
  samples = runner.main(
    'sample_math.py',
    f'{folder}/samples',
    *domain_flags(seed, operations, 'problems'),
    '--config.problems.test_problems=200',
    f'--config.problems.train_problems={64 if quick else 4096}',
    '--config.samples=4',
    '--config.policy.kind=workdir',
    f'--config.policy.workdir={policy}',
  )
  labels = runner.main(
    'label_math.py:verifier',
    f'{folder}/labels',
    f'--config.seed={seed}',
    '--config.chains.kind=workdir',
    f'--config.chains.workdir={samples}',
  )
  reward = [
    *domain_flags(seed, operations, 'data'),
    *row_flags(operations, end=False),
    '--config.data.batch_size=8',
    '--config.data.test_problems=200',
    '--config.data.test_samples=16',
    '--config.evaluation.ns=1,4,16',
    rewards,
  ]
  prm = runner.main(
    'prm_math.py',
    f'{folder}/prm',
    *reward,
    # Malformed chains of the policy have more and shorter steps.
    '--config.data.max_steps_per_row=64',
    f'--config.data.labels={labels}',
  )
  by_solver = None
  if (seed, operations) == WITH_PRM_OF_SOLVER:
    by_solver = runner.main(
      'prm_math.py',
      f'{folder}/prm_of_solver',
      *reward,
      '--config.orm_baseline=False',
    )
  return policy, prm, by_solver


def search(
  runner: Runner, seed: int, operations: int, problems: int, quick: bool
) -> dict:
  """Runs `searches.py` for one seed and difficulty; returns what it found."""
  policy, prm, by_solver = train(runner, seed, operations, quick)
  folder = runner.workdir / f'seed_{seed}/operations_{operations}'
  path = folder / f'searches_of_{problems}.json'
  runner.run(
    f'seed_{seed}/operations_{operations}/searches',
    '-m',
    'experiments.test_time_compute.searches',
    f'--policy={policy}',
    f'--prm={prm}',
    *([f'--prm-of-solver={by_solver}'] if by_solver else []),
    f'--problems={problems}',
    f'--seed={seed}',
    f'--output={path}',
  )
  return json.loads(path.read_text())


def render(document: Mapping[str, Any]) -> str:
  """Makes all tables."""
  return tables.render(document)


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--quick'
  )
  parser.add_argument(
    '--operations', type=int, nargs='+', choices=OPERATIONS, default=OPERATIONS
  )
  parser.add_argument(
    '--problems', type=int, default=100, help='problems of each test'
  )
  args = command_line.parse(parser)
  runner = Runner(args.workdir, args.jobs)
  pairs = [(s, k) for s in args.seeds for k in args.operations]
  calls = [(runner, s, k, args.problems, args.quick) for s, k in pairs]
  searched = dict(zip(pairs, runner.all(search, calls), strict=True))
  results = {
    str(k): tables.summarise([searched[seed, k] for seed in args.seeds])
    for k in args.operations
  }
  document = command_line.about(args) | {'results': results}
  figure.draw(results, args.output / 'figure.svg')
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
