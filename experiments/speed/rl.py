"""Speed of the whole RL loop beside TRL's GRPOTrainer, on a CPU.

    python experiments/speed/rl.py --parity-python PYTHON --policy DIR --prm DIR

As sampling.py: both sides in processes of their own, in turn. Writes rl.json
and the table of RL.md beside this file.
"""

import argparse
import json
import os
import pathlib
import runpy
import statistics
import subprocess
import sys
import tempfile
import time

import jax

from prm_jax.export import export
from prm_jax.inference.generator import Generator
from prm_jax.jobs import rl, rl_meshes, rl_problems, rl_rating, rl_settings
from prm_jax.report import readme_table
from prm_jax.runtime import manifest
from prm_jax.runtime.checkpoints import Checkpoints

HERE = pathlib.Path(__file__).parent
CONFIG = HERE.parents[1] / 'configs' / 'rl_math.py'
COMMAND = (
  'python experiments/speed/rl.py --parity-python PYTHON --policy DIR --prm DIR'
)
# What pays -> variants of the config.
REWARDS = {'verifier': 'grpo,outcome', 'verifier and PRM': 'grpo'}
PARTS = ('sampling', 'scoring')  # training is what is left


def cores() -> int:
  """That this process may use."""
  return len(os.sched_getaffinity(0))


def make_config(rewards: str, args: argparse.Namespace) -> dict:
  """The config of our side, from which theirs is made."""
  config = runpy.run_path(str(CONFIG))['get_config'](REWARDS[rewards])
  config.policy.workdir = str(pathlib.Path(args.policy).absolute())
  if config.prm.kind != 'none':
    config.prm.path = str(pathlib.Path(args.prm).absolute())
  config.cpu_devices = args.devices
  updates = args.warmup + args.updates
  config.train.update(updates=updates, evaluate_every=args.warmup)
  config.train.checkpoint_every = args.warmup * updates  # the last one only
  config.optim.schedule = 'constant'  # as theirs
  return config.to_dict()


def make_task(config: dict, policy: pathlib.Path, warmup: int) -> dict:
  """What both sides read; theirs gets the problems in the order of ours.

  Args:
    policy: a folder that is written, with the policy for transformers.
  """
  settings = rl_settings.settings_of(config)
  loop = settings.loop
  fmt = rl_settings.open_start(
    config['policy']['workdir'], config, settings
  ).described.format
  train = rl_problems.read_tasks(config).train
  batches = rl_problems.batches_of(len(train), loop.problems, config['seed'])
  problems = [train[i] for _ in range(loop.updates) for i in next(batches)]
  export(config['policy']['workdir'], policy, 'lm')
  [prompt] = {len(fmt.encode_prompt(problem.text)) for problem in problems}
  return {
    'config': config,
    'warmup': warmup,
    'policy': str(policy),
    'prm': config['prm']['path'],
    'prompts': [problem.text for problem in problems],
    'truths': [problem.truth for problem in problems],
    # As the window of our policy has it.
    'max_tokens': min(settings.sampling.max_tokens, fmt.max_length - prompt),
  }


class Clock:
  """In the place of the looks at held-out problems: reads the clocks."""

  hacked = ()

  def __init__(self, policy: Generator):
    self._policy = policy
    self.wall, self.cpu, self.tokens = {}, {}, {}

  def look(self, update: int) -> tuple[dict[str, float], bool]:
    self.wall[update] = time.perf_counter()
    self.cpu[update] = time.process_time()
    self.tokens[update] = self._policy.stats.tokens
    return {rl_settings.BEST_METRIC: 0.0}, False


def ours(task: dict) -> dict:
  """The RL job without its evaluations."""
  config = task['config']
  settings = rl_settings.settings_of(config)
  meshes = rl_meshes.make_meshes(config)
  start = rl_settings.open_start(config['policy']['workdir'], config, settings)
  policy = Generator(
    start.load(meshes.sampling),
    start.described.model,
    start.described.format,
    meshes.sampling,
    settings.sampling,
    config['seed'],
  )
  prm = rl_rating.open_prm(config, settings, start, meshes.sampling)
  clock = Clock(policy)
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder)
    checkpoints = Checkpoints(
      workdir / 'checkpoints', settings.loop.keep, rl_settings.BEST_METRIC
    )
    rater = rl_rating.make_rater(
      settings, start, prm, checkpoints, meshes.sampling, config['seed']
    )
    rl.train(
      config,
      settings,
      start,
      policy,
      rater,
      rl_problems.read_tasks(config),
      checkpoints,
      clock,
      meshes,
      workdir,
    )
    checkpoints.close()
    text = (workdir / 'metrics.jsonl').read_text()
  first, last = task['warmup'], settings.loop.updates
  lines = [json.loads(line) for line in text.splitlines()]
  lines = [x for x in lines if x['step'] > first and 'accuracy' in x]
  return {
    'tokens': clock.tokens[last] - clock.tokens[first],
    'wall': clock.wall[last] - clock.wall[first],
    'cpu': clock.cpu[last] - clock.cpu[first],
    'parts': {k: sum(x[f'seconds_{k}'] for x in lines) for k in PARTS},
    'right': statistics.mean(x['accuracy'] for x in lines),
    'versions': {'jax': jax.__version__},
  }


def measure(command: list) -> dict:
  """What the process of one side says in its last line."""
  done = subprocess.run(
    [*map(str, command)],
    # Nothing is asked of the hub: the policy is a folder.
    env=os.environ | {'HF_HUB_OFFLINE': '1'},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    sys.exit(f'error: {command[1]} failed:\n{done.stderr[-3000:]}')
  return json.loads(done.stdout.splitlines()[-1])


def compare(rewards: str, args: argparse.Namespace) -> dict:
  """Both sides in turn."""
  config = make_config(rewards, args)
  found, versions = {'ours': [], 'theirs': []}, {}
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'task.json'
    task = make_task(config, pathlib.Path(folder) / 'policy', args.warmup)
    path.write_text(json.dumps(task))
    sides = {
      'ours': [sys.executable, __file__, f'--ours={path}'],
      'theirs': [
        args.parity_python,
        HERE / 'their_rl.py',
        f'--task={path}',
        f'--threads={cores()}',
      ],
    }
    for turn in range(args.rounds):
      # Who is first changes: the machine may be slower or faster all along.
      for side in [*sides][:: -1 if turn % 2 else 1]:
        run = measure(sides[side])
        versions |= run.pop('versions')
        found[side].append(run)
  row = {
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
    'threads': cores(),
    'devices': args.devices,
    'versions': versions,
    'git_commit': manifest.git_commit(),
  }
  print(render({'rows': [row]}), flush=True)
  return row


def rates(runs: list[dict], clock: str) -> list[float]:
  """Tokens a second, of each run."""
  return [run['tokens'] / run[clock] for run in runs]


def shares(runs: list[dict]) -> dict[str, float]:
  """Of the wall time of all runs."""
  whole = sum(run['wall'] for run in runs)
  parts = {k: sum(run['parts'][k] for run in runs) / whole for k in PARTS}
  return parts | {'training': 1 - sum(parts.values())}


def render(document: dict) -> str:
  lines = [
    '| rewards | ours, tokens/s | theirs | ratio [min, max] | of CPU seconds '
    '| sampling, scoring, training: ours | theirs '
    '| right chains: ours | theirs | cores, devices, updates, rounds |',
    f'|{" --- |" * 10}',
  ]
  for row in document['rows']:
    sides = 'ours', 'theirs'
    rate = [f'{statistics.median(row["rate"][side]):,.0f}' for side in sides]
    ratio = [
      f'{statistics.median(x):.2f} [{min(x):.2f}, {max(x):.2f}]'
      for x in (row['ratio']['wall'], row['ratio']['cpu'])
    ]
    spent = [
      ', '.join(f'{100 * x:.0f}%' for x in row['shares'][side].values())
      for side in sides
    ]
    right = [
      f'{100 * statistics.mean(run["right"] for run in row[side]):.0f}%'
      for side in sides
    ]
    sizes = row['threads'], row['devices'], row['updates'], len(row['ours'])
    cells = [row['rewards'], *rate, *ratio, *spent, *right]
    cells.append(', '.join(map(str, sizes)))
    lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parity-python')
  parser.add_argument('--policy', help='workdir of configs/policy_math.py')
  parser.add_argument('--prm', help='workdir of configs/prm_math.py')
  parser.add_argument('--rewards', nargs='+', choices=REWARDS, default=REWARDS)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--warmup', type=int, default=10, help='updates')
  parser.add_argument('--updates', type=int, default=20, help='measured')
  parser.add_argument(
    '--devices', type=int, default=cores(), help='of ours, as cpu_devices'
  )
  parser.add_argument('--ours', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.ours:
    task = json.loads(pathlib.Path(args.ours).read_text())
    devices = task['config']['cpu_devices']
    jax.config.update('jax_num_cpu_devices', devices)
    print(json.dumps(ours(task)))
    return
  for name in ('parity_python', 'policy', 'prm'):
    if not getattr(args, name):
      sys.exit(f'error: --{name.replace("_", "-")} is missing; see --help')
  kept = HERE / 'rl.json'
  rows = json.loads(kept.read_text())['rows'] if kept.exists() else []
  for rewards in args.rewards:
    others = [row for row in rows if row['rewards'] != rewards]
    rows = [*others, compare(rewards, args)]
    rows.sort(key=lambda row: [*REWARDS].index(row['rewards']))
    document = {'command': COMMAND, 'rows': rows}
    manifest.write_json(kept, document)
    readme_table.fill(HERE / 'RL.md', render(document))


if __name__ == '__main__':
  main()
