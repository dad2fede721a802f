"""Speed of the whole RL loop beside TRL's GRPOTrainer, on a CPU.

    python -m experiments.speed.rl --parity-python PYTHON --policy DIR --prm DIR

As in run.py, both sides run in processes of their own, in turn. Writes rl.json
and the table of RL.md beside this file.
"""

import argparse
import functools
import json
import operator
import pathlib
import runpy
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments import command_line
from experiments.runner import ROOT
from experiments.speed import sides
from experiments.speed.our_rl import PARTS
from experiments.tables import table
from prm_jax.export import export
from prm_jax.jobs import rl_problems
from prm_jax.jobs.rl_start import open_start
from prm_jax.jobs.settings import read_settings
from prm_jax.runtime import manifest
from prm_jax.runtime.errors import exit_on_user_error

CONFIG = ROOT / 'configs' / 'rl_math.py'
Runs = dict[str, list[dict[str, Any]]]  # of both sides
LOOKED = ('update', 'seconds')
# What a chain is paid for -> variants of the config.
REWARDS = {'verifier': 'grpo,outcome', 'verifier and PRM': 'grpo'}


def make_config(variants: str, policy: str, prm: str = '') -> ConfigDict:
  """Returns the config of our side, from which theirs is made.

  Args:
    variants: variants of configs/rl_math.py.
    policy: workdir of the policy that is improved.
    prm: workdir of the PRM, if the variants read one.
  """
  config = runpy.run_path(str(CONFIG))['get_config'](variants)
  config.policy.workdir = str(pathlib.Path(policy).absolute())
  if config.prm.kind != 'none':
    config.prm.path = str(pathlib.Path(prm).absolute())
  config.optim.schedule = 'constant'  # as TRL's is
  return config


def set_updates(train: Any, warmup: int, updates: int) -> None:
  """Sets how long a measured run is, in the config's section `train`.

  Args:
    warmup: updates that are not measured.
    updates: updates that are.
  """
  train['updates'] = warmup + updates
  train['evaluate_every'] = warmup
  # Only the last one is written.
  train['checkpoint_every'] = warmup * (warmup + updates)


def make_task(config: dict, policy: pathlib.Path, warmup: int) -> dict:
  """Makes what both sides read, with the problems in our order.

  Args:
    policy: folder to write, with the policy for transformers.
    warmup: updates that are not measured.
  """
  settings = read_settings(config)
  loop, workdir = settings.train, settings.policy.workdir
  fmt = open_start(workdir, settings).described.format
  tasks = rl_problems.read_tasks(settings, print)
  batches = rl_problems.iterate_batches(
    len(tasks.train), loop.problems, settings.seed
  )
  problems = [
    tasks.train[i] for _ in range(loop.updates) for i in next(batches)
  ]
  export(workdir, policy, 'lm')
  [prompt] = {len(fmt.encode_prompt(problem.text)) for problem in problems}
  return {
    'config': config,
    'warmup': warmup,
    'policy': str(policy),
    'prm': settings.prm.path,
    'prompts': [problem.text for problem in problems],
    'truths': [problem.truth for problem in problems],
    'held_out': [
      {'prompt': problem.text, 'truth': problem.truth}
      for problem in tasks.held_out
    ],
    # As many as fit the window of our policy.
    'max_tokens': min(settings.sampling.max_tokens, fmt.max_length - prompt),
  }


def in_turn(
  task: dict, args: argparse.Namespace, turn: int, minutes: float
) -> dict[str, dict]:
  """Runs both sides on a task; returns what each of them found.

  Args:
    turn: the first side changes with it, as the machine may be slower or faster
      later on.
    minutes: time for a race; 0 measures the rate.
  """
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'task.json'
    path.write_text(json.dumps(task))
    commands = {
      'ours': sides.ours('our_rl', f'--task={path}', f'--minutes={minutes}'),
      'theirs': sides.theirs(
        args.parity_python,
        'their_rl',
        f'--task={path}',
        f'--threads={sides.cores()}',
        f'--minutes={minutes}',
      ),
    }
    found = {}
    for side in [*commands][:: -1 if turn % 2 else 1]:
      # Nothing is asked of the hub: the policy is a folder. A race compiles
      # everything: what other runs compiled is not there.
      compiled = {'JAX_COMPILATION_CACHE_DIR': f'{folder}/{side}'}
      found[side] = sides.measure(
        commands[side], HF_HUB_OFFLINE='1', **(compiled if minutes else {})
      )
      of = found[side]
      done = (
        f'{of["updates"]} updates in {of["seconds"]:.0f} s'
        if minutes
        else (f'{of["tokens"] / of["wall"]:,.0f} tokens/s')
      )
      print(f'{side}: {done}', flush=True)
  return found


def compare(rewards: str, args: argparse.Namespace) -> dict[str, Any]:
  """Measures the tokens per second of both sides."""
  config = make_config(REWARDS[rewards], args.policy, args.prm)
  config.cpu_devices = args.devices
  set_updates(config.train, args.warmup, args.updates)
  found: Runs = {'ours': [], 'theirs': []}
  with tempfile.TemporaryDirectory() as folder:
    policy = pathlib.Path(folder) / 'policy'
    task = make_task(config.to_dict(), policy, args.warmup)
    for turn in range(args.rounds):
      for side, run in in_turn(task, args, turn, 0.0).items():
        found[side].append(run)
  versions = [run.pop('versions') for runs in found.values() for run in runs]
  return {
    'rewards': rewards,
    **found,
    'rate': {side: rates(runs, 'wall') for side, runs in found.items()},
    'ratio': {
      clock: [
        a / b
        for a, b in zip(
          *(rates(runs, clock) for runs in found.values()), strict=True
        )
      ]
      for clock in ('wall', 'cpu')
    },
    'shares': {side: shares(runs) for side, runs in found.items()},
    'chains': config.train.problems * config.train.samples,
    'updates': args.updates,
    'max_tokens': task['max_tokens'],
    'threads': sides.cores(),
    'devices': args.devices,
    'versions': functools.reduce(operator.or_, versions),
    'git_commit': manifest.git_commit(),
  }


def add_races(
  row: dict[str, Any], args: argparse.Namespace, keep: Callable[[], None]
) -> None:
  """Adds races to 90% to a row until there are as many as asked for.

  Args:
    keep: writes the row, after each race.
  """
  config = make_config(REWARDS[row['rewards']], args.policy, args.prm)
  config.cpu_devices = args.devices
  # Only the last one is written.
  config.train.checkpoint_every = (
    config.train.evaluate_every * config.train.updates
  )
  races = row['races']
  with tempfile.TemporaryDirectory() as folder:
    for turn in range(len(races['ours']), args.races):
      config.seed = 1 + turn
      policy = pathlib.Path(folder) / f'policy_{config.seed}'
      task = make_task(config.to_dict(), policy, args.warmup)
      for side, run in in_turn(task, args, turn, args.minutes).items():
        races[side].append(run)
      row['race_minutes'] = args.minutes
      keep()


def read_rows() -> dict[str, dict[str, Any]]:
  """Returns the rows that earlier commands measured, by their rewards."""
  path = sides.HERE / 'rl.json'
  rows = json.loads(path.read_text())['rows'] if path.exists() else []
  return {row['rewards']: row for row in rows}


def races_of(row: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the races of a row, which stay where its rate is measured anew."""
  races = row.get('races') or {'ours': [], 'theirs': []}
  return {'races': races, 'race_minutes': row.get('race_minutes', 0.0)}


def rates(runs: Sequence[Mapping[str, Any]], clock: str) -> list[float]:
  """Returns the tokens per second of each run."""
  return [run['tokens'] / run[clock] for run in runs]


def shares(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Returns the share of each part in the wall time of all runs."""
  whole = sum(run['wall'] for run in runs)
  parts = {k: sum(run['parts'][k] for run in runs) / whole for k in PARTS}
  return parts | {'training': 1 - sum(parts.values())}


def render(document: Mapping[str, Any]) -> str:
  """Makes the table."""
  both = 'ours', 'theirs'
  rows = []
  for row in document['rows']:
    sizes = row['threads'], row['devices'], row['updates'], len(row['ours'])
    rows.append(
      [
        row['rewards'],
        *(f'{statistics.median(row["rate"][side]):,.0f}' for side in both),
        *(sides.spread(row['ratio'][clock]) for clock in ('wall', 'cpu')),
        *(
          ', '.join(f'{100 * x:.0f}%' for x in row['shares'][side].values())
          for side in both
        ),
        *(
          f'{100 * statistics.mean(run["right"] for run in row[side]):.0f}%'
          for side in both
        ),
        ', '.join(map(str, sizes)),
      ]
    )
  heads = (
    'rewards | ours, tokens/s | theirs | ratio [min, max] | of CPU seconds | '
    'sampling, scoring, training: ours | theirs | right chains: ours | '
    'theirs | cores, devices, updates, rounds'
  )
  return f'{table(heads, rows)}\n\n{render_races(document)}'


def order(row: Mapping[str, Any]) -> int:
  """Returns where a row stands in the table."""
  return [*REWARDS].index(row['rewards'])


def race_text(runs: Sequence[Mapping[str, Any]]) -> str:
  """Says when each race of a side was won, in seconds and updates."""
  shown = ', '.join(
    f'{run["seconds"]:.0f} s ({run["updates"]})'
    if run['reached']
    else f'not in {run["seconds"]:.0f} s ({run["updates"]}; '
    f'{100 * run["accuracy"]:.0f}%)'
    for run in runs
  )
  return shown or 'none'


def race_ratios(row: Mapping[str, Any]) -> list[float]:
  """Returns how many times longer theirs took in each race."""
  return [
    theirs['seconds'] / ours['seconds']
    for ours, theirs in zip(*row['races'].values(), strict=True)
  ]


def extrapolated(row: Mapping[str, Any]) -> int:
  """Counts the races in which theirs ended after fewer updates than ours."""
  races = zip(*row['races'].values(), strict=True)
  return sum(ours['updates'] > theirs['updates'] for ours, theirs in races)


def at_equal_updates(row: Mapping[str, Any]) -> list[float]:
  """Returns how many times longer theirs took for as many updates as ours.

  Where theirs ended before, the rest is extrapolated.
  """
  found = []
  for ours, theirs in zip(*row['races'].values(), strict=True):
    looks = theirs['curve']
    updates, seconds = ([look[k] for look in looks] for k in LOOKED)
    known = np.interp(ours['updates'], updates, seconds)
    if ours['updates'] > updates[-1]:
      known = seconds[-1] * ours['updates'] / updates[-1]
    found.append(float(known) / ours['seconds'])
  return found


def spread_of_races(row: Mapping[str, Any]) -> str:
  """Formats `race_ratios`; where theirs was stopped, its ratio is a least."""
  _, theirs = row['races'].values()
  shown = sides.spread(race_ratios(row))
  return shown if all(run['reached'] for run in theirs) else f'{shown}, or more'


def render_races(document: Mapping[str, Any]) -> str:
  """Makes the table of the races."""
  rows = []
  for row in document['rows']:
    ratios = ['', '']
    if row['races']['ours']:
      ratios = [
        spread_of_races(row),
        f'{sides.spread(at_equal_updates(row))}; {extrapolated(row)}',
      ]
    rows.append(
      [row['rewards'], *map(race_text, row['races'].values()), *ratios]
    )
  heads = (
    'rewards | ours, to 90% | theirs | ratio [min, max] | '
    'ratio after as many updates as ours; of them extrapolated'
  )
  return table(heads, rows)


@exit_on_user_error()
def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--parity-python', output=False
  )
  whole, some = command_line.at_least(0), command_line.at_least(1)
  parser.add_argument(
    '--rounds',
    type=whole,
    default=3,
    help='times that each side is measured; 0 adds races alone',
  )
  parser.add_argument('--policy', help='workdir of configs/policy_math.py')
  parser.add_argument('--prm', help='workdir of configs/prm_math.py')
  parser.add_argument('--rewards', nargs='+', choices=REWARDS, default=REWARDS)
  parser.add_argument(
    '--warmup', type=some, default=20, help='updates that are not measured'
  )
  parser.add_argument(
    '--updates', type=some, default=40, help='updates that are measured'
  )
  parser.add_argument(
    '--devices', type=some, default=sides.cores(), help='our cpu_devices'
  )
  parser.add_argument(
    '--races', type=whole, default=3, help='races to 90%%, each with its seed'
  )
  parser.add_argument(
    '--minutes',
    type=float,
    default=8.0,
    help='time after which a race is given up',
  )
  args = command_line.parse(parser)
  for name in ('policy', 'prm'):
    if not getattr(args, name):
      parser.error(f'--{name} is missing')
  command_line.check_parity_python(parser, args, 'torch', 'trl')
  command = f'{args.command} --parity-python PYTHON --policy DIR --prm DIR'
  known = read_rows()
  if (lacking := set(args.rewards) - set(known)) and not args.rounds:
    parser.error(
      '--rounds 0 adds races to a row, and rl.json has none of '
      f'{min(lacking)!r}; measure it first, with --rounds 5'
    )
  for rewards in args.rewards:
    before = known.get(rewards, {})
    row = compare(rewards, args) if args.rounds else before
    row |= races_of(before)
    keep = functools.partial(sides.keep_row, row, order, 'rl', command, render)
    keep()  # a race takes minutes, and may fail
    add_races(row, args, keep)


if __name__ == '__main__':
  main()
