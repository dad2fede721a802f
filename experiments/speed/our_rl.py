"""The RL job on the task of rl.py, in its own process.

Reads a JSON task and prints one line of JSON: tokens and where time went, or
when 90% of held-out chains were right.
"""

import argparse
import functools
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.speed.race import Race
from prm_jax.inference.generator import Generator
from prm_jax.jobs import rl
from prm_jax.jobs.rl import RlJob
from prm_jax.jobs.rl_rating import make_rater
from prm_jax.jobs.rl_start import BEST_METRIC
from prm_jax.jobs.settings import read_settings
from prm_jax.rl import episodes
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.workdir import Workdir

PARTS = ('sampling', 'scoring')  # training is what is left
COMPILED = '/jax/core/compile/backend_compile_duration'
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


def run(task: dict) -> dict:
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


class CompileClock:
  """Adds up the seconds in which programs are compiled, or read of the cache.

  Attributes:
    seconds: of all programs of this process so far.
  """

  def __init__(self) -> None:
    self.seconds = 0.0
    jax.monitoring.register_event_duration_secs_listener(self._note)

  def _note(self, event: str, seconds: float, **_: object) -> None:
    if event == COMPILED:
      self.seconds += seconds


def race(config: dict, ends: float, compiled: CompileClock) -> dict[str, Any]:
  """Measures the time until 90% of held-out chains are right.

  Args:
    ends: `time.monotonic` after which it gives up.
    compiled: made before the first program was compiled.
  """
  running = Race(ends)

  def look(
    job: RlJob, policy: Generator, update: int
  ) -> tuple[dict[str, float], bool]:
    problems, at = job.tasks.held_out, compiled.seconds
    with running.look(update) as looked:
      groups = episodes.sample(
        policy, problems, job.settings.held_out.samples, 'held out'
      )
      right = [e.right for e in episodes.verify(problems, groups)]
      looked.accuracy = float(np.mean(right))
      # These programs sample for training, too.
      looked.counted = compiled.seconds - at
    return {BEST_METRIC: looked.accuracy}, running.ended

  train(config, look)
  return running.found()


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--task', type=pathlib.Path, required=True)
  parser.add_argument(
    '--minutes', type=float, default=0.0, help='time for a race; 0: the rate'
  )
  args = parser.parse_args()
  task = json.loads(args.task.read_text())
  jax.config.update('jax_num_cpu_devices', task['config']['cpu_devices'])
  compiled = CompileClock()
  if args.minutes:
    ends = time.monotonic() + 60 * args.minutes
    found = race(task['config'], ends, compiled)
  else:
    found = run(task)
  print(json.dumps(found))


if __name__ == '__main__':
  main()
