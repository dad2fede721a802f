"""Speed beside TRL's PRM trainer and transformers' forward pass, on a CPU.

    python experiments/speed/run.py --parity-python PYTHON

PYTHON is the interpreter of an environment with torch, transformers and
trl==1.12.0. Both sides run in processes of their own, in turn (A B A B ...), on
the same real chains with the same parameters. Writes results.json and the table
of README.md beside this file; `--models` measures some and keeps the others.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import workload as workload_lib

from prm_jax.report import readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).parent
COMMAND = 'python experiments/speed/run.py --parity-python PYTHON'
MODELS = ('small', 'smollm2')
DTYPES = {'small': ('float32',), 'smollm2': ('float32', 'bfloat16')}
# TRL's two ways to draw a batch; batch sizes to choose their best from.
SAMPLINGS = ('random', 'group_by_length')
SIZES = {'small': (8, 16, 32, 64), 'smollm2': (4, 8)}
Run = Callable[..., dict]


def worker(clock: str, python: str, script: str, *arguments: str) -> dict:
  """Runs one worker and reads the line of JSON it ends with."""
  done = subprocess.run(
    [python, str(HERE / script), *arguments],
    env=os.environ | {'SPEED_CLOCK': clock},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    sys.exit(f'error: {script} {arguments[0]} failed:\n{done.stderr[-3000:]}')
  return json.loads(done.stdout.strip().splitlines()[-1])


def spread(values: Sequence[float]) -> dict:
  return {
    'median': statistics.median(values),
    'min': min(values),
    'max': max(values),
    'values': list(values),
  }


def share_of_peak(runs: list[dict], dtype: str, flops: int) -> float:
  """Of what the same process reached in a matrix product.

  Args:
    runs: with 'tokens_per_second', real ones.
    flops: per parameter of a matrix product and real token.
  """
  return statistics.median(
    1e-9
    * flops
    * run['parameters']
    * run['tokens_per_second']
    / run['peak_gflops'][dtype]
    for run in runs
  )


def compare(what, dtype, unit, flops, mine, other) -> dict:
  """One row: `unit` is the key of the rate in both sides' runs."""
  rates = [[run[unit] for run in runs] for runs in (mine, other)]
  sides = {'ours': mine, 'theirs': other}
  return {
    'what': what,
    'dtype': dtype,
    'unit': unit,
    'ours': spread(rates[0]),
    'theirs': spread(rates[1]),
    'ratio': spread([a / b for a, b in zip(*rates, strict=True)]),
    'share_of_peak': {
      side: share_of_peak(runs, dtype, flops) for side, runs in sides.items()
    },
    'peak_gflops': {
      side: statistics.median(run['peak_gflops'][dtype] for run in runs)
      for side, runs in sides.items()
    },
    'fill': {side: runs[0].get('fill') for side, runs in sides.items()},
  }


def better_of(rows: list[dict]) -> dict:
  """The row of both sides' better dtype, from rows of one thing."""
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


def compare_training(model: str, ours: Run, theirs: Run, args) -> list[dict]:
  """Real tokens per second, in turn."""
  ways = SAMPLINGS if model == 'small' else DTYPES[model]
  rows = args.rows if model == 'small' else args.rows // 2
  mine, other = {way: [] for way in ways}, {way: [] for way in ways}
  for turn in range(args.rounds):
    for way in ways:
      dtype = way if way in DTYPES[model] else 'float32'
      if model == 'small' and way != SAMPLINGS[0]:
        run = mine[SAMPLINGS[0]][-1]  # TRL's samplings share our run
      else:
        run = ours(
          'train',
          f'--dtype={dtype}',
          f'--rows={rows}',
          f'--row-length={args.row_length}',
          f'--steps={args.steps}',
        )
      mine[way].append(run)
      if model == 'small':
        what, how = 'train', (f'--batch-size={2 * rows}', f'--sampling={way}')
      else:
        what = 'step'
        how = f'--dtype={way}', f'--batch-tokens={rows * args.row_length}'
      other[way].append(theirs(what, f'--steps={args.steps}', *how))
      if model == 'small':  # TRL made its own token ids
        assert other[way][-1]['ids_sha256'] == run['ids_sha256']
    print(
      f'training {model}, round {turn + 1} of {args.rounds} done', flush=True
    )
  return [
    compare(
      f'training, TRL `{way}`' if model == 'small' else 'training',
      way if way in DTYPES[model] else 'float32',
      'tokens_per_second',
      6,
      mine[way],
      other[way],
    )
    for way in ways
  ]


def compare_scoring(
  model: str, ours: Run, theirs: Run, tasks: dict, args
) -> list[dict]:
  """Candidates per second at equal scores, transformers at its best size."""
  cases = [(task, dtype) for task in tasks for dtype in DTYPES[model]]
  mine, other = ({case: [] for case in cases} for _ in range(2))
  worst = dict.fromkeys(cases, 0.0)
  repeats = 2 if model == 'small' else 1
  for turn in range(args.rounds):
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
        # As many as each side computes: the prompt once, or every time.
        per_candidate = run['tokens'] / len(run['scores'])
        run['tokens_per_second'] = run['candidates_per_second'] * per_candidate
      mine[case].append(a)
      other[case].append(b)
    print(
      f'scoring {model}, round {turn + 1} of {args.rounds} done', flush=True
    )
  return [
    compare(
      f'scoring, {case[0]}',
      case[1],
      'candidates_per_second',
      2,
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


def measure(model: str, args: argparse.Namespace) -> dict:
  """All rows of one model, and what they were measured on."""
  threads = len(os.sched_getaffinity(0))
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'workload.json'
    weights = pathlib.Path(folder) / 'weights'
    made = workload_lib.make_workload(model, args.warmup_steps)
    path.write_text(json.dumps(made))

    def ours(what: str, *arguments: str) -> dict:
      return worker(
        args.clock,
        sys.executable,
        'ours.py',
        what,
        f'--workload={path}',
        *arguments,
      )

    def theirs(what: str, *arguments: str) -> dict:
      return worker(
        args.clock,
        args.parity_python,
        'theirs.py',
        what,
        f'--threads={threads}',
        f'--workload={path}',
        f'--weights={weights}',
        *arguments,
      )

    versions = [
      ours('weights', f'--weights={weights}')['versions'],
      theirs('peak')['versions'],
    ]
    rows = compare_training(model, ours, theirs, args)
    rows += compare_scoring(model, ours, theirs, made['score'], args)
  for what in dict.fromkeys(row['what'] for row in rows):
    same = [row for row in rows if row['what'] == what]
    if len(same) > 1:
      rows.append(better_of(same))
  keep = ('clock', 'rounds', 'steps', 'warmup_steps', 'rows', 'row_length')
  return {
    'arguments': {name: getattr(args, name) for name in keep},
    'threads': threads,
    'versions': versions[0] | versions[1],
    'git_commit': manifest.git_commit(),
    'workload': {
      name: {key: task[key] for key in ('prompt_tokens', 'lengths')}
      for name, task in made['score'].items()
    },
    'rows': rows,
  }


def render(document: dict) -> str:
  lines = [
    '| model | what | dtype | ours | theirs | ratio [min, max] '
    '| share of peak, ours | theirs |',
    '| --- | --- | --- | --- | --- | --- | --- | --- |',
  ]
  notes = []
  for model, found in document['models'].items():
    for row in found['rows']:
      ratio, share = row['ratio'], row['share_of_peak']
      digits = 0 if row['unit'] == 'tokens_per_second' else 1
      unit = 'tokens/s' if digits == 0 else 'candidates/s'
      lines.append(
        f'| {model} | {row["what"]}, {unit} | {row["dtype"]} '
        f'| {row["ours"]["median"]:,.{digits}f} '
        f'| {row["theirs"]["median"]:,.{digits}f} '
        f'| {ratio["median"]:.2f} [{ratio["min"]:.2f}, {ratio["max"]:.2f}] '
        f'| {100 * share["ours"]:.0f}% | {100 * share["theirs"]:.0f}% |'
      )
    for name, task in found['workload'].items():
      low, middle, high = np.percentile(task['lengths'], (0, 50, 100))
      notes.append(
        f'- {model}, {name}: {len(task["lengths"])} candidates after a prompt '
        f'of {task["prompt_tokens"]} tokens; {low:.0f} to {high:.0f} tokens '
        f'with it, median {middle:.0f}.'
      )
    for row in found['rows']:
      if 'largest_score_difference' in row:
        notes.append(
          f'- {model}, {row["what"]}, {row["dtype"]}: largest difference of a '
          f'step score {row["largest_score_difference"]:.1e}; '
          f'{row["tokens_per_second"]["ours"]["median"]:,.0f} (ours) and '
          f'{row["tokens_per_second"]["theirs"]["median"]:,.0f} (theirs) real '
          'tokens/s.'
        )
      elif 'peak_gflops' in row:
        peak, filled = row['peak_gflops'], row['fill']
        notes.append(
          f'- {model}, {row["what"]}, {row["dtype"]}: non-padding tokens '
          f'{100 * filled["ours"]:.0f}% (ours), {100 * filled["theirs"]:.0f}% '
          f'(theirs); matmul peak {peak["ours"]:.0f} (ours) and '
          f'{peak["theirs"]:.0f} (theirs) GFLOP/s.'
        )
    notes.append(
      f'- {model}: {found["threads"]} thread(s), seconds of '
      f'{found["arguments"]["clock"]} time, '
      f'{found["arguments"]["rounds"]} rounds, '
      f'{found["arguments"]["steps"]} steps.'
    )
  return '\n'.join([*lines, '', *notes])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parity-python', required=True)
  parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS)
  parser.add_argument(
    '--clock',
    choices=('wall', 'cpu'),
    default='wall',
    help='cpu where other work shares the cores',
  )
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--steps', type=int, default=8, help='timed, per run')
  parser.add_argument('--warmup-steps', type=int, default=3)
  parser.add_argument('--rows', type=int, default=4, help='ours, per batch')
  parser.add_argument('--row-length', type=int, default=1024)
  args = parser.parse_args()
  kept = HERE / 'results.json'
  results = json.loads(kept.read_text()).get('models', {})
  for model in args.models:
    results[model] = measure(model, args)
    in_order = {name: results[name] for name in MODELS if name in results}
    document = {'command': COMMAND, 'models': in_order}
    manifest.write_json(kept, document)
    readme_table.fill(HERE / 'README.md', render(document))
  print(render(document))


if __name__ == '__main__':
  main()
