"""Which traps make a process reward model look better, or worse, than it is?

    pip install -e '.[experiments]'
    python -m experiments.evaluation_traps.run --workdir DIR --data-root DATA

Trains a PRM and an ORM of two minutes for each seed unless they are there,
measures every trap of docs/evaluation.md on them, on committed results and on
real data, and writes results.json, a figure for each trap and the table of
README.md beside this file. The measured lines of docs/evaluation.md are written
anew, too.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import command_line
from experiments.evaluation_traps import choosing, drawing, facts, judging
from experiments.runner import ROOT, Runner, read_results
from experiments.tables import table
from prm_jax.data.datasets import DATA_VARIABLE
from prm_jax.runtime.errors import exit_on_user_error

SEEDS = (1, 2, 3)  # 0 was used to choose settings
PAGE = ROOT / 'docs/evaluation.md'


def train(runner: Runner, seed: int) -> Mapping[str, Any]:
  """Trains the PRM and the ORM of one seed; returns their results."""
  flags = (
    f'--config.seed={seed}',
    f'--config.data.arithmetic.solver_seed={seed}',
  )
  return read_results(runner.main('prm_math.py:small', f'seed_{seed}', *flags))


def measure(root: pathlib.Path, runs: Mapping[str, Any]) -> dict[str, Any]:
  """Measures every trap.

  Args:
    root: folder of the data files.
    runs: results of trained PRMs and ORMs, by seed.
  """
  return {
    'null': choosing.measure_null(),
    'unread': judging.measure_unread(root),
    'segmentation': choosing.measure_segmentation(root),
    'thresholds': judging.measure_thresholds(root),
    'length': judging.measure_length(root),
    'ranking': choosing.measure_ranking(root, runs),
    'intervals': choosing.measure_intervals(),
    'calibration': judging.measure_calibration(runs),
  }


def render(document: Mapping[str, Any]) -> str:
  """Makes the table of the numbers of an earlier draft, and ours."""
  rows = [
    [row['what'], row['before'], row['here'], row['why']]
    for row in document['named']
  ]
  return table('number | earlier draft | here | why it differs', rows)


def fill_page(text: str, document: Mapping[str, Any]) -> str:
  """Writes the measured lines of a page between the marks of their traps.

  Raises:
    ValueError: a trap does not have exactly two marks.
  """
  for name, line in facts.sentences(document).items():
    mark = f'<!-- {name} -->\n'
    before, _, after = text.split(mark)
    text = f'{before}{mark}{line}\n{mark}{after}'
  return text


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', '--jobs', '--seeds', '--data-root'
  )
  parser.set_defaults(seeds=SEEDS, jobs=1)
  args = command_line.parse(parser)
  runner = Runner(args.workdir, args.jobs)
  found = runner.all(train, [(runner, seed) for seed in args.seeds])
  runs = {str(s): run for s, run in zip(args.seeds, found, strict=True)}
  traps = measure(pathlib.Path(args.data_root), runs)
  document = command_line.about(args) | {
    'traps': traps,
    'named': facts.named(traps),
  }
  document['command'] = f'{DATA_VARIABLE}=DIR {args.command}'
  drawing.draw(document, args.output)
  command_line.write(args.output, document, render(document))
  if args.output.resolve() == parser.get_default('output'):
    PAGE.write_text(fill_page(PAGE.read_text(), document))


if __name__ == '__main__':
  main()
