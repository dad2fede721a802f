"""Sampling speed beside `transformers.generate`, on a CPU.

    python -m experiments.speed.sampling --parity-python PYTHON

As in run.py, both sides run in processes of their own, in turn. Writes
sampling.json and the table of SAMPLING.md beside this file.
"""

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import tempfile
from collections.abc import Mapping
from typing import Any

import jax

from experiments import command_line
from experiments.speed import sides
from experiments.speed import workload as workload_lib
from experiments.tables import table
from prm_jax import SamplingConfig
from prm_jax.data.domains import arithmetic_text
from prm_jax.data.encoding import make_format
from prm_jax.inference.sampler import Stops
from prm_jax.inference.writer import SampleRequest, SamplingStats, Writer
from prm_jax.models import TransformerConfig, init_params
from prm_jax.runtime.errors import exit_on_user_error
from prm_jax.runtime.sharding import flat_mesh

TASKS = {
  'shared': '64 samples of each prompt',
  'plain': '64 prompts of one length',
}
SAMPLES = 64  # of every prompt; the batch of transformers, and our slots
# The weights are random, and the task says where each chain ends.
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
  """Makes problems of 3 to 8 operations, with about a step for each.

  Args:
    prompts: number of problems.
  """
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
  """Takes GSM8K problems, with chains as long as real solutions.

  Args:
    prompts: number of problems.
  """
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
  """Makes 64 prompts of one length, with equally many tokens after each."""
  rng = random.Random(0)
  prompts = [[rng.randrange(4, 110) for _ in range(32)] for _ in range(SAMPLES)]
  length = 64 if model == 'arithmetic' else 32
  return [{'prompts': prompts, 'lengths': [length] * SAMPLES}]


def ours(task: dict, clock: str) -> dict:
  """Measures our side of a task: `Writer` with all prompts at once."""
  now = sides.CLOCKS[clock]
  config = TransformerConfig(**task['model'])
  params = jax.jit(init_params, static_argnums=1)(jax.random.key(0), config)
  jobs = []
  for batch in task['batches']:
    samples = len(batch['lengths']) // len(batch['prompts'])
    for i, length in enumerate(batch['lengths']):
      ids = tuple(batch['prompts'][i // samples])
      jobs.append(SampleRequest(ids, len(jobs), max_tokens=length))
  window = max(len(job.ids) + job.max_tokens for job in jobs)
  writer = Writer(
    params,
    config,
    flat_mesh(),
    SamplingConfig(slots=SAMPLES, max_tokens=window),
    Stops(-1, -1),  # no token ends a chain, as the lengths are given
    window,
  )
  del params
  writer.write(jobs)  # compiles
  writer.stats = SamplingStats(programs=writer.stats.programs)
  began = now()
  written = writer.write(jobs)
  seconds = now() - began
  lengths = [len(sample.tokens) for sample in written]
  assert lengths == [job.max_tokens for job in jobs]
  return {
    'tokens': sum(lengths),
    'seconds': seconds,
    'slots_in_use': writer.stats.tokens / writer.stats.slot_steps,
    'programs': sorted(map(list, writer.stats.programs)),
    'versions': {'jax': jax.__version__},
  }


def compare(
  model: str, what: str, batches: list[dict], args: argparse.Namespace
) -> dict[str, Any]:
  """Measures tokens per second of both sides, in turn."""
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
    commands = {
      'ours': sides.ours('sampling', f'--ours={path}'),
      'theirs': sides.theirs(
        args.parity_python,
        'their_sampling',
        f'--task={path}',
        f'--threads={sides.cores()}',
      ),
    }
    found = {}
    for _ in range(args.rounds):
      for side, command in commands.items():
        run = sides.measure(command, **{sides.CLOCK_VARIABLE: args.clock})
        rates[side].append(run['tokens'] / run['seconds'])
        found[side] = run
  mine, other = found['ours'], found['theirs']
  assert mine['tokens'] == other['tokens']
  ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
  return {
    'model': model,
    'what': what,
    'rates': rates,
    'ratio': statistics.median(ratios),
    'ratios': ratios,
    'tokens': mine['tokens'],
    'prompt_tokens': [len(b['prompts'][0]) for b in batches],
    'parameters': other['parameters'],
    'slots_in_use': mine['slots_in_use'],
    'programs': mine['programs'],
    'versions': mine['versions'] | other['versions'],
    'clock': args.clock,
    'threads': sides.cores(),
  }


def render(document: Mapping[str, Any]) -> str:
  """Makes the table."""
  rows = []
  for row in document['rows']:
    rates = [
      f'{statistics.median(rates):,.0f}' for rates in row['rates'].values()
    ]
    rows.append(
      [
        row['model'],
        row['what'],
        f'{row["tokens"]:,}',
        *rates,
        sides.spread(row['ratios']),
        f'{row["clock"]}, {row["threads"]}, {len(row["ratios"])}',
      ]
    )
  heads = (
    'model | what | new tokens | ours, tokens/s | theirs | ratio [min, max] | '
    'clock, threads, rounds'
  )
  return table(heads, rows)


def order(row: Mapping[str, Any]) -> tuple[int, int]:
  """Returns where a row stands in the table."""
  return (
    [*MODELS].index(row['model']),
    [*TASKS.values()].index(row['what']),
  )


def run_ours(path: pathlib.Path) -> None:
  """Measures our side in this process; prints one line of JSON."""
  task = json.loads(path.read_text())
  if task['model'] == MODELS['arithmetic']:
    # XLA runs the small products of this model on one core each, so every core
    # is a device (`cpu_devices` in a config), and the slots are split between
    # them. Large products are divided by XLA, and their weights are read once.
    devices = math.gcd(SAMPLES, sides.cores())
    jax.config.update('jax_num_cpu_devices', devices)
  print(json.dumps(ours(task, os.environ[sides.CLOCK_VARIABLE])))


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--parity-python', '--clock', '--rounds', output=False
  )
  parser.add_argument('--models', nargs='+', choices=MODELS, default=[*MODELS])
  parser.add_argument('--tasks', nargs='+', choices=TASKS, default=[*TASKS])
  parser.add_argument(
    '--prompts', type=int, default=0, help='0: 16, or 4 for smollm2'
  )
  parser.add_argument('--ours', type=pathlib.Path, help=argparse.SUPPRESS)
  args = command_line.parse(parser)
  if args.ours:
    run_ours(args.ours)
    return
  command_line.check_parity_python(parser, args, 'torch', 'transformers')
  for model in args.models:
    make = arithmetic_task if model == 'arithmetic' else gsm8k_task
    prompts = args.prompts or (16 if model == 'arithmetic' else 4)
    for name in args.tasks:
      batches = make(prompts) if name == 'shared' else plain_task(model)
      row = compare(model, TASKS[name], batches, args)
      command = f'{args.command} --parity-python PYTHON'
      sides.keep_row(row, order, 'sampling', command, render)


if __name__ == '__main__':
  main()
