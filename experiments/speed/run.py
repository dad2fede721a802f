"""Speed beside TRL's PRM trainer and transformers' forward pass, on a CPU.

    python experiments/speed/run.py --parity-python PYTHON

PYTHON is the interpreter of an environment with torch, transformers and
trl==1.12.0. Both sides run in processes of their own, in turn (A B A B ...), on
the same real chains with the same parameter count in float32. Writes
results.json and the table of README.md beside this file.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import workload as workload_lib

from prm_jax import manifest
from prm_jax.report import readme_table

HERE = pathlib.Path(__file__).parent
# TRL's two ways to draw a batch; batch sizes to choose its best from.
SAMPLINGS = ('random', 'group_by_length')
SIZES = (8, 16, 32, 64)


def worker(python: str, script: str, *arguments: str) -> dict:
  """Runs one worker and reads the line of JSON it ends with."""
  done = subprocess.run(
    [python, str(HERE / script), *arguments],
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    sys.exit(f'error: {script} {arguments[0]} failed:\n{done.stderr[-3000:]}')
  return json.loads(done.stdout.strip().splitlines()[-1])


def spread(values: list[float]) -> dict[str, float]:
  return {
    'median': statistics.median(values),
    'min': min(values),
    'max': max(values),
    'runs': len(values),
  }


def compare_training(ours, theirs, work, args) -> dict:
  """Real tokens per second, in turn, with the ratio run by run."""
  mine, other = [], {sampling: [] for sampling in SAMPLINGS}
  for turn in range(args.rounds):
    mine.append(
      ours(
        'train',
        f'--workload={work}',
        f'--rows={args.rows}',
        f'--row-length={args.row_length}',
        f'--steps={args.steps}',
      )
    )
    for sampling in SAMPLINGS:
      other[sampling].append(
        theirs(
          'train',
          f'--workload={work}',
          f'--batch-size={args.batch_size}',
          f'--sampling={sampling}',
          f'--steps={args.steps}',
        )
      )
      assert other[sampling][-1]['ids_sha256'] == mine[0]['ids_sha256']
    print(f'training, round {turn + 1} of {args.rounds} done', flush=True)
  result = {
    'ours': spread([run['tokens_per_second'] for run in mine]),
    'parameters': {
      'ours': mine[0]['parameters'],
      'theirs': other['random'][0]['parameters'],
    },
    'fill': {'ours': mine[0]['fill']},
  }
  for sampling, runs in other.items():
    result[sampling] = spread([run['tokens_per_second'] for run in runs])
    result['fill'][sampling] = runs[0]['fill']
    result[f'ratio_to_{sampling}'] = spread(
      [
        a['tokens_per_second'] / b['tokens_per_second']
        for a, b in zip(mine, runs, strict=True)
      ]
    )
  return result


def compare_scoring(ours, theirs, work, weights, tasks, args) -> dict:
  """Candidates per second at equal scores, transformers at its best size."""
  result = {}
  for task in tasks:
    ratios, mine, other, worst, best_sizes = [], [], [], 0.0, []
    for turn in range(args.rounds):
      a = ours('score', f'--workload={work}', f'--task={task}', '--repeats=3')
      b = theirs(
        'score',
        f'--workload={work}',
        f'--task={task}',
        f'--weights={weights}',
        '--repeats=2',
        '--sizes',
        *map(str, SIZES),
      )
      worst = max(
        worst,
        *(
          float(np.abs(np.subtract(x, y)).max())
          for x, y in zip(a['scores'], b['scores'], strict=True)
        ),
      )
      rates = {
        size: statistics.median(values)
        for size, values in b['candidates_per_second'].items()
      }
      best = max(rates, key=rates.get)
      best_sizes.append(int(best))
      mine.append(statistics.median(a['candidates_per_second']))
      other.append(rates[best])
      ratios.append(mine[-1] / other[-1])
      print(
        f'scoring {task}, round {turn + 1} of {args.rounds} done', flush=True
      )
    result[task] = {
      'ours': spread(mine),
      'theirs': spread(other),
      'their_best_batch_size': best_sizes,
      'ratio': spread(ratios),
      'largest_score_difference': worst,
    }
  return result


def table(results: dict) -> str:
  train = results['training']
  lines = [
    '| what | ours | theirs | ratio [min, max] |',
    '| --- | --- | --- | --- |',
  ]
  for sampling in SAMPLINGS:
    ratio = train[f'ratio_to_{sampling}']
    lines.append(
      f'| training, real tokens/s, TRL `{sampling}` '
      f'| {train["ours"]["median"]:,.0f} | {train[sampling]["median"]:,.0f} '
      f'| {ratio["median"]:.2f} [{ratio["min"]:.2f}, {ratio["max"]:.2f}] |'
    )
  for task, found in results['scoring'].items():
    ratio = found['ratio']
    lines.append(
      f'| scoring 64 candidates, {task}, candidates/s '
      f'| {found["ours"]["median"]:.1f} | {found["theirs"]["median"]:.1f} '
      f'| {ratio["median"]:.2f} [{ratio["min"]:.2f}, {ratio["max"]:.2f}] |'
    )
  peak, share = results['peak_gflops'], results['share_of_peak']
  lines += [
    '',
    '| share of the float32 matmul peak | ours | theirs |',
    '| --- | --- | --- |',
    f'| peak, 2048 cube, GFLOP/s | {peak["ours"]:.0f} | {peak["theirs"]:.0f} |',
    f'| training, 6 FLOPs per parameter and real token | '
    f'{100 * share["ours"]:.0f}% | {100 * share["theirs"]:.0f}% |',
    '',
    'Largest difference of a step score: '
    + ', '.join(
      f'{found["largest_score_difference"]:.1e} ({task})'
      for task, found in results['scoring'].items()
    )
    + '. Non-padding tokens in training: '
    + ', '.join(f'{100 * v:.0f}% ({k})' for k, v in train['fill'].items())
    + '.',
  ]
  return '\n'.join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parity-python', required=True)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--steps', type=int, default=8, help='timed, per run')
  parser.add_argument('--warmup-steps', type=int, default=3)
  parser.add_argument('--rows', type=int, default=4, help='ours, per batch')
  parser.add_argument('--row-length', type=int, default=1024)
  parser.add_argument('--batch-size', type=int, default=8, help='of TRL')
  args = parser.parse_args()
  threads = os.cpu_count()

  def ours(*arguments: str) -> dict:
    return worker(sys.executable, 'ours.py', *arguments)

  def theirs(what: str, *arguments: str) -> dict:
    python = args.parity_python
    return worker(python, 'theirs.py', what, f'--threads={threads}', *arguments)

  with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder) / 'workload.json'
    weights = pathlib.Path(folder) / 'weights.npz'
    made = workload_lib.make_workload(args.warmup_steps)
    work.write_text(json.dumps(made))
    ours('weights', f'--workload={work}', f'--weights={weights}')
    peaks = {'ours': ours('peak'), 'theirs': theirs('peak')}
    results = {
      'scoring': compare_scoring(
        ours, theirs, work, weights, list(made['score']), args
      ),
      'training': compare_training(ours, theirs, work, args),
      'peak_gflops': {side: run['gflops'] for side, run in peaks.items()},
    }
  best = max(SAMPLINGS, key=lambda s: results['training'][s]['median'])
  parameters = results['training']['parameters']
  results['share_of_peak'] = {
    side: 6e-9
    * parameters[side]
    * results['training'][key]['median']
    / peaks[side]['gflops']
    for side, key in (('ours', 'ours'), ('theirs', best))
  }
  manifest.write_json(
    HERE / 'results.json',
    {
      'command': 'python experiments/speed/run.py --parity-python PYTHON',
      'arguments': {
        k: v for k, v in vars(args).items() if k != 'parity_python'
      },
      'shape': workload_lib.SHAPE,
      'versions': peaks['ours']['versions'] | peaks['theirs']['versions'],
      'git_commit': manifest.git_commit(),
      'results': results,
    },
  )
  text = table(results)
  readme_table.fill(HERE / 'README.md', text)
  print(text)


if __name__ == '__main__':
  main()
