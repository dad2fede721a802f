"""The decoder in plain NumPy and float64, and rows to run it on.

It loops over rows, heads and tokens: slow, but easy to compare with the papers.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.models import RopeScaling, TransformerConfig, forward, init_params
from prm_jax.runtime.sharding import path_name
from tests.shared.packed import last_of

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
  'qk norm': dataclasses.replace(CONFIG, qk_norm=True),
  # Of three pairs one turns as before, one is interpolated, one turns four
  # times slower.
  'scaled rope': dataclasses.replace(
    CONFIG, rope_theta=100.0, rope_scaling=RopeScaling(4.0, 1.0, 4.0, 64)
  ),
  'all heads': dataclasses.replace(CONFIG, n_kv_heads=4, norm_eps=1e-2),
}


@functools.cache
def params_of(config):
  """Draws parameters at random, so that no bias is 0 and no scale is 1."""
  rng = np.random.default_rng(0)

  def draw(path, shape):
    mean = 1.0 if path_name(path).endswith('scale') else 0.0
    return jnp.asarray(mean + 0.3 * rng.normal(size=shape.shape), jnp.float32)

  init = functools.partial(init_params, config=config)
  shapes = jax.eval_shape(init, jax.random.key(0))
  return jax.tree_util.tree_map_with_path(draw, shapes)


run = jax.jit(forward, static_argnums=1)


def some_tokens(shape, seed=1):
  rng = np.random.default_rng(seed)
  return rng.integers(0, CONFIG.vocab_size, shape).astype(np.int32)


def alone(tokens):
  """Positions and `last` of rows that hold one chain each."""
  T = tokens.shape[1]
  positions = np.broadcast_to(np.arange(T), tokens.shape)
  return tokens, positions.astype(np.int32), np.full_like(tokens, T - 1)


def norm_in_numpy(x, scale, eps):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def scaled_in_numpy(frequency, scaling):
  """Llama 3's rule, case by case, in wavelengths (tokens per turn)."""
  wavelength = 2 * np.pi / frequency
  longest = scaling.original_length / scaling.low_freq_factor
  shortest = scaling.original_length / scaling.high_freq_factor
  if wavelength < shortest:
    return frequency
  if wavelength > longest:
    return frequency / scaling.factor
  smooth = (scaling.original_length / wavelength - scaling.low_freq_factor) / (
    scaling.high_freq_factor - scaling.low_freq_factor
  )
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def rope_in_numpy(x, position, config):
  """x [H] of one token: pair (i, i + H/2) is a complex number that turns."""
  half = len(x) // 2
  frequencies = config.rope_theta ** -(np.arange(half) / half)
  if config.rope_scaling is not None:
    frequencies = np.array(
      [scaled_in_numpy(f, config.rope_scaling) for f in frequencies]
    )
  angles = position * frequencies
  turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
  return np.concatenate([turned.real, turned.imag])


def attend_in_numpy(params, x, positions, last, config):
  """x [T, D] of one row -> [T, D]."""

  def project(name):
    out = np.einsum('td,dnh->tnh', x, params[name]['kernel'])
    return out + params[name].get('bias', 0.0)

  query, key, value = map(project, ('q_proj', 'k_proj', 'v_proj'))
  for name, heads in (('q_norm', query), ('k_norm', key)):
    if config.qk_norm:
      heads[:] = norm_in_numpy(heads, params[name]['scale'], config.norm_eps)
    for t, position in enumerate(positions):
      for n in range(heads.shape[1]):
        heads[t, n] = rope_in_numpy(heads[t, n], position, config)
  out = np.zeros_like(query)
  for t in range(len(x)):
    seen = [u for u in range(t + 1) if t <= last[u]]
    for n in range(config.n_heads):
      k = n // (config.n_heads // config.n_kv_heads)
      logits = key[seen, k] @ query[t, n] / np.sqrt(config.head_dim)
      weights = np.exp(logits - logits.max())
      out[t, n] = weights @ value[seen, k] / weights.sum()
  return np.einsum('tnh,nhd->td', out, params['o_proj']['kernel'])


def forward_in_numpy(params, config, tokens, positions, last):
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  rows = []
  for row, position, ends in zip(tokens, positions, last, strict=True):
    x = params['embed_tokens'][row]
    for i in range(config.n_layers):
      layer = jax.tree.map(lambda leaf, i=i: leaf[i], params['layers'])
      scale = layer['input_layernorm']['scale']
      normed = norm_in_numpy(x, scale, config.norm_eps)
      x = x + attend_in_numpy(
        layer['self_attn'], normed, position, ends, config
      )
      scale = layer['post_attention_layernorm']['scale']
      normed = norm_in_numpy(x, scale, config.norm_eps)
      gate = normed @ layer['mlp']['gate_proj']['kernel']
      up = normed @ layer['mlp']['up_proj']['kernel']
      silu = gate / (1 + np.exp(-gate))
      x = x + (silu * up) @ layer['mlp']['down_proj']['kernel']
    rows.append(norm_in_numpy(x, params['norm']['scale'], config.norm_eps))
  return np.stack(rows)


# The chain of each token in `packed_rows`; 0 is padding.
CHAINS = np.array(
  [[1] * 5 + [2] * 7 + [0] * 2, [1] * 7 + [2] * 7, [1] * 5 + [0] * 9], np.int32
)


def packed_rows():
  """Two rows of two chains and one of a single chain, padding at the end."""
  tokens = some_tokens((3, 14))
  starts = np.array([[0] * 5 + [5] * 9, [0] * 7 + [7] * 7, [0] * 14])
  positions = (np.arange(14) - starts).astype(np.int32)
  return tokens, positions, last_of(CHAINS)
