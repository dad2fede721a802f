"""A byte-level PRM from scratch on human labels, on ProcessBench.

    python experiments/human_labels/run.py --workdir /tmp/human --data-root DIR

Runs the main job (or finds it done) and writes results.json and the table of
README.md beside this file.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

from prm_jax.data.datasets import DATA_VARIABLE
from prm_jax.report import readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
ROWS = {
  'all_right': 'every step right',
  'first_step': 'first step wrong',
  'position': 'step position, chosen on dev',
  'random': 'uniform guess',
}


def table(results: dict) -> str:
  """Markdown: F1 with its interval beside what needs no model."""
  lines = [
    '| set | scorer | F1 | 95% interval | acc, error | acc, correct |',
    '| --- | --- | --- | --- | --- | --- |',
  ]
  for name, found in results['localisation'].items():
    low, high = found['ci95']
    rows = [('PRM', found, f'{100 * low:.1f} to {100 * high:.1f}')]
    rows += [(text, found['baselines'][key], '') for key, text in ROWS.items()]
    for who, row, interval in rows:
      cells = ' | '.join(
        '' if row[key] is None else f'{100 * row[key]:.1f}'
        for key in ('acc_error', 'acc_correct')
      )
      f1 = f'{100 * row["f1"]:.1f}'
      lines.append(f'| {name} | {who} | {f1} | {interval} | {cells} |')
  return '\n'.join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument(
    '--data-root', type=pathlib.Path, default=os.environ.get(DATA_VARIABLE)
  )
  parser.add_argument(
    '--problems', type=int, default=0, help='of each test; 0: all'
  )
  parser.add_argument('--output', type=pathlib.Path, default=HERE)
  args = parser.parse_args()
  if not args.data_root:
    parser.error(f'--data-root is missing, and {DATA_VARIABLE} is not set')
  if args.problems and args.output == HERE:
    parser.error('--problems: --output has to be another folder')
  path = args.workdir / 'results.json'
  if not manifest.is_done(args.workdir):
    subprocess.run(
      [
        sys.executable,
        '-m',
        'prm_jax.main',
        '--config=configs/prm_math.py:human',
        f'--workdir={args.workdir.absolute()}',
        f'--config.data.root={args.data_root.absolute()}',
        f'--config.evaluation.max_problems={args.problems}',
      ],
      check=True,
      cwd=HERE.parents[1],
    )
  document = json.loads(path.read_text())
  about = document['manifest']
  about['command'] = (
    'python -m prm_jax.main --config configs/prm_math.py:human '
    '--workdir DIR --config.data.root=DATA'
  )
  manifest.write_json(args.output / 'results.json', document)
  text = render(document)
  if (args.output / 'README.md').exists():
    readme_table.fill(args.output / 'README.md', text)
  print(text)


def render(document: dict) -> str:
  """Markdown: the table, and what it was measured with."""
  about = document['manifest']
  seconds = about['wall_seconds']
  calibration = document['results']['calibration']
  notes = [
    f'Threshold {about["threshold"]["value"]:.3f}, '
    f'{about["threshold"]["source"]}; {seconds / 60:.1f} minutes.',
    'Area under the ROC of steps up to the first error: '
    + ', '.join(
      f'{values["first_error_auc"]:.3f} ({name})'
      for name, values in calibration.items()
    )
    + '.',
    'Beyond the window, without a score: '
    + ', '.join(
      f'{count["steps"]:,} of {count["of_steps"]:,} steps in '
      f'{count["chains"]:,} of {count["of_chains"]:,} chains ({name})'
      for name, count in document['results'].get('unread', {}).items()
    )
    + '.',
    'Cut chains without a flag, which count as missed: '
    + ', '.join(
      f'{found["count_undecided"]:,} ({name})'
      for name, found in document['results']['localisation'].items()
    )
    + '.',
  ]
  return table(document['results']) + '\n\n' + '\n'.join(notes)


if __name__ == '__main__':
  main()
