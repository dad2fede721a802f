"""PRM, ORM and majority on the arithmetic domain, for several seeds.

    python -m experiments.prm_vs_orm.run --workdir /tmp/prm_vs_orm

Each seed draws its own problems, misconceptions, chains and weights, and runs
the main job unless it is done. Writes results.json, figure.svg and the table of
README.md beside this file.
"""

from collections.abc import Mapping
from typing import Any

from experiments import command_line
from experiments.runner import Runner
from experiments.tables import mean, percent, table
from prm_jax.evals.suite import NULL
from prm_jax.report import figures
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.workdir import read_results

STYLES = {
  'prm_min': 'prm lead',
  'orm': 'orm',
  'majority': 'vote',
  'random': 'reference',
  NULL: 'reference',
  'oracle': 'reference dashed',
}
METHODS = {
  'prm_min': 'PRM (min)',
  'prm_prod': 'PRM (prod)',
  'orm': 'ORM',
  'weighted_vote': 'weighted vote',
  'majority': 'majority',
  'random': 'random',
  NULL: 'random per text',
  'oracle': 'oracle',
}


def run_seed(runner: Runner, seed: int, variant: str) -> dict[str, Any]:
  """Runs the main job with one seed; returns its manifest and results."""
  flags = (
    f'--config.seed={seed}',
    f'--config.data.arithmetic.solver_seed={seed}',
  )
  config = f'prm_math.py:{variant}' if variant else 'prm_math.py'
  workdir = runner.main(config, f'seed_{seed}', *flags)
  document = read_results(workdir)
  # Folders differ from place to place.
  document['manifest']['command'] = (
    f'python -m prm_jax.main --config configs/{config} --workdir DIR '
    + ' '.join(flags)
  )
  return document


def means(runs: Mapping[str, Any], method: str) -> list[float]:
  """Returns the accuracy of one method for each N, the mean of the seeds."""
  curves = [run['best_of_n'][method]['mean'] for run in runs.values()]
  return [mean(seeds) for seeds in zip(*curves, strict=True)]


def sizes(runs: Mapping[str, Any]) -> list[int]:
  """Returns the values of N."""
  return next(iter(runs.values()))['best_of_n']['n']


def render(document: Mapping[str, Any]) -> str:
  """Makes the table: accuracy by N in percent, and each seed at the last N."""
  runs = document['results']
  n = sizes(runs)
  rows = []
  some = next(iter(runs.values()))['best_of_n']
  for method, name in METHODS.items():
    if method not in some:  # results of before there was the null
      continue
    ends = []
    for run in runs.values():
      curve = run['best_of_n'][method]
      low, high = map(percent, curve['ci95'][-1])
      ends.append(f'{percent(curve["mean"][-1])} [{low}, {high}]')
    rows.append([name, *map(percent, means(runs, method)), '; '.join(ends)])
  heads = ['picked by', *(f'N = {k}' for k in n), f'seeds at N = {n[-1]}']
  return table(heads, rows)


def draw(document: Mapping[str, Any]) -> str:
  """Draws accuracy against N as SVG, the mean of the seeds."""
  runs = document['results']
  series = [
    {
      'key': method,
      'name': METHODS[method],
      'style': style,
      'band': False,
      'ci95': None,
      'mean': means(runs, method),
    }
    for method, style in STYLES.items()
    if method in next(iter(runs.values()))['best_of_n']
  ]
  title = 'Best-of-N accuracy, mean of the seeds'
  return figures.standalone(figures.best_of_n(sizes(runs), series, title))


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(__doc__, __file__, '--workdir', '--seeds')
  parser.add_argument(
    '--variant', default='', help='variant of configs/prm_math.py'
  )
  args = command_line.parse(parser)
  runner = Runner(args.workdir, jobs=1)
  found = {
    str(seed): run_seed(runner, seed, args.variant) for seed in args.seeds
  }
  document = {
    'command': args.command,
    'manifests': {seed: run['manifest'] for seed, run in found.items()},
    'results': {seed: run['results'] for seed, run in found.items()},
  }
  if tuple(args.seeds) == command_line.SEEDS:
    # What the first command of the project's README finds: shown there, and in
    # no table of an experiment.
    tuning = command_line.TUNING_SEED
    document['first_command'] = run_seed(runner, tuning, args.variant)
  (args.output / 'figure.svg').write_text(draw(document))
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
