"""Asks for the same bits of a run that was stopped and of one that was not.

A run stops when SIGTERM arrives in the middle, is started again, and ends with
the arrays of a run that was left alone. This holds across processes if both
have the same compiled programs, which the cache of the command keeps.
"""

import dataclasses
import os
import pathlib
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from experiments.accelerator import right_checks as checks
from experiments.accelerator.right_checks import Setting, subjects
from prm_jax.data.census import BatchConfig, take_census
from prm_jax.data.domains import arithmetic
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import make_batches
from prm_jax.data.targets import TargetConfig
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.runtime.stopping import Stopped
from prm_jax.training.loop import (
  TrainConfig,
  TrainingRun,
  compile_train_step,
  fit,
  make_train_step,
)
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.training.train_state import (
  TrainState,
  abstract_state,
  init_state,
  make_init,
)

STEPS, STOP_AT = 6, 3
HEAD, LOSS = HeadConfig('logit'), LossConfig('bce', lm_weight=0.5)
OPTIM = OptimConfig(warmup=2)
FORMAT = make_format('arithmetic', 46)
ROW_LENGTH, STEPS_PER_ROW = 128, 24
TARGETS = TargetConfig()


def open_batches() -> Iterator[dict[str, np.ndarray]]:
  """Opens the batches of arithmetic chains at their beginning."""
  domain = arithmetic.ArithmeticConfig()
  problems = arithmetic.sample_problems(domain, 64, 0)
  solver = arithmetic.make_solver(domain)
  results = arithmetic.sample_results(solver, problems, 4, 0)
  chains = arithmetic.to_chains(domain, problems, results)
  config = BatchConfig(4, ROW_LENGTH, STEPS_PER_ROW, seed=0, trees=True)
  census = take_census(chains, FORMAT, TARGETS, config)
  return iter(make_batches(census, config))


def train(
  setting: Setting,
  model: TransformerConfig,
  folder: pathlib.Path,
  stop_at: int = 0,
) -> None:
  """Trains, or goes on from the last checkpoint.

  Args:
    stop_at: step in which SIGTERM arrives; 0 for none.

  Raises:
    Stopped: as training does after SIGTERM, when all is saved.
  """
  init, batches = make_init_of(model), open_batches()
  checkpoints = Checkpoints(folder / 'checkpoints', keep=1, best='')
  if checkpoints.latest is None:
    state = init_state(init, setting.mesh, 0)
  else:
    state = checkpoints.restore(abstract_state(init, setting.mesh), batches)
  step = compile_train_step(
    make_train_step(
      ObjectiveConfig(model, HEAD, LOSS),
      make_optimizer(OPTIM, STEPS),
      make_schedule(OPTIM, STEPS),
    ),
    state,
    setting.mesh,
  )

  def step_and_stop(state: TrainState, batch: Any) -> Any:
    if stop_at and int(state.step) + 1 == stop_at:
      os.kill(os.getpid(), signal.SIGTERM)
    return step(state, batch)

  writer = MetricWriter(folder, int(state.step))
  config = TrainConfig(steps=STEPS, log_every=1, checkpoint_every=STEPS)
  run = TrainingRun('resume', config, setting.mesh, folder, checkpoints, writer)
  try:
    fit(run, step_and_stop, state, batches, lambda _: {})
  finally:
    writer.close()
    checkpoints.close()  # waits until all is saved


def make_init_of(model: TransformerConfig) -> Callable[..., TrainState]:
  """Makes the function that makes the first state."""
  return make_init(model, HEAD, make_optimizer(OPTIM, STEPS))


def read_last(
  setting: Setting, model: TransformerConfig, folder: pathlib.Path
) -> tuple[TrainState, dict[str, np.ndarray]]:
  """Returns the last checkpoint, and the batch that would come next."""
  checkpoints = Checkpoints(folder / 'checkpoints', 1, '', writes=False)
  shapes = abstract_state(make_init_of(model), setting.mesh)
  batches = open_batches()
  state = checkpoints.restore(shapes, batches)
  checkpoints.close()
  state = state._replace(key=jax.random.key_data(state.key))
  return jax.device_get(state), next(batches)


def compare_resumed(model: TransformerConfig) -> dict[str, Any]:
  """Counts the arrays in which a resumed run differs from another one."""
  setting = subjects()[-1]
  # A small vocabulary, as both runs save everything. Its tokens repeat, so that
  # sums of their gradients show in which order they were added.
  model = dataclasses.replace(
    model, dtype=setting.dtype, remat='full', vocab_size=512
  )
  with tempfile.TemporaryDirectory() as name:
    whole, stopped = pathlib.Path(name, 'whole'), pathlib.Path(name, 'stopped')
    whole.mkdir()
    stopped.mkdir()
    train(setting, model, whole)
    try:
      train(setting, model, stopped, STOP_AT)
    except Stopped as error:
      said = str(error)
    else:
      raise RuntimeError('SIGTERM did not stop the run')
    train(setting, model, stopped)
    expected = read_last(setting, model, whole)
    resumed = read_last(setting, model, stopped)
  return checks.found(
    [
      checks.check(
        f'arrays of the last checkpoint that differ, {setting.name}',
        checks.other_bits(resumed, expected),
        0.0,
      )
    ],
    said,
  )
