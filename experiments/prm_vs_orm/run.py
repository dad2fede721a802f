"""PRM against ORM and majority on the arithmetic domain, three seeds.

    python experiments/prm_vs_orm/run.py --workdir /tmp/prm_vs_orm

Each seed draws its own problems, misconceptions, chains and weights, and runs
the main job; a run that is there already is not repeated. Writes results.json,
figure.svg and the table of README.md beside this file.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from prm_jax.report import figures, readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
SEEDS = (0, 1, 2)
STYLES = {
  'prm_min': 'prm lead',
  'orm': 'orm',
  'majority': 'vote',
  'random': 'reference',
  'oracle': 'reference dashed',
}
METHODS = {
  'prm_min': 'PRM (min)',
  'prm_prod': 'PRM (prod)',
  'orm': 'ORM',
  'weighted_vote': 'weighted vote',
  'majority': 'majority',
  'random': 'random',
  'oracle': 'oracle',
}


def run_seed(seed: int, workdir: pathlib.Path, variant: str) -> dict:
  """The results of one seed, trained here unless it is done."""
  folder = workdir.absolute() / f'seed_{seed}'
  results = folder / 'results.json'
  if not manifest.is_done(folder):
    config = 'configs/prm_math.py'
    subprocess.run(
      [
        sys.executable,
        '-m',
        'prm_jax.main',
        f'--config={config}:{variant}' if variant else f'--config={config}',
        f'--workdir={folder}',
        f'--config.seed={seed}',
        f'--config.data.arithmetic.solver_seed={seed}',
      ],
      check=True,
      cwd=ROOT,
    )
  document = json.loads(results.read_text())
  document['manifest']['command'] = (
    'python -m prm_jax.main --config configs/prm_math.py --workdir DIR '
    f'--config.seed={seed} --config.data.arithmetic.solver_seed={seed}'
  )
  return document


def render(document: dict[str, dict]) -> str:
  """Markdown: accuracy in percent by N, each seed and the mean of seeds."""
  runs = document['results']
  n = next(iter(runs.values()))['best_of_n']['n']
  last = n[-1]
  lines = [
    '| picked by | ' + ' | '.join(f'N = {k}' for k in n) + ' | seeds at N = '
    f'{last} |',
    '| --- |' + ' --- |' * (len(n) + 1),
  ]
  for key, name in METHODS.items():
    curves = [run['best_of_n'][key] for run in runs.values()]
    means = [
      sum(c['mean'][i] for c in curves) / len(curves) for i in range(len(n))
    ]
    seeds = '; '.join(
      f'{100 * c["mean"][-1]:.1f} [{100 * c["ci95"][-1][0]:.1f}, '
      f'{100 * c["ci95"][-1][1]:.1f}]'
      for c in curves
    )
    cells = ' | '.join(f'{100 * mean:.1f}' for mean in means)
    lines.append(f'| {name} | {cells} | {seeds} |')
  return '\n'.join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--variant', default='', help='of configs/prm_math.py')
  parser.add_argument('--seeds', type=int, nargs='+', default=SEEDS)
  parser.add_argument('--output', type=pathlib.Path, default=HERE)
  args = parser.parse_args()

  documents = {
    str(seed): run_seed(seed, args.workdir, args.variant) for seed in args.seeds
  }
  runs = {seed: doc['results'] for seed, doc in documents.items()}
  n = runs[str(args.seeds[0])]['best_of_n']['n']
  document = {
    'command': 'python experiments/prm_vs_orm/run.py --workdir DIR',
    'manifests': {seed: doc['manifest'] for seed, doc in documents.items()},
    'results': runs,
  }
  manifest.write_json(args.output / 'results.json', document)
  series = [
    {
      'key': key,
      'name': METHODS[key],
      'style': STYLES[key],
      'band': False,
      'ci95': None,
      'mean': [
        sum(run['best_of_n'][key]['mean'][i] for run in runs.values())
        / len(runs)
        for i in range(len(n))
      ],
    }
    for key in STYLES
  ]
  (args.output / 'figure.svg').write_text(
    figures.standalone(
      figures.best_of_n(n, series, 'Best-of-N accuracy, mean of three seeds')
    )
  )
  text = render(document)
  readme = args.output / 'README.md'
  if readme.exists():
    readme_table.fill(readme, text)
  print(text)


if __name__ == '__main__':
  main()
