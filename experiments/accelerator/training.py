"""Our side of training: the train step of a PRM, as a training run compiles it.

    random tokens, labels at step ends -> train step -> seconds, MFU, memory

Beside the measured step stands what `prm_jax.aot` counts in its program.
"""

import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from experiments.accelerator import cases, shapes
from experiments.accelerator.shapes import Training
from experiments.accelerator.timing import seconds_of_steps
from prm_jax.aot.chips import CHIPS, Chip
from prm_jax.aot.compiler import memory_of
from prm_jax.aot.estimate import times
from prm_jax.aot.hlo import read_program
from prm_jax.aot.useful_flops import learning
from prm_jax.aot.work import count_work
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.runtime.sharding import batch_sharding, flat_mesh
from prm_jax.training.loop import compile_train_step, make_train_step, put_batch
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.training.train_state import abstract_state, init_state, make_init

HEAD = HeadConfig('two_class')
OPTIM = OptimConfig(lr=1e-4, warmup=0, schedule='constant', b2=0.999)


class Step(NamedTuple):
  """Holds a train step before it is compiled.

  Attributes:
    init: makes the first state.
    lowered: the step.
  """

  model: TransformerConfig
  init: Callable
  lowered: jax.stages.Lowered


def make_step(case: Training, mesh: Mesh) -> Step:
  """Lowers the train step, on shapes alone."""
  model = TransformerConfig(**case.shape, dtype='bfloat16', remat=case.remat)
  total = case.warmup + case.steps
  optimizer = make_optimizer(OPTIM, total)
  init = make_init(model, HEAD, optimizer, lm_loss=False)
  step = make_train_step(
    ObjectiveConfig(model, HEAD, LossConfig('cross_entropy')),
    optimizer,
    make_schedule(OPTIM, total),
  )
  state = abstract_state(init, mesh)
  placed = batch_sharding(mesh)
  batch = {
    name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)
    for name, x in next(batches(case)).items()
  }
  with jax.set_mesh(mesh):
    lowered = compile_train_step(step, state, mesh).lower(state, batch)
  return Step(model, init, lowered)


def batches(case: Training) -> Iterator[dict[str, np.ndarray]]:
  """Yields the batches of a case: each row is full, and one chain."""
  random = np.random.default_rng(0)
  rows = case.rows, case.length
  positions = np.tile(np.arange(case.length, dtype=np.int32), (case.rows, 1))
  ends = np.arange(case.step - 1, case.length, case.step, dtype=np.int32)
  steps = case.rows, len(ends)
  for _ in range(case.warmup + case.steps):
    yield {
      'tokens': random.integers(4, case.shape['vocab_size'], rows, np.int32),
      'positions': positions,
      'last': np.full(rows, case.length - 1, np.int32),
      'parents': positions - 1,
      'step_ends': np.tile(ends, (case.rows, 1)),
      'step_begins': np.tile(ends - case.step + 1, (case.rows, 1)),
      'step_labels': random.integers(0, 2, steps).astype(np.float32),
      'step_weights': np.ones(steps, np.float32),
      'step_trials': np.zeros(steps, np.float32),
      'step_mask': np.ones(steps, bool),
      'chain_ids': np.zeros(steps, np.int32),
      'kinds': np.zeros(rows, np.int8),
      'lm_weights': np.zeros(rows, np.float32),
    }


def roofline(
  compiled: jax.stages.Compiled,
  case: Training,
  model: TransformerConfig,
  chip: Chip,
) -> dict[str, Any]:
  """Counts the work of a step, and the least seconds that it takes a chip."""
  text = compiled.as_text()
  work = count_work(read_program(text), 1)
  kernels = learning(model, case.rows, case.length)['kernels']
  work.flops += sum(f for kernel, f in kernels.items() if kernel in text)
  return {
    'seconds_at_least': times(work, chip),
    'flops': work.flops,
    'hbm_bytes': work.memory_bytes,
  }


def roofline_or_fault(*arguments: Any) -> dict[str, Any]:
  """Returns `roofline`, or what was wrong: a measurement is not lost for it."""
  try:
    return roofline(*arguments)
  except Exception as error:
    traceback.print_exc()
    return {'roofline_fault': f'{type(error).__name__}: {error}'[:300]}


def measure(case: Training) -> dict[str, Any]:
  """Measures the train step."""
  device = jax.devices()[0]
  mesh = flat_mesh([device])
  began = time.perf_counter()
  step = make_step(case, mesh)
  compiled = step.lowered.compile()
  compile_seconds = time.perf_counter() - began
  state = init_state(step.init, mesh, 0)
  found: dict[str, Any] = {}

  def started() -> Iterator[jax.Array]:
    nonlocal state
    for batch in batches(case):
      state, metrics = compiled(state, put_batch(batch, mesh))
      found.update(metrics)
      yield metrics['loss']

  seconds = seconds_of_steps(started(), case.warmup)
  mean = statistics.mean(seconds)
  chip = CHIPS.get(device.device_kind)
  return {
    'tokens_per_second': case.tokens / mean,
    'seconds_per_step': mean,
    'seconds': seconds,
    'rows': case.rows,
    'useful_flops_per_second': case.useful_flops() / mean,
    # The process's peak may be that of an earlier case.
    'memory_bytes': memory_of(compiled)['total'],
    'compile_seconds': compile_seconds,
    'loss': float(found['loss']),
    'skipped': int(found['skipped']),
    'notes': [f'{case.rows} rows', f'remat {case.remat}'],
    **(roofline_or_fault(compiled, case, step.model, chip) if chip else {}),
  }


if __name__ == '__main__':
  cases.measure_all(measure, shapes.training)
