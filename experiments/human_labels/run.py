"""What does a byte-level PRM from scratch learn from human labels alone?

    python -m experiments.human_labels.run --workdir /tmp/human --data-root DIR

Runs the main job on human step labels unless it is done, tests it on
ProcessBench, and writes results.json and the table of README.md beside this
file.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments import command_line
from experiments.runner import Runner
from experiments.tables import between, percent, table
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.workdir import read_results

BASELINES = {
  'all_right': 'every step right',
  'first_step': 'first step wrong',
  'position': 'step position, chosen on dev',
  'random': 'uniform guess',
  'noise': 'noise at its best rate',
  'length': 'length of the step, by dev',
  'digits': 'digits of the step, by dev',
  'place': 'place of the step, by dev',
}


def rows(results: Mapping[str, Any]) -> Iterable[list[str]]:
  """Makes a row for the PRM, and for each baseline, on each set."""
  for name, found in results['localisation'].items():
    scorers = [('PRM', found, between(found['ci95']))]
    scorers += [
      (text, found['baselines'][key], '')
      for key, text in BASELINES.items()
      if key in found['baselines']
    ]
    for scorer, measured, interval in scorers:
      accuracies = [
        '' if measured[key] is None else percent(measured[key])
        for key in ('acc_error', 'acc_correct')
      ]
      yield [name, scorer, percent(measured['f1']), interval, *accuracies]


def area_of(calibration: Mapping[str, Any]) -> str:
  """Formats the AUC of steps, with its interval and null."""
  found, length = calibration['ranking'], calibration['baselines']['length']
  low, high = found['ci95']
  within = found['within_problem']['value']
  return (
    f'{found["auc"]:.3f} [{low:.3f}, {high:.3f}], within problems '
    f'{within:.3f}, that of step lengths {length["auc"]:.3f}'
  )


def notes(document: Mapping[str, Any]) -> list[str]:
  """Says what the table does not: threshold, time, AUC, what was not read."""
  about, results = document['manifest'], document['results']
  areas = ', '.join(
    f'{area_of(values)} ({name})'
    for name, values in results['calibration'].items()
  )
  unread = ', '.join(
    f'{count["steps"]:,} of {count["of_steps"]:,} steps in '
    f'{count["chains"]:,} of {count["of_chains"]:,} chains ({name})'
    for name, count in results.get('unread', {}).items()
  )
  undecided = ', '.join(
    f'{found["count_undecided"]:,} ({name})'
    for name, found in results['localisation'].items()
  )
  return [
    f'The threshold is {about["threshold"]["value"]:.3f}, by the '
    f'{about["threshold"]["source"]}. The run took '
    f'{about["wall_seconds"] / 60:.1f} minutes.',
    f'Area under the ROC of steps up to the first error: {areas}.',
    f'Steps beyond the window, which have no score: {unread}.',
    'Chains cut by the window without a flagged step, which count as missed: '
    f'{undecided}.',
  ]


def render(document: Mapping[str, Any]) -> str:
  """Makes the table, F1 and accuracies in percent, and the notes below it."""
  heads = ['set', 'scorer', 'F1', '95% interval', 'acc, error', 'acc, correct']
  text = table(heads, rows(document['results']))
  return text + '\n\n' + '\n'.join(notes(document))


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--data-root'
  )
  parser.add_argument(
    '--problems', type=int, default=0, help='problems of each test; 0: all'
  )
  args = command_line.parse(parser)
  workdir = Runner(args.workdir, jobs=1).main(
    'prm_math.py:human',
    '',
    f'--config.data.root={args.data_root.absolute()}',
    f'--config.evaluation.max_problems={args.problems}',
  )
  document = read_results(workdir)
  # Folders differ from place to place.
  document['manifest']['command'] = (
    'python -m prm_jax.main --config configs/prm_math.py:human '
    '--workdir DIR --config.data.root=DATA'
  )
  command_line.write(args.output, document, render(document))


if __name__ == '__main__':
  main()
