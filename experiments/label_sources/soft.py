"""Does the last step of a PRM on soft rollout labels choose as an ORM does?

    python -m experiments.label_sources.soft --workdir /tmp/label_sources

The target of a chain's last step is then the chain's outcome, which is all that
an ORM learns. Both are trained on the same chains for few and for many updates,
with and without the steps after the first error, and rank the same samples.
Writes soft.json and the table of SOFT.md beside this file. With the workdir of
run.py it takes the labels that are there.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import ablations, command_line
from experiments.label_sources.run import VALUES, label_all, train_flags
from experiments.runner import Runner, read_results
from prm_jax.evals.suite import NULL
from prm_jax.runtime.errors import exit_on_user_error

UPDATES = (400, 1600, 6400)
QUICK = (10, 20, 40)
WITHIN, POOLED = 'AUC of chains within problems', 'AUC of chains'
CHOICE, LEAD = 'best of 64', 'best of 64 over random per text'
# Steps after the first error -> flags of the PRM.
SOFT = {
  'kept': VALUES,
  'masked': ('--config.targets.after_first_error=mask',),
}
SCORES = {'last': 'prm_last', 'min': 'prm_min', 'prod': 'prm_prod'}
ORM = 'ORM'


def train(
  runner: Runner, seed: int, labels: pathlib.Path, updates: int, after: str
) -> pathlib.Path:
  """Trains a PRM on soft labels, the first time with an ORM beside it."""
  return runner.main(
    'prm_math.py',
    f'seed_{seed}/soft_{after}_{updates}',
    *train_flags(seed, labels, 0),
    *SOFT[after],
    # The ORM is the same for both.
    f'--config.orm_baseline={after == "kept"}',
    f'--config.train.steps={updates}',
    f'--config.train.checkpoint_every={updates}',
  )


def read(workdir: pathlib.Path, method: str) -> dict[str, Any]:
  """Reads how one score of chains ranks them, and what it chooses."""
  results = read_results(workdir)
  ranks, curves = results['ranking'][method], results['best_of_n']
  within, curve = ranks['within_problem'], curves[method]
  return {
    WITHIN: {'value': within['value'], 'ci95': within['ci95']},
    POOLED: {'value': ranks['auc'], 'ci95': ranks['ci95']},
    CHOICE: _last(curve),
    LEAD: _last(curve['over_null']),
    f'random per text, {CHOICE}': _last(curves[NULL]),
  }


def _last(curve: Mapping[str, Any]) -> dict[str, Any]:
  return {'value': curve['mean'][-1], 'ci95': curve['ci95'][-1]}


def run_seed(runner: Runner, seed: int, quick: bool) -> dict[str, Any]:
  """Labels and trains with one seed: row -> measures."""
  labels = label_all(runner, seed, ('rollouts',))['rollouts']
  updates = QUICK if quick else UPDATES
  calls = [(runner, seed, labels, n, after) for n in updates for after in SOFT]
  folders = dict(
    zip(
      [(n, after) for *_, n, after in calls],
      runner.all(train, calls),
      strict=True,
    )
  )
  found = {}
  for n in updates:
    found[f'{n:,} updates: {ORM}'] = read(folders[n, 'kept'], 'orm')
    for after in SOFT:
      for name, method in SCORES.items():
        row = f'{n:,} updates: soft, later steps {after}, {name}'
        found[row] = read(folders[n, after], method)
  return found


def render(document: Mapping[str, Any]) -> str:
  """Makes the table: the mean of the seeds and each of them, in percent."""
  return ablations.render(document)


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--quick'
  )
  args = command_line.parse(parser)
  runner = Runner(args.workdir, args.jobs)
  runs: dict[str, dict[str, Any]] = {}
  for seed in args.seeds:
    for row, measured in run_seed(runner, seed, args.quick).items():
      runs.setdefault(row, {})[str(seed)] = measured
  document = command_line.about(args) | {'thing': 'chains by', 'runs': runs}
  command_line.write(
    args.output, document, render(document), 'soft.json', 'SOFT.md'
  )


if __name__ == '__main__':
  main()
