"""Attends over packed rows on NVIDIA GPUs with cuDNN's fused kernel.

The counterpart of `packed_attention` and `tpu_attention`. A mask keeps the
chains of a row apart, which works on all GPUs from Ampere on. cuDNN's own
packing needs a Hopper, and JAX has no public function for it (the private one
of jax 0.10 reads wrong keys where heads share them; jax-ml/jax#39521).
"""

import re
from typing import Literal

import jax
import jax.numpy as jnp

from prm_jax.runtime.sharding import over_rows_and_heads

LARGEST_HEAD = 128  # head size that GPUs before Hopper support
LONGEST = 8192  # tokens in a row; the mask of longer rows takes gigabytes
OLDEST = 8.0  # compute capability of Ampere, the first with this kernel


def is_fused(
  query: jax.Array,  # [B, T, K, R, H]
  keys: int,
) -> bool:
  """Says whether cuDNN has a kernel for these queries, and for the gradient.

  Args:
    keys: number of keys of a row.
  """
  T, H = query.shape[1], query.shape[-1]
  half = query.dtype in (jnp.bfloat16, jnp.float16)
  fits = T % 2 == keys % 2 == 0 and keys <= LONGEST
  head_fits = H % 8 == 0 and H <= LARGEST_HEAD
  return half and fits and head_fits and _has_kernel(jax.local_devices()[0])


def _has_kernel(device: jax.Device) -> bool:
  """Says whether this GPU has it; assumes so when compiling elsewhere."""
  if device.platform != 'gpu':
    return True
  version = re.fullmatch(r'\d+\.\d+', str(device.compute_capability))
  return bool(version) and float(version[0]) >= OLDEST  # AMD's are names


def cudnn_attention(
  query: jax.Array,  # [B, T, K, R, H], scaled; R query heads share a key head
  key: jax.Array,  # [B, U, K, H]
  value: jax.Array,  # [B, U, K, H]
  visible: jax.Array,  # [B, T, U] bool
  is_causal: bool,
  implementation: Literal['cudnn', 'xla'] = 'cudnn',
) -> jax.Array:  # [B, T, K, R, H]
  """Computes attention to the visible keys, for queries that `is_fused`.

  Scores stay on the chip. The mask takes 2 bytes for each pair of a row's
  tokens, and cuDNN makes a gradient of it that takes as much and is never
  read: 16 MB each for 8 rows of 1,024. All heads and layers share the mask. On
  a mesh each device computes its own rows and heads.

  Args:
    is_causal: whether query t sees at most the keys up to t; the kernel then
      skips half of its work. `visible` may be true beyond that.
    implementation: 'xla' computes the same on any device, all scores at once.
  """

  def attend(rows: tuple[jax.Array, ...], _: tuple[()]) -> jax.Array:
    query, key, value, visible = rows
    B, T, K, R, H = query.shape
    out = jax.nn.dot_product_attention(
      query.reshape(B, T, K * R, H),
      key,
      value,
      mask=visible[:, None],
      is_causal=is_causal,
      scale=1.0,
      implementation=implementation,
    )
    return out.reshape(query.shape)

  return over_rows_and_heads(attend, (query, key, value, visible))
