"""Schedules by hand, and the optimizers compared with NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prm_jax.models import (
  HeadConfig,
  LoraConfig,
  TransformerConfig,
  init_head,
  init_lora,
  init_params,
)
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import path_name
from prm_jax.training.optim import (
  OptimConfig,
  decay_mask,
  make_optimizer,
  make_schedule,
)


def rates(steps, at, **config):
  schedule = make_schedule(OptimConfig(lr=2.0, **config), steps)
  return [float(schedule(step)) for step in at]


def test_warmup_rises_in_equal_parts_from_its_first_step():
  # From lr / 4 at step 0 to lr at step 4, then constant.
  assert rates(
    100, (0, 1, 2, 3, 4, 5, 99), warmup=4, schedule='constant'
  ) == pytest.approx([0.5, 0.875, 1.25, 1.625, 2, 2, 2])


def test_linear_decay_reaches_0_at_the_last_step():
  assert rates(
    14, (4, 5, 9, 13, 14), warmup=4, schedule='linear'
  ) == pytest.approx([2, 1.8, 1, 0.2, 0], abs=1e-6)


def test_cosine_decay():
  # lr (1 + cos(pi t / 10)) / 2 for t steps after the warmup
  expected = [1 + math.cos(math.pi * t / 10) for t in (0, 2, 5, 9, 10)]
  assert rates(
    14, (4, 6, 9, 13, 14), warmup=4, schedule='cosine'
  ) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize('schedule', ['constant', 'linear', 'cosine'])
def test_no_warmup_starts_at_the_peak(schedule):
  assert rates(10, (0,), warmup=0, schedule=schedule) == [2.0]


def test_a_warmup_longer_than_the_run_is_cut_to_it():
  at = (0, 1, 2, 3)
  assert rates(4, at, warmup=100) == pytest.approx(rates(4, at, warmup=4))


def test_unknown_schedule():
  with pytest.raises(UserError, match="schedule='step': expected"):
    OptimConfig(schedule='step')


@pytest.mark.parametrize(
  ('wrong', 'message'),
  [
    (dict(name='adam'), "name='adam': expected one of adamw, adafactor"),
    (dict(moments='int8'), "moments='int8': expected one of float32, "),
    (
      dict(name='adafactor', moments='bfloat16'),
      "moments='bfloat16': is for name=adamw",
    ),
  ],
)
def test_wrong_configs(wrong, message):
  with pytest.raises(UserError, match=message):
    OptimConfig(**wrong)


def test_only_matrices_decay():
  model = TransformerConfig(11, 8, 2, 2, 1, 12, qkv_bias=True)
  untied = TransformerConfig(11, 8, 2, 2, 1, 12, tie_embeddings=False)

  def init(config):
    key = jax.random.key(0)
    return {
      'backbone': init_params(key, config),
      'head': init_head(key, config.d_model, HeadConfig()),
    }

  for config in (model, untied):
    leaves = jax.tree_util.tree_leaves_with_path(
      decay_mask(jax.eval_shape(lambda c=config: init(c)))
    )
    decays = {path_name(path): decays for path, decays in leaves}
    left_out = {name for name, kept in decays.items() if not kept}
    assert left_out == {
      name for name in decays if name.endswith(('scale', 'bias'))
    }
    assert {'backbone/embed_tokens', 'head/kernel'} < set(decays) - left_out
    assert len(left_out) == (7 if config.qkv_bias else 4)
  assert decays['backbone/lm_head']
  backbone = jax.eval_shape(lambda: init(untied))['backbone']
  adapters = init_lora(jax.random.key(0), backbone, LoraConfig(rank=2))
  assert all(jax.tree.leaves(decay_mask({'lora': adapters})))


def adamw_in_numpy(params, grads, lrs, config):
  """Loshchilov and Hutter's algorithm 2, after clipping the global norm."""
  first = {name: np.zeros_like(x) for name, x in params.items()}
  second = {name: np.zeros_like(x) for name, x in params.items()}
  for t, (grad, lr) in enumerate(zip(grads, lrs, strict=True), 1):
    norm = math.sqrt(sum(float((g**2).sum()) for g in grad.values()))
    scale = min(1.0, config.clip / norm)
    for name in params:
      g = grad[name] * scale
      first[name] = config.b1 * first[name] + (1 - config.b1) * g
      second[name] = config.b2 * second[name] + (1 - config.b2) * g**2
      mean = first[name] / (1 - config.b1**t)
      deviation = np.sqrt(second[name] / (1 - config.b2**t))
      decay = config.weight_decay * params[name] if name == 'kernel' else 0.0
      params[name] = params[name] - lr * (mean / (deviation + 1e-8) + decay)
  return params


def test_adamw_clips_decays_and_follows_the_schedule():
  config = OptimConfig(
    lr=0.1, warmup=2, schedule='linear', weight_decay=0.3, clip=1.0
  )
  rng = np.random.default_rng(0)
  params = {'kernel': rng.normal(size=(3, 2)), 'bias': rng.normal(size=2)}
  # Norms well below and well above the clip.
  grads = [
    {name: size * rng.normal(size=x.shape) for name, x in params.items()}
    for size in (0.1, 30.0, 0.2, 5.0, 0.01)
  ]
  optimizer = make_optimizer(config, 5)
  update = jax.jit(optimizer.update)
  ours = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
  state = optimizer.init(ours)
  for grad in grads:
    updates, state = update(jax.tree.map(jnp.asarray, grad), state, ours)
    ours = optax.apply_updates(ours, updates)
  # 1/2, 3/4 and 1 of the peak, then 1/3 of it less at each step.
  lrs = [0.05, 0.075, 0.1, 0.2 / 3, 0.1 / 3]
  expected = adamw_in_numpy(params, grads, lrs, config)
  for name, x in expected.items():
    np.testing.assert_allclose(ours[name], x, rtol=2e-5)


def adafactor_in_numpy(params, grads, lrs, config):
  """Shazeer and Stern's algorithms 4 and 5 for each layer's matrix or vector.

  As in OptimConfig, the learning rate is given and multiplies the decay.

  Args:
    params: the layers of each parameter by its name.
  """
  rows, columns, second = {}, {}, {}
  for t, (grad, lr) in enumerate(zip(grads, lrs, strict=True), 1):
    norm = math.sqrt(sum(float((g**2).sum()) for x in grad.values() for g in x))
    scale = min(1.0, config.clip / norm)
    old = 1 - t**-0.8  # 0 in the first step
    for name, layers in params.items():
      for i, x in enumerate(layers):
        at = name, i
        g = grad[name][i] * scale
        square = g**2 + 1e-30
        if x.ndim == 2:
          mean = square.mean(1), square.mean(0)
          rows[at] = old * rows.get(at, 0.0) + (1 - old) * mean[0]
          columns[at] = old * columns.get(at, 0.0) + (1 - old) * mean[1]
          v = np.outer(rows[at], columns[at]) / rows[at].mean()
        else:
          second[at] = old * second.get(at, 0.0) + (1 - old) * square
          v = second[at]
        u = g / np.sqrt(v)
        u /= max(1.0, math.sqrt((u**2).mean()))
        decay = config.weight_decay * x if x.ndim == 2 else 0.0
        layers[i] = x - lr * (u + decay)
  return params


def test_adafactor_factors_each_layers_matrices():
  config = OptimConfig(
    'adafactor', lr=0.1, warmup=0, schedule='constant', weight_decay=0.3
  )
  # Two heads of 64 count as one side of 128.
  shapes = {
    'q_proj/kernel': (130, 2, 64),
    'o_proj/kernel': (2, 64, 130),
    'norm/scale': (130,),
  }
  sides = {'q_proj/kernel': (130, 128), 'o_proj/kernel': (128, 130)}
  rng = np.random.default_rng(0)

  def draw(sizes):
    """Draws two layers of different size; rows and columns differ, too."""
    return {
      name: [
        size * rng.normal(size=shape) * rng.lognormal(size=shape)
        for size in sizes
      ]
      for name, shape in shapes.items()
    }

  params = draw((1.0, 1.0))
  grads = [draw(sizes) for sizes in ((0.1, 3.0), (2.0, 0.1), (1e-3, 1e-4))]

  def stacked(layers):
    flat = {name: np.stack(x).astype(np.float32) for name, x in layers.items()}
    tree = {'layers': {}}
    for name, x in flat.items():
      parent, leaf = name.split('/')
      tree['layers'][parent] = {leaf: jnp.asarray(x)}
    return tree

  def by_matrix(layers):
    return {
      name: [x.reshape(sides.get(name, x.shape)) for x in layers[name]]
      for name in shapes
    }

  optimizer = make_optimizer(config, 3)
  update = jax.jit(optimizer.update)
  ours = stacked(params)
  state = optimizer.init(ours)
  for grad in grads:
    updates, state = update(stacked(grad), state, ours)
    ours = optax.apply_updates(ours, updates)
  expected = adafactor_in_numpy(
    by_matrix(params), [by_matrix(g) for g in grads], [0.1] * 3, config
  )
  for name, layers in expected.items():
    parent, leaf = name.split('/')
    mine = np.asarray(ours['layers'][parent][leaf])
    np.testing.assert_allclose(
      mine.reshape(2, *layers[0].shape), np.stack(layers), rtol=1e-4, atol=1e-6
    )


def test_a_first_moment_in_bfloat16():
  params = {'kernel': jnp.ones((3, 2))}
  state = make_optimizer(OptimConfig(moments='bfloat16'), 2).init(params)
  dtypes = {
    path_name(path).split('/')[-2]: leaf.dtype
    for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    if leaf.ndim
  }
  assert dtypes == {'mu': jnp.bfloat16, 'nu': jnp.float32}
