"""The decoder against plain NumPy in float64, and its invariances."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.errors import UserError
from prm_jax.models import (
  TransformerConfig,
  forward,
  init_params,
  lm_logits,
  prefill,
)
from prm_jax.models.transformer import apply_rope
from prm_jax.sharding import path_name

CONFIG = TransformerConfig(
  vocab_size=23,
  d_model=16,
  n_layers=2,
  n_heads=4,
  n_kv_heads=2,
  d_ff=24,
  head_dim=6,  # not d_model // n_heads, as in some published models
)
VARIANTS = {
  'base': CONFIG,
  'bias': dataclasses.replace(CONFIG, qkv_bias=True, rope_theta=500.0),
  'untied': dataclasses.replace(CONFIG, tie_embeddings=False, n_kv_heads=1),
  'all heads': dataclasses.replace(CONFIG, n_kv_heads=4, norm_eps=1e-2),
}


@functools.cache
def params_of(config):
  """Random values in the shapes of init_params: no bias 0, no scale 1."""
  rng = np.random.default_rng(0)

  def draw(path, shape):
    mean = 1.0 if path_name(path).endswith('scale') else 0.0
    return jnp.asarray(mean + 0.3 * rng.normal(size=shape.shape), jnp.float32)

  init = functools.partial(init_params, config=config)
  shapes = jax.eval_shape(init, jax.random.key(0))
  return jax.tree_util.tree_map_with_path(draw, shapes)


# What runs once on tiny arrays spends all its time in the compiler.
QUICK = {'xla_backend_optimization_level': 0}
run = jax.jit(forward, static_argnums=1)
fill = jax.jit(prefill, static_argnums=1)


def some_tokens(shape, seed=1):
  rng = np.random.default_rng(seed)
  return rng.integers(0, CONFIG.vocab_size, shape).astype(np.int32)


def alone(tokens):
  """Positions and segment ids of rows that hold one chain each."""
  positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
  return tokens, positions.astype(np.int32), np.ones_like(tokens)


# Another implementation: loops over rows, heads and tokens, in float64.


def norm_in_numpy(x, scale, eps):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def rope_in_numpy(x, position, theta):
  """x [H] of one token: pair (i, i + H/2) is a complex number that turns."""
  half = len(x) // 2
  angles = position / theta ** (np.arange(half) / half)
  turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
  return np.concatenate([turned.real, turned.imag])


def attend_in_numpy(params, x, positions, segments, config):
  """x [T, D] of one row -> [T, D]."""

  def project(name):
    out = np.einsum('td,dnh->tnh', x, params[name]['kernel'])
    return out + params[name].get('bias', 0.0)

  query, key, value = map(project, ('q_proj', 'k_proj', 'v_proj'))
  for heads in (query, key):
    for t, position in enumerate(positions):
      for n in range(heads.shape[1]):
        heads[t, n] = rope_in_numpy(heads[t, n], position, config.rope_theta)
  out = np.zeros_like(query)
  for t in range(len(x)):
    seen = [u for u in range(t + 1) if segments[u] == segments[t]]
    for n in range(config.n_heads):
      k = n // (config.n_heads // config.n_kv_heads)
      logits = key[seen, k] @ query[t, n] / np.sqrt(config.head_dim)
      weights = np.exp(logits - logits.max())
      out[t, n] = weights @ value[seen, k] / weights.sum()
  return np.einsum('tnh,nhd->td', out, params['o_proj']['kernel'])


def forward_in_numpy(params, config, tokens, positions, segment_ids):
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  rows = []
  for row, position, segments in zip(
    tokens, positions, segment_ids, strict=True
  ):
    x = params['embed_tokens'][row]
    for i in range(config.n_layers):
      layer = jax.tree.map(lambda leaf, i=i: leaf[i], params['layers'])
      scale = layer['input_layernorm']['scale']
      normed = norm_in_numpy(x, scale, config.norm_eps)
      x = x + attend_in_numpy(
        layer['self_attn'], normed, position, segments, config
      )
      scale = layer['post_attention_layernorm']['scale']
      normed = norm_in_numpy(x, scale, config.norm_eps)
      gate = normed @ layer['mlp']['gate_proj']['kernel']
      up = normed @ layer['mlp']['up_proj']['kernel']
      silu = gate / (1 + np.exp(-gate))
      x = x + (silu * up) @ layer['mlp']['down_proj']['kernel']
    rows.append(norm_in_numpy(x, params['norm']['scale'], config.norm_eps))
  return np.stack(rows)


def packed_rows():
  """Two rows of two chains and one of a single chain, padding at the end."""
  tokens = some_tokens((3, 14))
  segment_ids = np.array(
    [[1] * 5 + [2] * 7 + [0] * 2, [1] * 7 + [2] * 7, [1] * 5 + [0] * 9],
    np.int32,
  )
  starts = np.array([[0] * 5 + [5] * 9, [0] * 7 + [7] * 7, [0] * 14])
  positions = (np.arange(14) - starts).astype(np.int32)
  return tokens, positions, segment_ids


@pytest.mark.parametrize('variant', VARIANTS)
def test_forward_is_the_plain_implementation(variant):
  config = VARIANTS[variant]
  params = params_of(config)
  inputs = packed_rows()
  actual = run(params, config, *inputs)
  expected = forward_in_numpy(params, config, *inputs)
  assert np.abs(expected).max() > 1
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('variant', ['base', 'untied'])
def test_next_token_logits(variant):
  config = VARIANTS[variant]
  params = params_of(config)
  hidden = np.random.default_rng(2).normal(size=(2, 3, config.d_model))
  table = params['lm_head' if variant == 'untied' else 'embed_tokens']
  assert ('lm_head' in params) == (variant == 'untied')
  actual = lm_logits(params, config, jnp.asarray(hidden, jnp.float32))
  expected = hidden @ np.asarray(table, np.float64).T
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_rope_by_hand():
  # H = 4, theta = 100: pairs (0, 2) and (1, 3) turn by p and by p / 10.
  x = jnp.array([1.0, 0.0, 0.0, 2.0]).reshape(1, 1, 1, 4)
  turned = apply_rope(x, jnp.array([[3]]), 100.0)[0, 0, 0]
  expected = [np.cos(3), -2 * np.sin(0.3), np.sin(3), 2 * np.cos(0.3)]
  np.testing.assert_allclose(turned, expected, atol=1e-6)


def test_only_relative_positions_matter():
  tokens, positions, segment_ids = packed_rows()
  params = params_of(CONFIG)
  np.testing.assert_allclose(
    run(params, CONFIG, tokens, positions + 7, segment_ids),
    run(params, CONFIG, tokens, positions, segment_ids),
    atol=2e-5,
  )


def test_packed_equals_unpacked():
  tokens, positions, segment_ids = packed_rows()
  params = params_of(CONFIG)
  packed = run(params, CONFIG, tokens, positions, segment_ids)
  for b, s in ((0, 1), (0, 2), (1, 1), (1, 2), (2, 1)):
    inside = segment_ids[b] == s
    single = run(params, CONFIG, *alone(tokens[b, inside][None]))
    np.testing.assert_allclose(packed[b, inside], single[0], atol=1e-5)


def test_padding_changes_nothing():
  """Neither what it holds, exactly, nor how much of it there is."""
  tokens, positions, segment_ids = packed_rows()
  params = params_of(CONFIG)
  real = segment_ids > 0
  expected = np.asarray(run(params, CONFIG, tokens, positions, segment_ids))
  other = np.where(real, tokens, some_tokens(tokens.shape, 9))
  assert (other != tokens).any()
  actual = np.asarray(run(params, CONFIG, other, positions, segment_ids))
  np.testing.assert_array_equal(actual[real], expected[real])
  longer = [np.pad(x, ((0, 2), (0, 6))) for x in (tokens, positions)]
  actual = run(params, CONFIG, *longer, np.pad(segment_ids, ((0, 2), (0, 6))))
  assert np.isfinite(np.asarray(actual)).all()
  np.testing.assert_allclose(actual[:3, :14][real], expected[real], atol=1e-5)


def test_later_tokens_never_change_earlier_states():
  """Exactly: a masked weight is 0, not small."""
  tokens, positions, segment_ids = alone(some_tokens((3, 14)))
  params = params_of(CONFIG)
  before = np.asarray(run(params, CONFIG, tokens, positions, segment_ids))
  for t in (1, 6, 13):
    changed = tokens.copy()
    changed[:, t:] = (changed[:, t:] + 1) % CONFIG.vocab_size
    after = np.asarray(run(params, CONFIG, changed, positions, segment_ids))
    np.testing.assert_array_equal(after[:, :t], before[:, :t])
    assert (after[:, t:] != before[:, t:]).all(-1).all()


# Three prompts of unequal length, padded; two rows share each.
LENGTHS = np.array([4, 7, 1])
PROMPT_MASK = np.arange(8) < LENGTHS[:, None]


def run_with_prefix(prompts, rows, positions, segment_ids):
  config = VARIANTS['bias']
  params = params_of(config)
  prefix = fill(params, config, prompts, PROMPT_MASK)
  return run(params, config, rows, positions, segment_ids, prefix)


def going_on(rows):
  """Positions of rows that go on from their prompts."""
  starts = np.repeat(LENGTHS, 2)[:, None]
  return (starts + np.arange(rows.shape[1])).astype(np.int32)


def test_a_prefix_and_the_rest_are_the_whole():
  config = VARIANTS['bias']
  params = params_of(config)
  prompts, rows = some_tokens((3, 8), 3), some_tokens((6, 5), 4)
  actual = run_with_prefix(prompts, rows, going_on(rows), np.ones_like(rows))
  for b, row in enumerate(rows):
    length = LENGTHS[b // 2]
    whole = alone(np.concatenate([prompts[b // 2, :length], row])[None])
    expected = forward_in_numpy(params, config, *whole)[0, length:]
    np.testing.assert_allclose(actual[b], expected, rtol=0, atol=1e-5)
  # The longest prompt once more, against our own forward of the whole.
  whole = np.concatenate([prompts[1:2, :7], rows[2:3]], axis=1)
  expected = run(params, config, *alone(whole))[0, 7:]
  np.testing.assert_allclose(actual[2], expected, rtol=0, atol=1e-5)


def test_what_pads_a_prefix_changes_nothing():
  prompts, rows = some_tokens((3, 8), 5), some_tokens((6, 5), 6)
  other = np.where(PROMPT_MASK, prompts, some_tokens((3, 8), 7))
  assert (other != prompts).any()
  rest = (rows, going_on(rows), np.ones_like(rows))
  np.testing.assert_array_equal(
    run_with_prefix(prompts, *rest), run_with_prefix(other, *rest)
  )


def test_packed_candidates_share_a_prefix():
  """Two candidates in one row see the prompt, and not each other."""
  config = VARIANTS['bias']
  params = params_of(config)
  prompts, rows = some_tokens((3, 8), 8), some_tokens((6, 5), 9)
  positions = going_on(rows)
  positions[:, 3:] -= 3
  segment_ids = np.broadcast_to(np.int32([1, 1, 1, 2, 2]), (6, 5))
  actual = run_with_prefix(prompts, rows, positions, segment_ids)
  for b, part in itertools.product(range(6), (slice(0, 3), slice(3, 5))):
    length = LENGTHS[b // 2]
    whole = np.concatenate([prompts[b // 2, :length], rows[b, part]])[None]
    expected = forward_in_numpy(params, config, *alone(whole))[0, length:]
    np.testing.assert_allclose(actual[b, part], expected, rtol=0, atol=1e-5)


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
def test_memory_and_speed_settings_change_no_number(change):
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


def saved_bytes(config):
  """What the backward pass is handed, parameters included."""

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

  prefix = fill(params, half, inputs[0][:, :4], np.ones((3, 4), bool))
  assert prefix.keys.dtype == jnp.bfloat16
  rest = [x[:, 4:9] for x in alone(inputs[0])]
  difference = (
    np.asarray(run(params, half, *rest, prefix), np.float32)
    - np.asarray(run(params, CONFIG, *alone(inputs[0])))[:, 4:9]
  )
  assert np.sqrt((difference**2).mean() / (exact**2).mean()) < 10 * 2**-8


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
  layers = attention['q_proj']['kernel']
  assert (layers[0] != layers[1]).all()
  again = init(jax.random.key(0), config)
  jax.tree.map(np.testing.assert_array_equal, params, again)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'n_heads': 0}, 'model.n_heads=0: expected >= 1'),
    ({'n_heads': 0, 'head_dim': 0}, 'model.n_heads=0: expected >= 1'),
    ({'d_model': 0}, 'model.d_model=0'),
    ({'n_layers': -1}, 'model.n_layers=-1'),
    ({'d_ff': 0}, 'model.d_ff=0'),
    ({'scan_unroll': 0}, 'model.scan_unroll=0'),
    ({'n_kv_heads': 3}, 'model.n_kv_heads=3 must divide model.n_heads=4'),
    ({'n_kv_heads': 0}, 'model.n_kv_heads=0 must divide'),
    ({'head_dim': 5}, 'model.head_dim=5: rotary embeddings need an even'),
    ({'d_model': 4, 'head_dim': 0}, 'model.head_dim=1'),
    ({'remat': 'some'}, "model.remat='some': expected one of"),
    ({'dtype': 'float16'}, "model.dtype='float16': expected one of"),
  ],
)
def test_a_config_checks_itself(change, message):
  with pytest.raises(UserError, match=message):
    dataclasses.replace(CONFIG, **change)


def test_head_dim_follows_from_the_width():
  assert dataclasses.replace(CONFIG, head_dim=0).head_dim == 4
