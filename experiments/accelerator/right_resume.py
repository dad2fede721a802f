"""Asks for the same bits: of a program twice, and of a run that was stopped.

A run stops when SIGTERM arrives in the middle, is started again, and ends with
the arrays of a run that was left alone. This holds across processes if both
have the same compiled programs, which the cache of the command keeps.
"""

import dataclasses
import os
import pathlib
import signal
import tempfile
from typing import Any

import jax
import numpy as np

from experiments.accelerator import right_checks as checks
from experiments.accelerator.right_checks import Setting, subjects
from experiments.accelerator.right_programs import (
  ROWS,
  gradients,
  make_batch,
)
from experiments.accelerator.right_scoring import scores
from prm_jax.data.domains import arithmetic
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import BatchConfig, make_batches, take_census
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
FORMAT = make_format('arithmetic', 46)
ROW_LENGTH, STEPS_PER_ROW = 128, 24
TARGETS = TargetConfig()


def compare_twice(model: TransformerConfig, length: int) -> dict[str, Any]:
  """Runs a gradient and a scoring twice, and counts arrays that differ."""
  batch = make_batch(model.vocab_size, ROWS, length)
  return checks.found(
    [
      checks.check(
        f'arrays of {what} that differ, {s.name}',
        checks.other_bits(run(s), run(s)),
        0.0,
      )
      for s in subjects()
      for what, run in (
        ('a gradient', lambda s: gradients(s, model, batch)),
        ('scores', lambda s: scores(s, model)),
      )
    ]
  )


def train(
  setting: Setting,
  model: TransformerConfig,
  folder: pathlib.Path,
  stop_at: int = 0,
) -> TrainState:
  """Trains, or goes on from the last checkpoint; returns what was saved last.

  Args:
    stop_at: step in which SIGTERM arrives; 0 for none.

  Raises:
    Stopped: as training does after SIGTERM, when all is saved.
  """
  domain = arithmetic.ArithmeticConfig()
  problems = arithmetic.sample_problems(domain, 64, 0)
  solver = arithmetic.make_solver(domain)
  results = arithmetic.sample_results(solver, problems, 4, 0)
  chains = arithmetic.to_chains(domain, problems, results)
  batches = iter(
    make_batches(
      chains,
      take_census(chains, FORMAT, TARGETS),
      FORMAT,
      TARGETS,
      BatchConfig(4, ROW_LENGTH, STEPS_PER_ROW, seed=0),
    )
  )
  optim = OptimConfig(warmup=2)
  optimizer = make_optimizer(optim, STEPS)
  init = make_init(model, HEAD, optimizer)
  checkpoints = Checkpoints(folder / 'checkpoints', keep=1, best='')
  shapes = abstract_state(init, setting.mesh)
  if checkpoints.latest is None:
    state = init_state(init, setting.mesh, 0)
  else:
    state = checkpoints.restore(shapes, batches)
  step = compile_train_step(
    make_train_step(
      ObjectiveConfig(model, HEAD, LOSS),
      optimizer,
      make_schedule(optim, STEPS),
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
    saved = checkpoints.restore(shapes, batches)
    return saved._replace(key=jax.random.key_data(saved.key))
  finally:
    writer.close()
    checkpoints.close()


def compare_resumed(model: TransformerConfig) -> dict[str, Any]:
  """Counts the arrays in which a resumed run differs from another one."""
  setting = subjects()[-1]
  # A small vocabulary, as both runs save everything. Its tokens repeat, so that
  # sums of their gradients show in which order they were added.
  model = dataclasses.replace(
    model, dtype=setting.dtype, remat='full', vocab_size=1024
  )
  with tempfile.TemporaryDirectory() as name:
    whole, stopped = pathlib.Path(name, 'whole'), pathlib.Path(name, 'stopped')
    whole.mkdir()
    stopped.mkdir()
    expected = jax.device_get(train(setting, model, whole))
    try:
      train(setting, model, stopped, STOP_AT)
    except Stopped as error:
      said = str(error)
    else:
      raise RuntimeError('SIGTERM did not stop the run')
    # Nothing of the first part is left, as in a new process.
    jax.clear_caches()
    state = jax.device_get(train(setting, model, stopped))
  moved = np.any(expected.params['backbone']['embed_tokens'] != 0)
  if int(state.step) != STEPS or not moved:
    raise RuntimeError(f'step {state.step} after resuming, expected {STEPS}')
  return checks.found(
    [
      checks.check(
        f'arrays of the last checkpoint that differ, {setting.name}',
        checks.other_bits(state, expected),
        0.0,
      )
    ],
    said,
  )
