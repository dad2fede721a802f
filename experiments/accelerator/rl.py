"""Our side of RL: the loop of configs/rl_math.py, with the verifier's reward.

The case `policy` trains the policy that both sides start from, with
configs/policy_math.py on the same device, and writes the task of both. About
half of its chains are right.
"""

import functools
import json
import pathlib
import runpy
import sys

import jax

from experiments.accelerator import cases, rl_task
from experiments.runner import ROOT
from experiments.speed import our_rl
from experiments.speed import rl as speed
from prm_jax.jobs import policy as policy_job
from prm_jax.jobs import settings
from prm_jax.main import prepare_jax
from prm_jax.runtime.workdir import Workdir, with_defaults


def policy(folder: pathlib.Path, tiny: bool) -> dict:
  """Trains the first policy; writes it and the task."""
  workdir = folder / 'policy'
  make = runpy.run_path(str(ROOT / 'configs' / 'policy_math.py'))['get_config']
  config = make('tiny' if tiny else '')
  if not tiny:
    # Its own evaluation only has to show where RL begins.
    config.train.checkpoint_every = config.train.steps
    config.data.test_samples = config.evaluation.samples = 4
    config.evaluation.update(ns=(1, 4), resamples=200, max_problems=128)
  raw = config.to_dict()
  defaults = settings.default_config('policy').to_dict()
  opened = Workdir.open(str(workdir), with_defaults(raw, defaults), defaults)
  policy_job.run(settings.read_settings(raw), opened, print)
  found = opened.read_json('results.json')
  write_task(folder, tiny)
  return {
    'accuracy': found['results']['sampling']['arithmetic']['policy'][
      'accuracy'
    ]['mean'],
    'steps': config.train.steps,
  }


def write_task(folder: pathlib.Path, tiny: bool) -> None:
  """Writes the policy for transformers, and the task that both sides read."""
  variants = 'grpo,outcome' + (',tiny' if tiny else '')
  config = speed.make_config(variants, str(folder / 'policy'))
  loop = config.train
  # Only the last one is written.
  loop.checkpoint_every = loop.evaluate_every * loop.updates
  path = rl_task.path(folder)
  path.parent.mkdir(exist_ok=True)
  warmup, updates = (1, 2) if tiny else rl_task.MEASURED
  task = speed.make_task(config.to_dict(), path.parent / 'policy', warmup)
  cases.write(path, task | {'measured': updates})


def grpo(folder: pathlib.Path, compiled: our_rl.CompileClock) -> dict:
  """Measures the tokens per second of the loop."""
  before = compiled.seconds
  task = rl_task.measured(read_task(folder))
  found = rl_task.rate(task, our_rl.run(task))
  stats = jax.devices()[0].memory_stats() or {}
  return found | {
    'compile_seconds': compiled.seconds - before,
    'memory_bytes': stats.get('peak_bytes_in_use'),
  }


def to_90(
  folder: pathlib.Path, compiled: our_rl.CompileClock, ends: float
) -> dict:
  """Measures the time until 90% of held-out chains are right.

  Args:
    ends: `time.monotonic` after which it gives up.
  """
  before = compiled.seconds
  found = our_rl.race(read_task(folder)['config'], ends, compiled)
  return found | {'compile_seconds': compiled.seconds - before}


def read_task(folder: pathlib.Path) -> dict:
  """Reads the task that the case `policy` wrote."""
  return json.loads(rl_task.path(folder).read_text())


def main() -> None:
  setup = cases.read_arguments()
  prepare_jax(0)
  compiled = our_rl.CompileClock()
  cases.run(
    setup,
    {
      'policy': functools.partial(policy, setup.folder, setup.tiny),
      'grpo': functools.partial(grpo, setup.folder, compiled),
      'to_90': functools.partial(to_90, setup.folder, compiled, setup.ends),
    },
  )


if __name__ == '__main__':
  sys.exit(main())
