"""Stores frozen kernels in 8 or 4 bits, for adapters that train beside them.

    kernel -> quantize -> codes and scales -> dequantize -> kernel

Blocks of at most BLOCK weights along the last axis that is contracted share a
scale, their greatest absolute value. `int8` rounds to 255 equal steps. `nf4`
takes the nearest of 16 levels, quantiles of a normal distribution, and packs
two codes into a byte (QLoRA; Dettmers et al., 2023, section 3).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.runtime.errors import UserError

Params = dict[str, Any]
FORMS = 'int8', 'nf4'
BLOCK = 64  # as in the paper
# Dettmers et al., 2023, appendix E.
LEVELS = np.array(
  [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
  ],
  np.float32,
)
BETWEEN = (LEVELS[1:] + LEVELS[:-1]) / 2


def quantize(kernel: jax.Array, axis: int, form: str) -> Params:
  """Quantizes a kernel in blocks of at most BLOCK weights along an axis.

  Args:
    kernel: floats [..., n, ...], with n weights along `axis`.
    axis: the axis of the blocks, >= 0.
    form: one of FORMS.

  Returns:
    `codes`: int8 [..., n, ...], or for nf4 uint8 [..., n / 2, ...], two codes a
    byte; `scales`: float32 [..., n / block, ...], the greatest absolute value
    of each block, where block = gcd(n, BLOCK).

  Raises:
    UserError: nf4 cannot pair the weights of an axis of odd length.
  """
  length = kernel.shape[axis]
  if form == 'nf4' and length % 2:
    raise UserError(
      f'lora.quantized=nf4: {length} weights in a row cannot be stored in '
      'pairs; set it to int8'
    )
  blocks = _blocks(kernel.astype(jnp.float32), axis, math.gcd(length, BLOCK))
  scales = jnp.abs(blocks).max(axis + 1)
  parts = blocks / jnp.expand_dims(jnp.where(scales, scales, 1.0), axis + 1)
  parts = parts.reshape(kernel.shape)
  if form == 'int8':
    codes = jnp.round(127 * parts).astype(jnp.int8)
    return {'codes': codes, 'scales': scales}
  # Counted, because a search takes a loop for each weight.
  codes = sum((parts > level).astype(jnp.uint8) for level in BETWEEN)
  first, second = jnp.moveaxis(_blocks(codes, axis, 2), axis + 1, 0)
  return {'codes': first << 4 | second, 'scales': scales}


def dequantize(codes: jax.Array, scales: jax.Array, axis: int) -> jax.Array:
  """Returns the kernel that `quantize` stored, in the dtype of the scales."""
  if codes.dtype == jnp.int8:
    parts = codes.astype(jnp.float32) / 127
  else:
    pairs = jnp.stack([codes >> 4, codes & 15], axis + 1)
    # Chosen one by one, levels would be arrays as large as the kernel.
    parts = jnp.asarray(LEVELS)[_joined(pairs, axis)]
  size = parts.shape[axis] // scales.shape[axis]
  spread = jnp.expand_dims(scales.astype(jnp.float32), axis + 1)
  return _joined(_blocks(parts, axis, size) * spread, axis).astype(scales.dtype)


def _blocks(x: jax.Array, axis: int, size: int) -> jax.Array:
  """Splits an axis: [..., n, ...] -> [..., n / size, size, ...]."""
  shape = x.shape
  return x.reshape(*shape[:axis], -1, size, *shape[axis + 1 :])


def _joined(x: jax.Array, axis: int) -> jax.Array:
  """Undoes `_blocks`."""
  return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
