"""Speed of the whole RL loop beside TRL's GRPOTrainer, on a CPU.

    python -m experiments.speed.rl --parity-python PYTHON --policy DIR --prm DIR

As in run.py, both sides run in processes of their own, in turn. Writes rl.json
and the table of RL.md beside this file.
"""

import argparse
import functools
import json
import pathlib
import runpy
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from experiments import command_line
from experiments.runner import ROOT
from experiments.speed import sides
from experiments.tables import table
from prm_jax.export import export
from prm_jax.inference.generator import Generator
from prm_jax.jobs import rl, rl_problems
from prm_jax.jobs.rl import RlJob
from prm_jax.jobs.rl_rating import make_rater
from prm_jax.jobs.rl_start import BEST_METRIC, open_start
from prm_jax.jobs.settings import read_settings
from prm_jax.runtime import manifest
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.workdir import Workdir

CONFIG = ROOT / 'configs' / 'rl_math.py'
# What a chain is paid for -> variants of the config.
REWARDS = {'verifier': 'grpo,outcome', 'verifier and PRM': 'grpo'}
PARTS = ('sampling', 'scoring')  # training is what is left


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
  tasks = rl_problems.read_tasks(settings)
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


# Job, policy, number of an update -> metrics, and whether the run ends there.
Look = Callable[[RlJob, Generator, int], tuple[dict[str, float], bool]]


class Clock:
  """Reads the clocks where a job evaluates the policy on held-out problems."""

  def __init__(self):
    self.wall, self.cpu, self.tokens = {}, {}, {}

  def look(
    self, job: RlJob, policy: Generator, update: int
  ) -> tuple[dict[str, float], bool]:
    """Notes the clocks and the tokens after an update."""
    del job
    self.wall[update] = time.perf_counter()
    self.cpu[update] = time.process_time()
    self.tokens[update] = policy.stats.tokens
    return {BEST_METRIC: 0.0}, False


def train(config: dict, look: Look) -> list[dict[str, float]]:
  """Runs the RL job, with `look` in place of its evaluations.

  Returns:
    The lines of its metrics file.
  """
  settings = read_settings(config)
  with tempfile.TemporaryDirectory() as folder:
    workdir = Workdir(pathlib.Path(folder), config)
    job = rl.open_job(settings, workdir, print)
    policy = rl.make_policy(job)
    checkpoints = Checkpoints(
      workdir / 'checkpoints', settings.train.keep, BEST_METRIC
    )
    rater = make_rater(
      settings, job.start, job.prm, checkpoints, job.meshes.sampling
    )
    evaluate = functools.partial(look, job, policy)
    rl.train(job, policy, rater, checkpoints, evaluate, workdir)
    checkpoints.close()
    text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def ours(task: dict) -> dict:
  """Measures our side: the RL job without its evaluations."""
  clock = Clock()
  lines = train(task['config'], clock.look)
  first, last = task['warmup'], task['config']['train']['updates']
  lines = [x for x in lines if x['step'] > first and 'accuracy' in x]
  return {
    'tokens': clock.tokens[last] - clock.tokens[first],
    'wall': clock.wall[last] - clock.wall[first],
    'cpu': clock.cpu[last] - clock.cpu[first],
    'parts': {k: sum(x[f'seconds_{k}'] for x in lines) for k in PARTS},
    'right': statistics.mean(x['accuracy'] for x in lines),
    'versions': {'jax': jax.__version__},
  }


def compare(rewards: str, args: argparse.Namespace) -> dict[str, Any]:
  """Measures both sides, in turn."""
  config = make_config(REWARDS[rewards], args.policy, args.prm)
  config.cpu_devices = args.devices
  set_updates(config.train, args.warmup, args.updates)
  config = config.to_dict()
  found, versions = {'ours': [], 'theirs': []}, {}
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'task.json'
    task = make_task(config, pathlib.Path(folder) / 'policy', args.warmup)
    path.write_text(json.dumps(task))
    commands = {
      'ours': sides.ours('rl', f'--ours={path}'),
      'theirs': sides.theirs(
        args.parity_python,
        'their_rl.py',
        f'--task={path}',
        f'--threads={sides.cores()}',
      ),
    }
    for turn in range(args.rounds):
      # The first side changes, as the machine may be slower or faster later on.
      for side in [*commands][:: -1 if turn % 2 else 1]:
        # Nothing is asked of the hub: the policy is a folder.
        run = sides.measure(commands[side], HF_HUB_OFFLINE='1')
        versions |= run.pop('versions')
        found[side].append(run)
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
    'chains': config['train']['problems'] * config['train']['samples'],
    'updates': args.updates,
    'max_tokens': task['max_tokens'],
    'threads': sides.cores(),
    'devices': args.devices,
    'versions': versions,
    'git_commit': manifest.git_commit(),
  }


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
  return table(heads, rows)


def order(row: Mapping[str, Any]) -> int:
  """Returns where a row stands in the table."""
  return [*REWARDS].index(row['rewards'])


def run_ours(path: pathlib.Path) -> None:
  """Measures our side in this process; prints one line of JSON."""
  task = json.loads(path.read_text())
  jax.config.update('jax_num_cpu_devices', task['config']['cpu_devices'])
  print(json.dumps(ours(task)))


def main() -> None:
  parser = command_line.make_parser(
    __doc__, __file__, '--parity-python', '--rounds', output=False
  )
  parser.add_argument('--policy', help='workdir of configs/policy_math.py')
  parser.add_argument('--prm', help='workdir of configs/prm_math.py')
  parser.add_argument('--rewards', nargs='+', choices=REWARDS, default=REWARDS)
  parser.add_argument(
    '--warmup', type=int, default=10, help='updates that are not measured'
  )
  parser.add_argument(
    '--updates', type=int, default=20, help='updates that are measured'
  )
  parser.add_argument(
    '--devices', type=int, default=sides.cores(), help='our cpu_devices'
  )
  parser.add_argument('--ours', type=pathlib.Path, help=argparse.SUPPRESS)
  args = command_line.parse(parser)
  if args.ours:
    run_ours(args.ours)
    return
  for name in ('parity_python', 'policy', 'prm'):
    if not getattr(args, name):
      parser.error(f'--{name.replace("_", "-")} is missing')
  command = f'{args.command} --parity-python PYTHON --policy DIR --prm DIR'
  for rewards in args.rewards:
    sides.keep_row(compare(rewards, args), order, 'rl', command, render)


if __name__ == '__main__':
  main()
