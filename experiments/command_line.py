"""The command line that all experiments share, and the files they write.

A run.py makes its parser here, adds the arguments that only it has, measures,
and hands over what it found:

    parser = command_line.make_parser(__doc__, __file__, '--workdir', '--seeds')
    parser.add_argument('--arms', nargs='+', choices=ARMS, default=ARMS)
    args = command_line.parse(parser)
    document = command_line.about(args) | {'runs': ...}
    command_line.write(args.output, document, render(document))

The results of a whole experiment go to its own folder. A command that runs only
a part of it has to name another folder with --output.
"""

import argparse
import json
import os
import pathlib
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from experiments.runner import ROOT
from prm_jax.data.datasets import DATA_VARIABLE
from prm_jax.report import readme_table
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import write_json

TUNING_SEED = 0  # chose settings, and is never reported
SEEDS = (1, 2, 3, 4, 5)
# Commands of which a seed takes more than ten minutes have fewer of them.
FEWER_SEEDS = (1, 2, 3)
LONG = (
  'human_labels.whole',
  'label_sources.run',
  'labelled_chains.run',
  'neutral_labels.run',
  'prm_and_orm.run',  # judges the models of labelled_chains
  'reward_hacking.run',
  'rl_process_vs_outcome.run',
  'test_time_compute.run',
  'test_time_compute.slips',
  'thinking_verifiers.run',
)
# So many seeds are shown of these, as one takes more than an hour.
LONGEST = {'label_sources.soft': 2, 'rl_words.run': 1}


def at_least(least: int) -> Callable[[str], int]:
  """Returns the type of an argument that is a whole number from `least` on."""

  def parsed(text: str) -> int:
    try:
      value = int(text)
    except ValueError:
      value = least - 1
    if value < least:
      raise argparse.ArgumentTypeError(
        f'{text}: expected a whole number of at least {least}'
      )
    return value

  return parsed


ARGUMENTS: dict[str, dict[str, Any]] = {
  '--workdir': {
    'type': pathlib.Path,
    'required': True,
    'help': 'folder of the runs; the same command resumes what is there',
  },
  '--jobs': {
    'type': at_least(1),
    'default': 2,
    'help': 'runs at the same time, each on a core of its own',
  },
  '--seeds': {'type': int, 'nargs': '+', 'default': SEEDS},
  '--quick': {
    'action': 'store_true',
    'help': 'very few updates, to see that everything runs',
  },
  '--data-root': {
    'type': pathlib.Path,
    'default': os.environ.get(DATA_VARIABLE),
    'help': f'folder of the data files; default: ${DATA_VARIABLE}',
  },
  '--parity-python': {
    'help': 'Python of an environment with torch, transformers and trl',
  },
  '--clock': {
    'choices': ('wall', 'cpu'),
    'default': 'wall',
    'help': 'cpu measures CPU seconds, for cores that do other work, too',
  },
  '--rounds': {
    'type': at_least(1),
    'default': 3,
    'help': 'times that each side is measured',
  },
}
# What these say changes where, or how fast, an experiment runs, and not what it
# finds.
_WITHOUT_EFFECT = ('workdir', 'jobs', 'data_root', 'output')


def make_parser(
  doc: str, file: str, *shared: str, output: bool = True
) -> argparse.ArgumentParser:
  """Makes the parser of one experiment.

  Args:
    doc: docstring of its run.py; the first line becomes the description.
    file: path of its run.py.
    shared: which of `ARGUMENTS` it takes.
    output: whether it takes `--output`.
  """
  path = pathlib.Path(file).resolve()
  module = f'{path.parent.name}.{path.stem}'
  parser = argparse.ArgumentParser(
    prog=f'python -m experiments.{module}',
    description=doc.splitlines()[0],
  )
  for name in shared:
    parser.add_argument(name, **ARGUMENTS[name])
  if output:
    parser.add_argument(
      '--output',
      type=pathlib.Path,
      default=path.parent,
      help='folder of results.json, figure and table; default: beside run.py',
    )
  if module in LONG:
    parser.set_defaults(seeds=FEWER_SEEDS)
  if module in LONGEST:
    parser.set_defaults(seeds=FEWER_SEEDS[: LONGEST[module]])
  where = ' --workdir DIR' if '--workdir' in shared else ''
  parser.set_defaults(command=f'{parser.prog}{where}')
  return parser


def parse(
  parser: argparse.ArgumentParser,
  free: Collection[str] = (),
  arguments: Sequence[str] | None = None,
) -> argparse.Namespace:
  """Parses the command line; exits with one line where it is wrong.

  Args:
    free: arguments that may differ from their defaults although the results go
      to the experiment's own folder. With any other argument changed, the
      command runs a part of the experiment and has to name another folder.
    arguments: what to parse; default: the command line.
  """
  args = parser.parse_args(arguments)
  root = getattr(args, 'data_root', '.')
  if not root:
    parser.error(f'--data-root is missing, and {DATA_VARIABLE} is not set')
  if not pathlib.Path(root).is_dir():
    parser.error(f'--data-root={root}: expected a folder')
  home = parser.get_default('output')
  if home and args.output.resolve() == home:
    for name in set(vars(args)) - {*_WITHOUT_EFFECT, *free}:
      if not _equal(getattr(args, name), parser.get_default(name)):
        parser.error(
          f'--{name.replace("_", "-")} runs a part of the experiment, whose '
          f'results may not replace those in {home}; name another folder with '
          '--output'
        )
    if TUNING_SEED in (getattr(args, 'seeds', None) or ()):
      parser.error(
        f'--seeds={TUNING_SEED}: it chose settings, and is no result; name '
        'another folder with --output'
      )
  if 'output' in args:
    args.output.mkdir(parents=True, exist_ok=True)
  return args


def fault_of_python(python: str, *packages: str) -> str:
  """Says why a Python cannot run the other side of a comparison; '' if it can.

  Args:
    packages: what it has to import.
  """
  try:
    done = subprocess.run(
      [python, '-c', f'import {", ".join(packages)}'],
      cwd=ROOT,  # as the other side itself
      capture_output=True,
      text=True,
      check=False,
    )
  except OSError as error:
    return error.strerror or str(error)
  said = done.stderr.strip().splitlines() or [f'exit code {done.returncode}']
  return said[-1] if done.returncode else ''


def check_parity_python(
  parser: argparse.ArgumentParser, args: argparse.Namespace, *packages: str
) -> None:
  """Exits with an error where `--parity-python` is missing, or lacks packages.

  What our side would measure before may take hours.
  """
  if not args.parity_python:
    parser.error(f'--parity-python is missing: a Python with {packages[-1]}')
  if fault := fault_of_python(args.parity_python, *packages):
    parser.error(f'--parity-python={args.parity_python}: {fault}')


def _equal(value: Any, default: Any) -> bool:
  """Compares two values, sequences by their items."""
  if isinstance(value, list):
    return value == list(default or ())
  return value == default


def size_of(args: argparse.Namespace) -> str:
  """Returns how large the runs of a command are: full, quick or large."""
  flags = (name for name in ('quick', 'large') if getattr(args, name, False))
  return next(flags, 'full')


def made_by(args: argparse.Namespace) -> dict[str, str]:
  """Returns the command, and the size of its runs unless that is full."""
  size = size_of(args)
  if size == 'full':
    return {'command': args.command}
  return {'command': f'{args.command} --{size}', 'size': size}


def about(args: argparse.Namespace) -> dict[str, Any]:
  """Returns how results came about: command, commit and seeds."""
  found = {**made_by(args), 'git_commit': manifest.git_commit()}
  return found | ({'seeds': list(args.seeds)} if 'seeds' in args else {})


def read_known(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the results.json to which a command adds its part; {} without.

  Raises:
    UserError: its runs are larger or smaller than those of this command.
  """
  path = args.output / 'results.json'
  document = json.loads(path.read_text()) if path.exists() else {}
  before, now = document.get('size', 'full'), size_of(args)
  if document.get('results') and before != now:
    raise UserError(
      f'{path} holds runs of the size {before!r}, and this command makes '
      f'{now!r} ones; name another folder with --output'
    )
  return document


def write(
  output: pathlib.Path,
  document: Mapping[str, Any],
  text: str,
  results: str = 'results.json',
  readme: str = 'README.md',
) -> None:
  """Writes the results, and their table into the README where there is one.

  Args:
    text: the table, as Markdown; it is printed, too.
  """
  output.mkdir(parents=True, exist_ok=True)
  write_json(output / results, document)
  if (output / readme).exists():
    readme_table.fill(output / readme, text)
  print(text)
