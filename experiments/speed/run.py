"""Speed beside torch's train step and transformers' forward pass, on a CPU.

    python -m experiments.speed.run --workdir DIR --parity-python PYTHON

PYTHON is the interpreter of an environment with torch and transformers; DIR
gets a policy whose candidates are scored. Both sides run in processes of their
own, in turn (A B A B ...), on the same real chains, with equally many
parameters. Writes results.json and the table of README.md beside this file;
`--models` measures some and keeps the others.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments import command_line
from experiments.runner import Runner
from experiments.speed import sides
from experiments.speed import workload as workload_lib
from experiments.speed.tables import render
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.workdir import write_json

MODELS = ('small', 'smollm2')
DTYPES = {'small': ('float32',), 'smollm2': ('float32', 'bfloat16')}
# Batch sizes of which transformers gets the best.
SIZES = {'small': (8, 16, 32, 64), 'smollm2': (4, 8)}
# FLOPs per parameter and real token.
TRAINING_FLOPS, SCORING_FLOPS = 6, 2
# Runs one side and returns what it says.
Run = Callable[..., dict]


def spread(values: Sequence[float]) -> dict[str, Any]:
  """Returns the values of all rounds with their median, minimum and maximum."""
  return {
    'median': statistics.median(values),
    'min': min(values),
    'max': max(values),
    'values': list(values),
  }


def share_of_peak(runs: list[dict], dtype: str, flops: int) -> float:
  """Returns the share of what the same process reached in a matrix product.

  Args:
    runs: the runs of one side, with real tokens per second. Training that reads
      `shared` beginnings once computes as many times fewer.
    flops: FLOPs per parameter and real token.
  """
  return statistics.median(
    1e-9
    * flops
    * run['parameters']
    * run['tokens_per_second']
    / run.get('shared', 1.0)
    / run['peak_gflops'][dtype]
    for run in runs
  )


def compare(
  what: str,
  dtype: str,
  unit: str,
  flops: int,
  mine: list[dict],
  other: list[dict],
) -> dict[str, Any]:
  """Makes one row from the runs of both sides.

  Args:
    unit: key of the rate in the runs.
    flops: FLOPs per parameter and real token.
  """
  rates = [[run[unit] for run in runs] for runs in (mine, other)]
  both = {'ours': mine, 'theirs': other}
  return {
    'what': what,
    'dtype': dtype,
    'unit': unit,
    'ours': spread(rates[0]),
    'theirs': spread(rates[1]),
    'ratio': spread([a / b for a, b in zip(*rates, strict=True)]),
    'share_of_peak': {
      side: share_of_peak(runs, dtype, flops) for side, runs in both.items()
    },
    'peak_gflops': {
      side: statistics.median(run['peak_gflops'][dtype] for run in runs)
      for side, runs in both.items()
    },
    'fill': {side: runs[0].get('fill') for side, runs in both.items()},
  }


def better_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Makes the row in which each side has its better dtype."""
  best = {
    side: max(rows, key=lambda row: row[side]['median'])
    for side in ('ours', 'theirs')
  }
  pairs = zip(
    best['ours']['ours']['values'],
    best['theirs']['theirs']['values'],
    strict=True,
  )
  return {
    'what': rows[0]['what'],
    'dtype': 'better of both',
    'unit': rows[0]['unit'],
    **{side: row[side] for side, row in best.items()},
    'ratio': spread([a / b for a, b in pairs]),
    'better': {side: row['dtype'] for side, row in best.items()},
    'share_of_peak': {
      side: row['share_of_peak'][side] for side, row in best.items()
    },
  }


def train_ours(
  ours: Run, dtype: str, rows: int, args: argparse.Namespace
) -> dict[str, Any]:
  """Runs our training once, with this many rows in a batch."""
  return ours(
    'train',
    f'--dtype={dtype}',
    f'--rows={rows}',
    f'--row-length={args.row_length}',
    f'--steps={args.steps}',
  )


def compare_steps(
  dtypes: Sequence[str], ours: Run, theirs: Run, args: argparse.Namespace
) -> list[dict[str, Any]]:
  """Compares our training of SmolLM2 with steps of torch, without a trainer."""
  rows = args.rows // 2
  mine, other = ({dtype: [] for dtype in dtypes} for _ in range(2))
  for _ in range(args.rounds):
    for dtype in dtypes:
      mine[dtype].append(train_ours(ours, dtype, rows, args))
      run = theirs(
        'step',
        f'--steps={args.steps}',
        f'--dtype={dtype}',
        f'--batch-tokens={rows * args.row_length}',
      )
      other[dtype].append(run)
  return [
    compare(
      'training',
      dtype,
      'tokens_per_second',
      TRAINING_FLOPS,
      mine[dtype],
      other[dtype],
    )
    for dtype in dtypes
  ]


def compare_scoring(
  model: str,
  ours: Run,
  theirs: Run,
  tasks: Iterable[str],
  args: argparse.Namespace,
) -> list[dict[str, Any]]:
  """Measures candidates per second of scoring, in turn."""
  cases = [(task, dtype) for task in tasks for dtype in DTYPES[model]]
  mine, other = ({case: [] for case in cases} for _ in range(2))
  worst = dict.fromkeys(cases, 0.0)
  repeats = 2 if model == 'small' else 1
  for _ in range(args.rounds):
    for case in cases:
      how = f'--task={case[0]}', f'--dtype={case[1]}', f'--repeats={repeats}'
      a = ours('score', *how)
      b = theirs('score', *how, '--sizes', *map(str, SIZES[model]))
      worst[case] = max(
        worst[case],
        *(
          float(np.abs(np.subtract(x, y)).max())
          for x, y in zip(a['scores'], b['scores'], strict=True)
        ),
      )
      for run in (a, b):
        rates = run['candidates_per_second']
        run['candidates_per_second'] = statistics.median(rates)
        # The tokens that the side computes: the prompt once, or every time.
        per_candidate = run['tokens'] / len(run['scores'])
        run['tokens_per_second'] = run['candidates_per_second'] * per_candidate
      mine[case].append(a)
      other[case].append(b)
  return [
    compare(
      f'scoring, {case[0]}',
      case[1],
      'candidates_per_second',
      SCORING_FLOPS,
      mine[case],
      other[case],
    )
    | {
      'largest_score_difference': worst[case],
      'their_best_batch_size': [run['best_size'] for run in other[case]],
      'tokens_per_second': {
        side: spread([run['tokens_per_second'] for run in runs[case]])
        for side, runs in (('ours', mine), ('theirs', other))
      },
    }
    for case in cases
  ]


def measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
  """Measures all rows of one model; also says what they were measured on."""
  clock = {sides.CLOCK_VARIABLE: args.clock}
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'workload.json'
    weights = f'--weights={folder}/weights'
    runner = Runner(args.workdir, 1)
    made = workload_lib.make_workload(model, args.warmup_steps, runner)
    path.write_text(json.dumps(made))

    def ours(what: str, *arguments: str) -> dict:
      command = sides.ours('ours', what, f'--workload={path}', *arguments)
      print(f'ours: {model}, {what}', flush=True)
      return sides.measure(command, **clock)

    def theirs(what: str, *arguments: str) -> dict:
      command = sides.theirs(
        args.parity_python,
        'theirs',
        what,
        f'--threads={sides.cores()}',
        f'--workload={path}',
        weights,
        *arguments,
      )
      print(f'theirs: {model}, {what}', flush=True)
      return sides.measure(command, **clock)

    versions = ours('weights', weights)['versions'] | theirs('peak')['versions']
    rows = []
    if model != 'small':  # training_trees.py measures its training
      rows += compare_steps(DTYPES[model], ours, theirs, args)
    rows += compare_scoring(model, ours, theirs, made['score'], args)
  for what in dict.fromkeys(row['what'] for row in rows):
    same = [row for row in rows if row['what'] == what]
    if len(same) > 1:
      rows.append(better_of(same))
  keep = ('clock', 'rounds', 'steps', 'warmup_steps', 'rows', 'row_length')
  return {
    'arguments': {name: getattr(args, name) for name in keep},
    'threads': sides.cores(),
    'versions': versions,
    'git_commit': manifest.git_commit(),
    'workload': {
      name: {
        key: task[key] for key in ('prompt_tokens', 'lengths', 'unique_tokens')
      }
      for name, task in made['score'].items()
    },
    'rows': rows,
  }


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__,
    __file__,
    *('--workdir', '--parity-python', '--clock', '--rounds'),
    output=False,
  )
  parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS)
  parser.add_argument(
    '--steps', type=int, default=8, help='updates that a run measures'
  )
  parser.add_argument('--warmup-steps', type=int, default=3)
  parser.add_argument('--rows', type=int, default=4, help='rows of our batches')
  parser.add_argument('--row-length', type=int, default=1024)
  args = command_line.parse(parser)
  command_line.check_parity_python(parser, args, 'torch', 'trl')
  kept = sides.HERE / 'results.json'
  results = json.loads(kept.read_text()).get('models', {})
  for model in args.models:
    results[model] = measure(model, args)
    document = {
      'command': f'{args.command} --parity-python PYTHON',
      'models': {name: results[name] for name in MODELS if name in results},
    }
    write_json(kept, document)  # before the table: it took minutes to measure
    command_line.write(sides.HERE, document, render(document))


if __name__ == '__main__':
  main()
