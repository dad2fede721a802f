"""The decoder in training: first parameters, gradients, memory, bfloat16."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import forward, init_params, lm_logits, prefill
from tests.models.plain_transformer import (
  CONFIG,
  alone,
  forward_in_numpy,
  packed_rows,
  params_of,
  run,
)

pytestmark = pytest.mark.once

# Programs that run once on tiny arrays spend all their time in the compiler.
QUICK = {'xla_backend_optimization_level': 0}


@functools.partial(jax.jit, static_argnums=1, compiler_options=QUICK)
def loss_and_gradients(params, config):
  def loss(params):
    hidden = forward(params, config, *packed_rows())
    return jnp.sin(lm_logits(params, config, hidden)).mean()

  return jax.value_and_grad(loss)(params)


@pytest.mark.parametrize(
  'change',
  [
    {'remat': 'full'},
    {'remat': 'dots', 'scan_unroll': 2},
  ],
)
def test_remat_and_unrolling_change_no_value(change):
  params = params_of(CONFIG)
  loss, gradients = loss_and_gradients(params, CONFIG)
  other = loss_and_gradients(params, dataclasses.replace(CONFIG, **change))
  np.testing.assert_allclose(other[0], loss, rtol=1e-6)
  scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradients))
  assert all(jnp.abs(g).max() > 0 for g in jax.tree.leaves(gradients))
  for ours, theirs in zip(
    jax.tree.leaves(other[1]), jax.tree.leaves(gradients), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * scale)


def test_gradients_equal_finite_differences():
  """In float64, for every parameter along a random direction."""
  params = params_of(CONFIG)
  _, gradients = loss_and_gradients(params, CONFIG)
  leaves, tree = jax.tree.flatten(params)
  leaves = [np.asarray(x, np.float64) for x in leaves]

  def loss(changed):
    params = jax.tree.unflatten(tree, changed)
    hidden = forward_in_numpy(params, CONFIG, *packed_rows())
    return np.sin(hidden @ params['embed_tokens'].T).mean()

  rng = np.random.default_rng(3)
  for i, gradient in enumerate(jax.tree.leaves(gradients)):
    direction = 1e-5 * rng.normal(size=gradient.shape)
    above, below = list(leaves), list(leaves)
    above[i], below[i] = leaves[i] + direction, leaves[i] - direction
    slope = (loss(above) - loss(below)) / 2
    expected = float((np.asarray(gradient, np.float64) * direction).sum())
    norm = float(np.linalg.norm(gradient)) * 1e-5
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-3 * norm)


def saved_bytes(config):
  """Size of what the forward pass saves for the backward pass."""

  def pullback(params):
    loss = lambda p: forward(p, config, *packed_rows()).sum()  # noqa: E731
    return jax.vjp(loss, params)[1]

  kept = jax.tree.leaves(jax.eval_shape(pullback, params_of(config)))
  return sum(x.size * x.dtype.itemsize for x in kept)


def test_remat_keeps_less_for_the_backward_pass():
  none, dots, full = (
    saved_bytes(dataclasses.replace(CONFIG, remat=remat))
    for remat in ('none', 'dots', 'full')
  )
  assert full < dots < none


def test_bfloat16_is_near_float32():
  half = dataclasses.replace(CONFIG, dtype='bfloat16')
  params = params_of(CONFIG)
  inputs = packed_rows()
  real = inputs[2] > 0
  exact = np.asarray(run(params, CONFIG, *inputs))[real]
  hidden = run(params, half, *inputs)
  assert hidden.dtype == jnp.bfloat16
  assert lm_logits(params, half, hidden).dtype == jnp.float32
  difference = np.asarray(hidden, np.float32)[real] - exact
  # 8 bits of mantissa, some ten roundings one after another.
  error = np.sqrt((difference**2).mean() / (exact**2).mean())
  assert 1e-4 < error < 10 * 2**-8

  prefix = jax.jit(prefill, static_argnums=1)(
    params, half, inputs[0][:, :4], np.ones((3, 4), bool)
  )
  assert prefix.keys.dtype == jnp.bfloat16
  rest = [x[:, 4:9] for x in alone(inputs[0])]
  difference = (
    np.asarray(run(params, half, *rest, prefix), np.float32)
    - np.asarray(run(params, CONFIG, *alone(inputs[0])))[:, 4:9]
  )
  assert np.sqrt((difference**2).mean() / (exact**2).mean()) < 10 * 2**-8


@pytest.mark.slow
@pytest.mark.parametrize('param_dtype', ['float32', 'bfloat16'])
def test_bfloat16_gradients_do_not_shrink_with_repeats(param_dtype):
  """Gradients sum over thousands of occurrences of two tokens.

  Sums in bfloat16 lost 0.3 of the norm of the embedding's gradient here, and
  0.1 to 0.3 of the biases'.
  """
  config = dataclasses.replace(CONFIG, qkv_bias=True)
  half = dataclasses.replace(config, dtype='bfloat16', param_dtype=param_dtype)
  params = jax.tree.map(
    # Rounded to bfloat16, so that both dtypes hold the same values.
    lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    init_params(jax.random.key(0), config),
  )
  B, T = 64, 64
  tokens = jnp.where(jnp.arange(T) % 7, 0, 3) + jnp.zeros((B, 1), jnp.int32)
  positions = jnp.broadcast_to(jnp.arange(T), (B, T))
  weights = jax.random.normal(jax.random.key(5), (config.d_model,))

  @functools.partial(jax.jit, static_argnums=1, compiler_options=QUICK)
  def gradients(params, config):
    def loss(params):
      hidden = forward(params, config, tokens, positions, positions * 0 + T - 1)
      return (hidden.astype(jnp.float32) @ weights).sum()

    return jax.grad(loss)(params)

  exact = gradients(params, config)
  stored = jax.tree.map(lambda x: x.astype(param_dtype), params)
  found = gradients(stored, half)
  for (path, expected), gradient in zip(
    jax.tree.leaves_with_path(exact), jax.tree.leaves(found), strict=True
  ):
    difference = gradient.astype(jnp.float32) - expected
    error = jnp.linalg.norm(difference) / jnp.linalg.norm(expected)
    # 8 bits of mantissa, some ten roundings one after another.
    assert error < 10 * 2**-8, jax.tree_util.keystr(path)


def test_initial_parameters():
  config = dataclasses.replace(
    CONFIG, d_model=64, n_layers=3, qkv_bias=True, tie_embeddings=False
  )
  init = jax.jit(init_params, static_argnums=1, compiler_options=QUICK)
  params = init(jax.random.key(0), config)
  attention = params['layers']['self_attn']
  assert attention['q_proj']['kernel'].shape == (3, 64, 4, 6)
  assert attention['k_proj']['bias'].shape == (3, 2, 6)
  assert attention['o_proj']['kernel'].shape == (3, 4, 6, 64)
  assert params['lm_head'].shape == params['embed_tokens'].shape == (23, 64)
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype('float32')}
  # Fan-in 64; the output projection's 24, less by sqrt(2 L).
  np.testing.assert_allclose(attention['q_proj']['kernel'].std(), 1 / 8, 0.1)
  std = attention['o_proj']['kernel'].std()
  np.testing.assert_allclose(std, 1 / np.sqrt(24 * 6), 0.1)
  for name, std in (
    ('gate_proj', 1 / 8),
    ('up_proj', 1 / 8),
    ('down_proj', 1 / np.sqrt(24 * 6)),
  ):
    kernel = params['layers']['mlp'][name]['kernel']
    np.testing.assert_allclose(kernel.std(), std, 0.1)
  np.testing.assert_allclose(params['embed_tokens'].std(), 0.02, 0.1)
  np.testing.assert_allclose(params['lm_head'].std(), 1 / 8, 0.1)
  assert not attention['v_proj']['bias'].any()
  assert (params['layers']['input_layernorm']['scale'] == 1).all()
  layers = attention['q_proj']['kernel']
  assert (layers[0] != layers[1]).all()
  again = init(jax.random.key(0), config)
  jax.tree.map(np.testing.assert_array_equal, params, again)
