"""Training on trees beside TRL's PRM trainer on the flat chains, on a CPU.

    python -m experiments.speed.training_trees --workdir DIR \
      --parity-python PYTHON

PYTHON is the interpreter of an environment with torch, transformers and
trl==1.12.0. Each side gets the same chains and weights of the same sizes, in a
process of its own, in turn. Ours also trains on the chains without trees.
Writes training_trees.json and the table of TRAINING_TREES.md beside this file.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import command_line
from experiments.label_sources.counting import read_labels
from experiments.runner import Runner
from experiments.speed import sides, workload
from experiments.tables import table
from prm_jax.data.chains import Chain
from prm_jax.data.readers import read_chains
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import exit_on_user_error

BATCH = 8  # TRL's default; flat chains of neighbouring lengths
OMEGA = (
  '--config.omega.searches=128',
  '--config.omega.samples=32',
  '--config.chains.arithmetic.operations=10',
  '--config.chains.train_problems=64',
)
# Ours: trees, and chains alone. Theirs: chains.
SIDES = ('trees', 'flat', 'TRL')


def read_omega(runner: Runner) -> list[Chain]:
  """Labels chains of the arithmetic domain, and rollouts, with OmegaPRM."""
  folder = runner.main('label_math.py:omega,small', 'omega', *OMEGA)
  return read_labels(folder)


def read_pool(runner: Runner) -> list[Chain]:
  """Reads the six solutions of each GSM8K problem, labelled by outcome."""
  del runner
  path = workload.data_root() / 'best_of_n' / 'gsm8k_test_pool.jsonl'
  chains = []
  for line in path.read_bytes().splitlines():
    row = json.loads(line)
    for candidate in row['candidates']:
      steps = [s for s in candidate['text'].splitlines() if s.strip()]
      if steps:
        right = bool(candidate['correct'])
        chains.append(Chain(row['question'], tuple(steps), outcome=right))
  return chains


def reader_of(file: str, fmt: str) -> Callable[[Runner], list[Chain]]:
  """Returns a function that reads a file of the data folder."""
  return lambda _: read_chains(workload.data_root() / file, fmt)[0]


DATA: dict[str, Callable[[Runner], list[Chain]]] = {
  'OmegaPRM': read_omega,
  'PRM800K sessions': reader_of(
    'format_samples/samples_prm800k.jsonl', 'prm800k'
  ),
  'GSM8K pool': read_pool,
  'PRM800K flat': reader_of('prm800k/prm800k_subset.jsonl', 'prm800k_flat'),
}


def commands_of(
  path: pathlib.Path, args: argparse.Namespace
) -> dict[str, list[str]]:
  """Writes weights beside the workload; returns the command of each side."""
  inputs = f'--workload={path}', f'--weights={path.parent}/weights'
  sides.measure(sides.ours('ours', 'weights', *inputs))
  steps = f'--steps={args.steps}'
  # A row for each core, which is a device of its own.
  rows = f'--rows={sides.cores()}', f'--row-length={args.row_length}'
  return {
    'trees': sides.ours('ours', 'train', *inputs, steps, *rows),
    'flat': sides.ours('ours', 'train', *inputs, steps, *rows, '--flat'),
    'TRL': sides.theirs(
      args.parity_python,
      'theirs',
      'train',
      f'--threads={sides.cores()}',
      *inputs,
      steps,
      f'--batch-size={BATCH}',
      '--sampling=group_by_length',
    ),
  }


def run_sides(
  name: str, commands: Mapping[str, list[str]], args: argparse.Namespace
) -> dict[str, list[dict]]:
  """Runs each side once in every round, in another order in every second."""
  clock = {sides.CLOCK_VARIABLE: args.clock}
  runs: dict[str, list[dict]] = {side: [] for side in SIDES}
  for number in range(args.rounds):
    for side in SIDES if number % 2 else SIDES[::-1]:
      runs[side].append(sides.measure(commands[side], **clock))
      rate = runs[side][-1]['tokens_per_second']
      print(f'{name}, {side}: {rate:,.0f} tokens/s', flush=True)
  return runs


def measure(
  name: str, chains: Sequence[Chain], args: argparse.Namespace
) -> dict[str, Any]:
  """Measures all sides on one data set, in turn; returns a row."""
  fmt = workload.make_format_of('small')
  made = {
    'model': 'small',
    'max_length': workload.MAX_LENGTH,
    'warmup_steps': args.warmup_steps,
    'train': workload.records_of(chains, fmt),
  }
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'workload.json'
    path.write_text(json.dumps(made))
    runs = run_sides(name, commands_of(path, args), args)
  assert len({run['ids_sha256'] for each in runs.values() for run in each}) == 1
  return {
    'data': name,
    'chains': len(made['train']),
    'shared': statistics.median(run['shared'] for run in runs['trees']),
    'tokens_per_second': {
      side: [run['tokens_per_second'] for run in each]
      for side, each in runs.items()
    },
    'fill': {side: each[0]['fill'] for side, each in runs.items()},
    'clock': args.clock,
    'cores': sides.cores(),
    'steps': args.steps,
    'git_commit': manifest.git_commit(),
  }


def ratios(row: Mapping[str, Any], side: str) -> list[float]:
  """Returns how many times faster trees are than a side, for each round."""
  rates = row['tokens_per_second']
  return [a / b for a, b in zip(rates['trees'], rates[side], strict=True)]


def render(document: Mapping[str, Any]) -> str:
  """Makes the table."""
  rows = []
  for row in document['rows']:
    rates = row['tokens_per_second']
    over_flat = ratios(row, 'flat')
    rows.append(
      [
        row['data'],
        f'{row["chains"]:,}',
        f'{row["shared"]:.2f}',
        *(f'{statistics.median(rates[side]):,.0f}' for side in SIDES),
        sides.spread(ratios(row, 'TRL')),
        sides.spread(over_flat),
        f'{statistics.median(over_flat) / row["shared"]:.2f}',
        f'{row["clock"]}, {row["cores"]}, {len(over_flat)}',
      ]
    )
  heads = (
    'data | chains | tokens shared | trees, tokens/s | flat, tokens/s | '
    'TRL, tokens/s | trees / TRL [min, max] | trees / flat [min, max] | '
    'of what is shared | clock, cores, rounds'
  )
  return table(heads, rows)


def order(row: Mapping[str, Any]) -> int:
  """Returns where a row stands in the table."""
  return [*DATA].index(row['data'])


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__,
    __file__,
    *('--workdir', '--parity-python', '--clock', '--rounds'),
    output=False,
  )
  parser.set_defaults(rounds=5)
  parser.add_argument('--data', nargs='+', choices=DATA, default=[*DATA])
  parser.add_argument(
    '--steps', type=int, default=6, help='updates that a run measures'
  )
  parser.add_argument('--warmup-steps', type=int, default=2)
  parser.add_argument(
    '--row-length', type=int, default=2048, help='tokens of our rows'
  )
  args = command_line.parse(parser)
  command_line.check_parity_python(parser, args, 'torch', 'trl')
  args.workdir.mkdir(parents=True, exist_ok=True)
  runner = Runner(args.workdir, 1)
  command = f'{args.command} --parity-python PYTHON'
  for name in args.data:
    row = measure(name, DATA[name](runner), args)
    sides.keep_row(row, order, 'training_trees', command, render)


if __name__ == '__main__':
  main()
