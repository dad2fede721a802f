"""Accuracy against compute for every method of search.

    pip install -e '.[experiments]'
    python -m experiments.test_time_compute.run --workdir /tmp/test_time_compute

For each seed and difficulty of the arithmetic domain: a policy is trained and
sampled, its chains are labelled by the verifier, a PRM and an ORM are trained
on them, and every method searches the same test problems (`searches.py`). What
is there already is not made again. Writes results.json, figure.svg and the
tables of README.md beside this file.
"""

import argparse
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.arithmetic import domain_flags, row_flags
from experiments.runner import Runner
from experiments.test_time_compute import figure, tables
from prm_jax.report import readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
COMMAND = 'python -m experiments.test_time_compute.run --workdir DIR'
SEEDS = (0, 1, 2)
# Operations of a problem -> updates of its policy and of its reward models. In
# longer problems the operand that is next is harder to find: with 600 updates a
# policy of 8 operations guesses.
OPERATIONS = {3: (300, 500), 5: (600, 1000), 7: (900, 1200)}
WITH_PRM_OF_SOLVER = (0, 5)  # seed and operations: to see what it is fooled by


def train(
  runner: Runner, seed: int, operations: int, quick: bool
) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path | None]:
  """The workdirs of a policy, of a PRM on its chains, of one on the solver's.

  The last, of one seed and difficulty, has seen no chain that is not rightly
  formed.
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
    # The policy's malformed chains have more and shorter steps.
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
  """What `searches.py` found for one seed and difficulty."""
  policy, prm, by_solver = train(runner, seed, operations, quick)
  path = runner.workdir / f'seed_{seed}/operations_{operations}/searches.json'
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


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--jobs', type=int, default=2, help='side by side')
  parser.add_argument('--seeds', type=int, nargs='+', default=SEEDS)
  parser.add_argument(
    '--operations', type=int, nargs='+', choices=OPERATIONS, default=OPERATIONS
  )
  parser.add_argument('--problems', type=int, default=100, help='of each test')
  parser.add_argument(
    '--quick', action='store_true', help='to see that it runs'
  )
  parser.add_argument('--output', type=pathlib.Path, default=HERE)
  args = parser.parse_args()
  runner = Runner(args.workdir, args.jobs)
  pairs = [(s, k) for s in args.seeds for k in args.operations]
  calls = [(runner, s, k, args.problems, args.quick) for s, k in pairs]
  searched = dict(zip(pairs, runner.all(search, calls), strict=True))
  write(args.output, args.seeds, args.operations, searched)


def render(found: Mapping[str, Any]) -> str:
  """All tables, Markdown."""
  return tables.render(found['results'])


def write(
  output: pathlib.Path,
  seeds: Sequence[int],
  operations: Sequence[int],
  searched: dict[tuple[int, int], dict],
) -> None:
  """results.json, the figure and the README's tables."""
  found = {
    'command': COMMAND,
    'git_commit': manifest.git_commit(),
    'seeds': list(seeds),
    'results': {
      str(k): tables.summarise([searched[seed, k] for seed in seeds])
      for k in operations
    },
  }
  manifest.write_json(output / 'results.json', found)
  figure.draw(found['results'], output / 'figure.svg')
  text = render(found)
  if (output / 'README.md').exists():
    readme_table.fill(output / 'README.md', text)
  print(text)


if __name__ == '__main__':
  main()
