"""Sampling speed beside `transformers.generate`, on a CPU.

    python experiments/speed/sampling.py --parity-python PYTHON

As run.py: both sides in processes of their own, in turn. Writes sampling.json
and the table of SAMPLING.md beside this file.
"""

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import workload as workload_lib

from prm_jax.data.domains import arithmetic_text
from prm_jax.data.encoding import make_format
from prm_jax.inference.sampler import SamplingConfig, Stops
from prm_jax.inference.writer import Job, Writer
from prm_jax.models import TransformerConfig, init_params
from prm_jax.report import readme_table
from prm_jax.runtime import manifest
from prm_jax.runtime.sharding import flat_mesh

HERE = pathlib.Path(__file__).parent
COMMAND = 'python experiments/speed/sampling.py --parity-python PYTHON'
TASKS = {
  'shared': '64 samples of each prompt',
  'plain': '64 prompts of one length',
}
SAMPLES = 64  # of every prompt: the batch of transformers, our slots
# Random weights: when a chain ends is part of the task, equal for both.
MODELS = {
  'arithmetic': dict(
    vocab_size=110, d_model=192, n_layers=4, n_heads=6, n_kv_heads=6, d_ff=576
  ),
  'smollm2': dict(
    vocab_size=49_152,
    d_model=576,
    n_layers=30,
    n_heads=9,
    n_kv_heads=3,
    d_ff=1536,
  ),
}


def arithmetic_task(prompts: int) -> list[dict]:
  """Problems of 3 to 8 operations; a step for each, or one more or less."""
  fmt, rng = make_format('arithmetic', 128), random.Random(0)
  batches = []
  for _ in range(prompts):
    count = rng.randint(3, 8)
    parts = [f'{rng.choice("+-*")} {rng.randint(1, 9)}' for _ in range(count)]
    problem = f'mod 10 : {rng.randint(1, 9)} {" ".join(parts)}'
    assert arithmetic_text.is_problem(problem)
    steps = [count + rng.choice((-1, 0, 0, 0, 1)) for _ in range(SAMPLES)]
    batches.append(
      {
        'prompts': [fmt.encode_prompt(problem)],
        'lengths': [6 * n + 1 for n in steps],
      }
    )
  return batches


def gsm8k_task(prompts: int) -> list[dict]:
  """GSM8K problems; chains as long as real solutions of other models."""
  fmt = workload_lib.make_format_of('smollm2')
  path = workload_lib.data_root() / 'best_of_n' / 'gsm8k_test_pool.jsonl'
  rows = [json.loads(line) for line in path.read_bytes().splitlines()]
  rng = random.Random(0)
  solutions = [c['text'] for row in rows[:200] for c in row['candidates']]
  return [
    {
      'prompts': [fmt.encode_prompt(row['question'])],
      'lengths': [
        len(fmt.tokenizer.encode(text))
        for text in rng.sample(solutions, SAMPLES)
      ],
    }
    for row in rng.sample(rows, prompts)
  ]


def plain_task(model: str) -> list[dict]:
  """64 prompts of one length, and as many tokens after each."""
  rng = random.Random(0)
  prompts = [[rng.randrange(4, 110) for _ in range(32)] for _ in range(SAMPLES)]
  length = 64 if model == 'arithmetic' else 32
  return [{'prompts': prompts, 'lengths': [length] * SAMPLES}]


def ours(task: dict, clock: str) -> dict:
  """The same with `Writer`, all prompts at once."""
  now = time.process_time if clock == 'cpu' else time.perf_counter
  config = TransformerConfig(**task['model'])
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), config)
  jobs = []
  for batch in task['batches']:
    each = len(batch['lengths']) // len(batch['prompts'])
    for i, length in enumerate(batch['lengths']):
      ids = tuple(batch['prompts'][i // each])
      jobs.append(Job(ids, len(jobs), max_tokens=length))
  window = max(len(job.ids) + job.max_tokens for job in jobs)
  writer = Writer(
    params,
    config,
    flat_mesh(),
    SamplingConfig(slots=SAMPLES, max_tokens=window),
    Stops(-1, -1),  # no token ends a chain: the lengths are given
    window,
  )
  del params
  writer.write(jobs)  # compiles
  writer.stats.tokens = writer.stats.slot_steps = 0
  began = now()
  written = writer.write(jobs)
  seconds = now() - began
  lengths = [len(each.tokens) for each in written]
  assert lengths == [job.max_tokens for job in jobs]
  return {
    'tokens': sum(lengths),
    'seconds': seconds,
    'slots_in_use': writer.stats.tokens / writer.stats.slot_steps,
    'programs': sorted(map(list, writer.stats.programs)),
    'versions': {'jax': jax.__version__},
  }


def compare(model: str, what: str, batches: list[dict], args) -> dict:
  """Tokens per second of both, in turn."""
  task = {
    'model': MODELS[model],
    'batches': batches,
    'warmup': [
      {'prompts': b['prompts'], 'lengths': [2] * SAMPLES} for b in batches[:1]
    ],
  }
  rates = {'ours': [], 'theirs': []}
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'task.json'
    path.write_text(json.dumps(task))
    sides = {
      'ours': [sys.executable, __file__, f'--ours={path}'],
      'theirs': [
        args.parity_python,
        HERE / 'their_sampling.py',
        f'--task={path}',
        f'--threads={len(os.sched_getaffinity(0))}',
      ],
    }
    found = {}
    for _ in range(args.rounds):
      for side, command in sides.items():
        done = subprocess.run(
          [*map(str, command)],
          env=os.environ | {'SPEED_CLOCK': args.clock},
          capture_output=True,
          text=True,
          check=False,
        )
        if done.returncode:
          sys.exit(f'error: {side} failed:\n{done.stderr[-3000:]}')
        found[side] = json.loads(done.stdout.splitlines()[-1])
        rates[side].append(found[side]['tokens'] / found[side]['seconds'])
  assert found['ours']['tokens'] == found['theirs']['tokens']
  ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
  row = {
    'model': model,
    'what': what,
    'rates': rates,
    'ratio': statistics.median(ratios),
    'ratios': ratios,
    'tokens': found['ours']['tokens'],
    'prompt_tokens': [len(b['prompts'][0]) for b in batches],
    'parameters': found['theirs']['parameters'],
    'slots_in_use': found['ours']['slots_in_use'],
    'programs': found['ours']['programs'],
    'versions': found['ours']['versions'] | found['theirs']['versions'],
    'clock': args.clock,
    'threads': len(os.sched_getaffinity(0)),
  }
  print(render({'rows': [row]}), flush=True)
  return row


def render(document: dict) -> str:
  lines = [
    '| model | what | new tokens | ours, tokens/s | theirs | ratio [min, max] '
    '| clock, threads, rounds |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for row in document['rows']:
    mine, other = (statistics.median(v) for v in row['rates'].values())
    lines.append(
      f'| {row["model"]} | {row["what"]} | {row["tokens"]:,} | {mine:,.0f} '
      f'| {other:,.0f} | {row["ratio"]:.2f} [{min(row["ratios"]):.2f}, '
      f'{max(row["ratios"]):.2f}] | {row["clock"]}, {row["threads"]}, '
      f'{len(row["ratios"])} |'
    )
  return '\n'.join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parity-python')
  parser.add_argument('--models', nargs='+', choices=MODELS, default=[*MODELS])
  parser.add_argument('--tasks', nargs='+', choices=TASKS, default=[*TASKS])
  parser.add_argument('--clock', choices=('wall', 'cpu'), default='wall')
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--prompts', type=int, default=0, help='0: 16 or 4')
  parser.add_argument('--ours', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.ours:
    task = json.loads(pathlib.Path(args.ours).read_text())
    if task['model'] == MODELS['arithmetic']:
      # A device a core, as `cpu_devices` in a config: XLA runs the small
      # products of one step on a single core each. The slots are split between
      # them. Large ones are divided, and their weights are read once.
      devices = math.gcd(SAMPLES, len(os.sched_getaffinity(0)))
      jax.config.update('jax_num_cpu_devices', devices)
    print(json.dumps(ours(task, os.environ['SPEED_CLOCK'])))
    return
  if not args.parity_python:
    sys.exit('error: --parity-python is missing: a Python with transformers')
  kept = HERE / 'sampling.json'
  rows = json.loads(kept.read_text())['rows'] if kept.exists() else []
  for model in args.models:
    make = arithmetic_task if model == 'arithmetic' else gsm8k_task
    prompts = args.prompts or (16 if model == 'arithmetic' else 4)
    for name in args.tasks:
      what = TASKS[name]
      batches = make(prompts) if name == 'shared' else plain_task(model)
      others = [r for r in rows if (r['model'], r['what']) != (model, what)]
      rows = [*others, compare(model, what, batches, args)]
    rows.sort(
      key=lambda row: (
        [*MODELS].index(row['model']),
        [*TASKS.values()].index(row['what']),
      )
    )
    document = {'command': COMMAND, 'rows': rows}
    manifest.write_json(kept, document)
    readme_table.fill(HERE / 'SAMPLING.md', render(document))


if __name__ == '__main__':
  main()
