"""Computes rotary positions and attention to rows, prefixes and caches.

The layers of `transformer.py` call these. On a TPU or GPU rows go to a fused
kernel where it supports their shapes.
"""

import functools
import logging
import math
from typing import Literal

import jax
import jax.numpy as jnp

from prm_jax.models.config import RopeScaling
from prm_jax.models.gpu_attention import cudnn_attention, is_fused
from prm_jax.models.packed_attention import BLOCK, MASKED, packed_attention
from prm_jax.models.tpu_attention import LANES, tree_attention
from prm_jax.runtime.sharding import axis_size, platform

# Tokens of the longest rows whose scores are computed at once on accelerators.
AT_ONCE = 2048
# The same on a CPU, where blocks stay in the processor's own memory. Blocks pad
# rows of this length to two whole ones: measured, computing such rows at once
# takes as long or half, and a quarter of the compiler's time.
AT_ONCE_ON_CPU = BLOCK * 3 // 2


def apply_rope(
  x: jax.Array,  # [B, T, N, H]
  positions: jax.Array,  # [B, T]
  theta: float,
  scaling: RopeScaling | None = None,
) -> jax.Array:  # [B, T, N, H]
  """Applies rotary position embeddings (Su et al., 2021), half-split layout.

  Pair (i, i + H/2) turns by position * theta^(-2i/H) radians, times the factor
  of `scale_frequencies` if there is a `scaling`.
  """
  half = x.shape[-1] // 2
  frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  if scaling is not None:
    frequencies = scale_frequencies(frequencies, scaling)
  angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
  sin, cos = jnp.sin(angles), jnp.cos(angles)
  x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)
  return turned.astype(x.dtype)


def scale_frequencies(
  frequencies: jax.Array,  # [H / 2] radians per token
  scaling: RopeScaling,
) -> jax.Array:  # [H / 2]
  """Slows low frequencies as Llama 3 does (Grattafiori et al., 2024).

  See RopeScaling for the rule.
  """
  turns = scaling.original_length * frequencies / (2 * math.pi)
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
  return frequencies * (kept + (1.0 - kept) / scaling.factor)


def attention(
  query: jax.Array,  # [B, T, N, H]
  key: jax.Array,  # [B, T, K, H]
  value: jax.Array,  # [B, T, K, H]
  last: jax.Array,  # [B, T]
  prefix: tuple[jax.Array, jax.Array, jax.Array] | None,  # see Prefix, no L
) -> jax.Array:  # [B, T, N, H]
  """Computes grouped-query attention within the trees of rows, and to a prefix.

  Query i sees key j where j <= i <= last[j], and the whole prefix. A fused
  kernel does it where the platform has one for these shapes. Otherwise rows of
  at most AT_ONCE tokens (on a CPU AT_ONCE_ON_CPU) compute all their scores at
  once, and longer ones go through `packed_attention`. Its loops are slow on
  accelerators, so that is logged there.

  Args:
    last: index of the last token of each token's subtree; the tokens of a tree
      stand in depth-first order. Padding sees itself.
  """
  B, T, N, H = query.shape
  K = key.shape[2]
  # Each device along `model` needs whole key heads, so some are repeated.
  spread = math.lcm(K, axis_size('model'))
  if spread > K and N % spread == 0:
    repeat = functools.partial(jnp.repeat, repeats=spread // K, axis=-2)
    key, value, K = repeat(key), repeat(value), spread
    if prefix is not None:
      prefix = repeat(prefix[0]), repeat(prefix[1]), prefix[2]
  query = query.reshape(B, T, K, N // K, H) * H**-0.5
  where, S = platform(), 0 if prefix is None else prefix[0].shape[1]
  if where == 'tpu' and T % LANES == 0:
    out = tree_attention(query, key, value, last, prefix)
  elif where == 'gpu' and is_fused(query, S + T):
    out = fused_on_gpu(query, key, value, last, prefix)
  elif (AT_ONCE_ON_CPU if where == 'cpu' else AT_ONCE) >= T:
    out = attend_at_once(query, key, value, last, prefix)
  else:
    if where != 'cpu':
      logging.warning(
        'attention of %s rows of %s tokens goes block by block, which is slow: '
        'no kernel takes %s with heads of %s',
        *(B, T, query.dtype, H),
      )
    out = packed_attention(query, key, value, last, prefix)
  return out.reshape(B, T, N, H)


def visible_tokens(last: jax.Array) -> jax.Array:  # [B, T] -> [B, T, T] bool
  """Says which tokens each token sees: itself and those before it."""
  at = jnp.arange(last.shape[1])
  return (at <= at[:, None]) & (at[:, None] <= last[:, None])


def fused_on_gpu(
  query: jax.Array,  # [B, T, K, R, H], scaled
  key: jax.Array,  # [B, T, K, H]
  value: jax.Array,  # [B, T, K, H]
  last: jax.Array,  # [B, T]
  prefix: tuple[jax.Array, jax.Array, jax.Array] | None,  # [G, S, K, H] x 2
  implementation: Literal['cudnn', 'xla'] = 'cudnn',
) -> jax.Array:  # [B, T, K, R, H]
  """Computes `attention` with cuDNN's kernel.

  A prefix is copied for each row of its group: with few key heads its keys take
  far less memory than the scores that any other way would keep.

  Args:
    implementation: see `cudnn_attention`.
  """
  B, T = last.shape
  visible = visible_tokens(last)
  if prefix is None:
    return cudnn_attention(query, key, value, visible, True, implementation)
  keys, values, mask = prefix
  E = B // len(mask)
  shape = B, T, mask.shape[1]
  seen = jnp.broadcast_to(jnp.repeat(mask, E, 0)[:, None], shape)
  return cudnn_attention(
    query,
    jnp.concatenate([jnp.repeat(keys, E, 0), key], 1),
    jnp.concatenate([jnp.repeat(values, E, 0), value], 1),
    jnp.concatenate([seen, visible], 2),
    False,
    implementation,
  )


def attend_at_once(
  query: jax.Array,  # [B, T, K, R, H], scaled
  key: jax.Array,  # [B, T, K, H]
  value: jax.Array,  # [B, T, K, H]
  last: jax.Array,  # [B, T]
  prefix: tuple[jax.Array, jax.Array, jax.Array] | None,  # [G, S, K, H] x 2
) -> jax.Array:  # [B, T, K, R, H]
  """Computes `attention` with all scores of a layer at once.

  The gradient computes longer rows' scores again, because those of all layers
  would take gigabytes.
  """
  T = query.shape[1]
  if prefix is not None:
    prefix = prefix[0].swapaxes(1, 2), prefix[1].swapaxes(1, 2), prefix[2]
  attend = attend_block if T <= BLOCK else jax.checkpoint(attend_block)
  out = attend(
    query.transpose(0, 2, 3, 1, 4),  # [B, K, R, T, H]
    key.swapaxes(1, 2),
    value.swapaxes(1, 2),
    visible_tokens(last),
    prefix,
  )
  return out.transpose(0, 3, 1, 2, 4)


def cached_attention(
  query: jax.Array,  # [B, T, N, H]
  key: jax.Array,  # [B, K, S, H], entry s belongs to position s
  value: jax.Array,  # [B, K, S, H]
  positions: jax.Array,  # [B, T]
) -> jax.Array:  # [B, T, N, H]
  """Attends from new tokens to a cache that already holds their own keys."""
  B, T, N, H = query.shape
  K, S = key.shape[1:3]
  # All queries of a key head share one axis M: with two axes, heads and tokens,
  # XLA's product takes up to four times as long on a CPU.
  query = query.reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4) * H**-0.5
  scores = jnp.einsum(
    'BKMH,BKSH->BKMS',
    query.reshape(B, K, -1, H),
    key,
    preferred_element_type=jnp.float32,
  )
  visible = jnp.arange(S) <= positions[:, :, None]  # [B, T, S]
  scores = jnp.where(
    visible[:, None, None], scores.reshape(B, K, N // K, T, S), MASKED
  )
  weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
  out = jnp.einsum('BKMS,BKSH->BKMH', weights.reshape(B, K, -1, S), value)
  out = out.reshape(B, K, N // K, T, H).transpose(0, 3, 1, 2, 4)
  return out.reshape(B, T, N, H)


def attend_block(
  query: jax.Array,  # [B, K, R, T, H], scaled; R query heads share a key head
  key: jax.Array,  # [B, K, U, H]
  value: jax.Array,  # [B, K, U, H]
  mask: jax.Array,  # [B, T, U] bool, True is visible
  prefix: tuple[jax.Array, jax.Array, jax.Array] | None,  # [G, K, S, H] x 2
) -> jax.Array:  # [B, K, R, T, H]
  """Computes softmax attention of queries over keys and a shared prefix.

  The prefix is never copied for each row: the E rows of a group become an axis
  of the query instead (B = G * E).
  """
  B, K, R, T, H = query.shape
  scores = jnp.einsum(
    'BKRTH,BKUH->BKRTU', query, key, preferred_element_type=jnp.float32
  )
  scores = jnp.where(mask[:, None, None], scores, MASKED)
  highest = scores.max(-1, keepdims=True)
  if prefix is not None:
    prefix_key, prefix_value, prefix_mask = prefix
    G, S = prefix_mask.shape
    seen = jnp.einsum(
      'GEKRTH,GKSH->GEKRTS',
      query.reshape(G, B // G, K, R, T, H),
      prefix_key,
      preferred_element_type=jnp.float32,
    )
    seen = jnp.where(prefix_mask[:, None, None, None, None], seen, MASKED)
    seen = seen.reshape(B, K, R, T, S)
    highest = jnp.maximum(highest, seen.max(-1, keepdims=True))
  # The softmax is written out so that the division by its sum comes after the
  # product with the values, which has fewer elements than the scores.
  highest = jax.lax.stop_gradient(highest)
  weights = jnp.exp(scores - highest)
  total = weights.sum(-1, keepdims=True)
  out = jnp.einsum(
    'BKRTU,BKUH->BKRTH',
    weights.astype(value.dtype),
    value,
    preferred_element_type=jnp.float32,
  )
  if prefix is not None:
    weights = jnp.exp(seen - highest)
    total += weights.sum(-1, keepdims=True)
    out += jnp.einsum(
      'GEKRTS,GKSH->GEKRTH',
      weights.astype(value.dtype).reshape(G, B // G, K, R, T, S),
      prefix_value,
      preferred_element_type=jnp.float32,
    ).reshape(out.shape)
  return (out / total).astype(value.dtype)
