"""A head that learns before the rest, each with its own schedule."""

from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import HeadConfig, LoraConfig
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.loop import (
  Objective,
  compile_train_step,
  make_step,
  make_train_step,
)
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.training.train_state import (
  NO_LORA,
  TrainState,
  abstract_state,
  init_state,
  make_init,
)
from tests.shared import tiny_training

pytestmark = pytest.mark.once

STEPS, WAITING, WARMUP = 12, 5, 4


def make_simple_step(optim: OptimConfig, waiting: int) -> tuple[Any, Any]:
  """Returns an optimizer, and a step whose gradients have the batch's size."""
  optimizer = make_optimizer(optim, STEPS, waiting)
  objective = Objective(
    lambda size: size,
    lambda params, size, _: (
      total := size * sum(x.sum() for x in jax.tree.leaves(params)),
      {'loss': total},
    ),
  )
  step = make_step(
    objective,
    lambda params: (params, {}),
    tiny_training.MODEL,
    optimizer,
    make_schedule(optim, STEPS),
    1,
    waiting,
  )
  return optimizer, step


def first_state(optimizer: Any, params: Any) -> TrainState:
  zero = jnp.zeros((), jnp.int32)
  return TrainState(
    zero, params, optimizer.init(params), jax.random.key(0), zero, zero
  )


def moves_of(optim: OptimConfig, part: str, sizes: list[float]) -> dict:
  """Returns how far the head and another part move in each step.

  Beside them stand the norms of the gradients.

  All gradients have the same size, so Adam and Adafactor move a parameter by
  exactly the learning rate, even in the first step if their averages start
  there.

  Args:
    part: name of the parameters beside the head.
    sizes: size of each step's gradients; a step with NaN is skipped.
  """
  optimizer, step = make_simple_step(optim, WAITING)
  step = jax.jit(step)
  params = {'head': {'kernel': jnp.ones((3, 2))}, part: {'a': jnp.ones((4, 2))}}
  state = first_state(optimizer, params)
  moves: dict[str, list] = {'head': [], part: []}
  norms = []
  for size in sizes:
    after, metrics = step(state, jnp.float32(size))
    norms.append(float(metrics['grad_norm']))
    for name, moved in moves.items():
      (before,), (now,) = (
        jax.tree.leaves(s.params[name]) for s in (state, after)
      )
      assert np.ptp(before - now) == 0
      moved.append(float((before - now).mean()))
    state = after
  return moves | {'norms': norms}


@pytest.mark.parametrize('part', ['backbone', 'lora'])
@pytest.mark.parametrize(
  'own', [{'name': 'adamw'}, {'moments': 'bfloat16'}, {'name': 'adafactor'}]
)
@pytest.mark.parametrize('schedule', ['constant', 'linear', 'cosine'])
def test_the_warmup_begins_when_a_part_begins_to_move(own, part, schedule):
  """Waiting 5 steps must not use up a warmup of 4, at a peak of 0.1."""
  optim = OptimConfig(
    lr=0.1,
    warmup=WARMUP,
    schedule=schedule,
    weight_decay=0.0,
    clip=1e9,
    **own,
  )
  moves = moves_of(optim, part, [1.0] * STEPS)
  # By hand: a quarter of the peak, then a quarter of the way to it each step.
  rise = [0.025, 0.04375, 0.0625, 0.08125]
  fall = {
    'constant': lambda steps: [0.1] * steps,
    'linear': lambda steps: [0.1 * (1 - t / steps) for t in range(steps)],
    'cosine': lambda steps: [
      0.05 * (1 + np.cos(np.pi * t / steps)) for t in range(steps)
    ],
  }[schedule]
  rest = STEPS - WAITING - WARMUP
  expected = [0.0] * WAITING + rise + fall(rest)
  tolerance = {'rtol': 1e-2 if 'moments' in own else 1e-5, 'atol': 1e-6}
  np.testing.assert_allclose(moves[part], expected, **tolerance)
  whole = STEPS - WARMUP
  np.testing.assert_allclose(moves['head'], rise + fall(whole), **tolerance)
  # Of the 6 parameters of the head, and later of the part's 8 as well.
  norms = [6**0.5] * WAITING + [14**0.5] * (STEPS - WAITING)
  np.testing.assert_allclose(moves['norms'], norms, rtol=1e-6)


def test_a_skipped_step_does_not_count_as_waiting():
  """The head learns nothing from a step that is not finite."""
  optim = OptimConfig(lr=0.1, warmup=0, schedule='constant', clip=1e9)
  sizes = [1.0, np.nan, 1.0, 1.0, np.nan, 1.0, 1.0, 1.0, 1.0]
  moves = moves_of(optim, 'backbone', sizes)
  assert [move != 0 for move in moves['head']] == np.isfinite(sizes).tolist()
  assert [move != 0 for move in moves['backbone']] == [False] * 7 + [True] * 2


def test_waiting_takes_no_memory():
  """While the rest waits, its parameters and moments are not copied."""
  kernel = jnp.zeros((512, 512))
  params = {'head': {'kernel': jnp.ones((3, 2))}, 'backbone': {'a': kernel}}

  def temporaries(waiting: int) -> int:
    optimizer, step = make_simple_step(OptimConfig(), waiting)
    jitted = jax.jit(step, donate_argnums=0)
    lowered = jitted.lower(first_state(optimizer, params), jnp.float32(1.0))
    return lowered.compile().memory_analysis().temp_size_in_bytes

  assert temporaries(WAITING) < temporaries(0) + kernel.nbytes / 10


@pytest.mark.slow
@pytest.mark.parametrize('lora', [NO_LORA, LoraConfig(rank=2)])
@pytest.mark.parametrize('stopped', [1, 3])
def test_resuming_while_a_part_waits_or_warms_up(lora, stopped, tmp_path):
  """The resumed run equals the uninterrupted one, bit for bit."""
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  optim, head = OptimConfig(lr=1e-2, warmup=3), HeadConfig()
  optimizer = make_optimizer(optim, 6, 2)
  init = make_init(tiny_training.MODEL, head, optimizer, lora)
  step = make_train_step(
    ObjectiveConfig(tiny_training.MODEL, head, LossConfig(), lora),
    optimizer,
    make_schedule(optim, 6),
    head_only_steps=2,
  )
  state = init_state(init, mesh, seed=0)
  step_fn = compile_train_step(step, state, mesh)
  data = iter(grain.MapDataset.range(6).to_iter_dataset())

  def run(state: TrainState, steps: range) -> TrainState:
    with jax.set_mesh(mesh):
      for i in steps:
        state, _ = step_fn(state, tiny_training.batch(i))
    return state

  checkpoints = Checkpoints(tmp_path, 2, '')
  state = run(state, range(stopped))
  checkpoints.save(stopped, state, data, {})
  checkpoints.close()
  whole = run(state, range(stopped, 6))
  opened = Checkpoints(tmp_path, 2, '')
  restored = opened.restore(abstract_state(init, mesh), data)
  opened.close()
  again = run(restored, range(stopped, 6))
  names = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(whole)]
  assert any('.rest' in name for name in names)
  for name, x, y in zip(
    names,
    jax.tree.leaves(whole._replace(key=0)),
    jax.tree.leaves(again._replace(key=0)),
    strict=True,
  ):
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), name
