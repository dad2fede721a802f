"""Parameters in bfloat16 with a float32 master: updates, rounding, memory."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType

from prm_jax.models import (
  HeadConfig,
  LoraConfig,
  TransformerConfig,
  init_lora,
  init_params,
  merge,
)
from prm_jax.runtime.sharding import AXES, make_mesh, shardings
from prm_jax.training import losses
from prm_jax.training.loop import make_train_step
from prm_jax.training.objective import LossConfig, ObjectiveConfig, batch_loss
from prm_jax.training.optim import OptimConfig, make_optimizer
from prm_jax.training.train_state import NO_LORA, init_state, make_init
from tests.shared import tiny_training

pytestmark = pytest.mark.once

LOSS = LossConfig(lm_weight=1.0)
MODEL = dataclasses.replace(tiny_training.MODEL, param_dtype='bfloat16')


def as_type(tree, dtype):
  return jax.tree.map(lambda x: x.astype(dtype), tree)


def assert_equal_bits(a, b):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def run_steps(model, optimizer, batches, lora=NO_LORA, microbatches=1):
  """Returns the first state, the state after each step, and the losses."""
  step = jax.jit(
    make_train_step(
      ObjectiveConfig(model, HeadConfig(), LOSS, lora),
      optimizer,
      optax.constant_schedule(1.0),
      microbatches,
    ),
  )
  init = make_init(model, HeadConfig(), optimizer, lora)
  state = jax.jit(init)(jax.random.key(0))
  states, values = [state], []
  for batch in batches:
    state, metrics = step(state, batch)
    states.append(state)
    values.append(float(metrics['loss']))
  return states, values


def float32_params(state):
  """The trained parameters in float32: the master, and the head itself."""
  return {
    'backbone': state.opt_state.backbone,
    'head': state.params['head'],
  }


@jax.jit
def gradient(exact, part, whole):
  """A microbatch's share of the gradient at the rounded parameters."""
  norms = (
    jnp.maximum(losses.step_loss_weights('bce', whole).sum(), 1e-6),
    whole['lm_weights'].sum(),
  )

  def loss(params):
    objective = ObjectiveConfig(MODEL, HeadConfig(), LOSS)
    return batch_loss(params, part, *norms, objective)[0]

  at = exact | {'backbone': as_type(exact['backbone'], 'bfloat16')}
  return as_type(jax.grad(loss)(at), 'float32')


def relative_distance(a, b, unit):
  return optax.tree.norm(optax.tree.sub(a, b)) / optax.tree.norm(unit)


@pytest.mark.slow
def test_updates_are_float32_with_gradients_at_the_rounded_parameters():
  optimizer = make_optimizer(OptimConfig(lr=3e-3, warmup=2), 5)

  @jax.jit
  def update(exact, opt_state, batch):
    grads = gradient(exact, batch, batch)
    updates, opt_state = optimizer.update(grads, opt_state, exact)
    return optax.apply_updates(exact, updates), updates, opt_state

  batches = [tiny_training.batch(i) for i in range(5)]
  states, _ = run_steps(MODEL, optimizer, batches)
  for before, after, batch in zip(
    states[:-1], states[1:], batches, strict=True
  ):
    expected, updates, opt_state = update(
      float32_params(before), before.opt_state.optimizer, batch
    )
    # Float32 rounds at 6e-8, and Adam amplifies that where a gradient is almost
    # 0; gradients at the unrounded parameters are 0.1 away.
    assert relative_distance(float32_params(after), expected, updates) < 1e-3
    assert jax.tree.structure(opt_state) == jax.tree.structure(
      after.opt_state.optimizer
    )
    assert_equal_bits(
      after.params['backbone'], as_type(after.opt_state.backbone, 'bfloat16')
    )


@pytest.mark.slow
def test_microbatches_add_up_in_float32():
  batch = tiny_training.batch(1)
  (before, after), _ = run_steps(MODEL, optax.sgd(1.0), [batch], microbatches=4)
  exact = float32_params(before)
  shares = [
    gradient(exact, {k: v[i::4] for k, v in batch.items()}, batch)
    for i in range(4)
  ]
  total = jax.tree.map(lambda *x: sum(x), *shares)
  expected = optax.tree.sub(exact, total)
  # Sums in bfloat16 would be 3e-3 away.
  assert relative_distance(float32_params(after), expected, total) < 1e-4


def test_steps_below_the_last_bit_add_up():
  config = OptimConfig(lr=2e-5, warmup=0, schedule='constant', weight_decay=0.0)
  states, _ = run_steps(
    MODEL, make_optimizer(config, 30), [tiny_training.batch(0)] * 30
  )

  def weights(backbone):
    return backbone['layers']['mlp']['up_proj']['kernel']

  exact = [weights(state.opt_state.backbone) for state in states]
  kept = [weights(state.params['backbone']) for state in states]
  # Above 1/16 the last bit of a bfloat16 is 2^-11 or more.
  large = abs(exact[0]) > 0.07
  added = kept[0]
  for before, after in itertools.pairwise(exact):
    assert abs(after - before)[large].max() < 2**-12
    added += (after - before).astype('bfloat16')
  assert (added == kept[0])[large].all()  # in bfloat16 each one is lost
  assert (kept[-1] != kept[0])[large].mean() > 0.5


@pytest.mark.slow
def test_losses_near_those_of_float32():
  optimizer = make_optimizer(OptimConfig(lr=3e-3, warmup=2), 12)
  batches = [tiny_training.batch(i % 2) for i in range(12)]
  _, whole = run_steps(tiny_training.MODEL, optimizer, batches)
  _, kept = run_steps(MODEL, optimizer, batches)
  assert whole[0] - whole[-1] > 0.7
  # Rounding changes a weight by at most 1/512, so losses by the third digit.
  np.testing.assert_allclose(kept, whole, atol=0.02)


def bytes_per_parameter(lora=NO_LORA, param_dtype='float32', **optim):
  """Memory of params and opt_state, from the shapes of a model of real size."""
  model = TransformerConfig(
    32_000, 1024, 8, 16, 4, 4096, head_dim=64, param_dtype=param_dtype
  )
  optimizer = make_optimizer(OptimConfig(**optim), 10)
  state = jax.eval_shape(
    make_init(model, HeadConfig(), optimizer, lora), jax.random.key(0)
  )
  kept = jax.tree.leaves((state.params, state.opt_state))
  count = sum(x.size for x in jax.tree.leaves(state.params['backbone']))
  return sum(x.size * x.dtype.itemsize for x in kept) / count


@pytest.mark.parametrize(
  ('choice', 'expected'),
  [
    ({}, 12),
    (dict(moments='bfloat16'), 10),
    (dict(name='adafactor'), 4),
    (dict(param_dtype='bfloat16'), 14),
    (dict(param_dtype='bfloat16', moments='bfloat16'), 12),
    (dict(param_dtype='bfloat16', name='adafactor'), 6),
    (dict(lora=LoraConfig(rank=1)), 4),
    (dict(lora=LoraConfig(rank=1), param_dtype='bfloat16'), 2),
  ],
)
def test_the_table_of_bytes(choice, expected):
  """Adapters, head and Adafactor's means take the rest, less than 0.1."""
  assert expected <= bytes_per_parameter(**choice) < expected + 0.1


@pytest.mark.parametrize('lora', [NO_LORA, LoraConfig(rank=2)])
def test_a_given_backbone_is_rounded_once(lora):
  """The master keeps every bit; under adapters the backbone has no master."""
  mesh = make_mesh({'replica': 1, 'fsdp': -1, 'model': 1})
  optimizer = make_optimizer(OptimConfig(), 2)
  init = make_init(MODEL, HeadConfig(), optimizer, lora)
  given = jax.jit(init_params, static_argnums=1)(jax.random.key(3), MODEL)
  expected = jax.tree.map(np.asarray, given)
  state = init_state(init, mesh, 0, given)
  assert_equal_bits(state.params['backbone'], as_type(expected, 'bfloat16'))
  others = {k: v for k, v in state.params.items() if k != 'backbone'}
  assert {x.dtype.name for x in jax.tree.leaves(others)} == {'float32'}
  if not lora.rank:
    assert_equal_bits(state.opt_state.backbone, expected)
    return
  assert jax.tree.structure(state.opt_state) == jax.tree.structure(
    optimizer.init(others)
  )


def test_a_master_is_sharded_like_its_parameter():
  mesh = AbstractMesh((2, 4, 2), AXES, axis_types=(AxisType.Auto,) * 3)
  optimizer = make_optimizer(OptimConfig(), 2)
  init = make_init(MODEL, HeadConfig(), optimizer)
  placed = shardings(jax.eval_shape(init, jax.random.key(0)), mesh)
  assert placed.opt_state.backbone == placed.params['backbone']


def test_adapters_are_added_before_the_sum_is_rounded():
  lora = LoraConfig(rank=2)
  exact = jax.jit(init_params, static_argnums=1)(jax.random.key(3), MODEL)
  kept = as_type(exact, 'bfloat16')
  adapters = jax.tree.map(
    lambda x: 1e-2 * jax.random.normal(jax.random.key(x.size), x.shape),
    init_lora(jax.random.key(1), exact, lora),
  )
  merged = merge(kept, adapters, lora)
  expected = merge(as_type(kept, 'float32'), adapters, lora)
  assert_equal_bits(merged, as_type(expected, 'bfloat16'))
