"""Attends over packed rows on TPU with the splash kernel of Pallas.

The counterpart of `packed_attention` and `gpu_attention`. It computes the same
values and keeps the scores in the chip's own memory.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from prm_jax.runtime.sharding import over_rows_and_heads

LANES = 128  # row lengths and head sizes must be multiples of it
LARGEST_BLOCK = 512  # tokens; larger blocks do not fit the chip's memory


def splash_attention(
  query: jax.Array,  # [B, T, K, R, H], scaled; R query heads share a key head
  key: jax.Array,  # [B, T, K, H]
  value: jax.Array,  # [B, T, K, H]
  last: jax.Array,  # [B, T]
  interpret: bool = False,
) -> jax.Array:  # [B, T, K, R, H]
  """Computes causal attention within segments; T must be a multiple of LANES.

  On a mesh each device computes its own rows and heads.

  Args:
    interpret: whether to run the kernel without a TPU, slowly.
  """
  B, _, K, _, H = query.shape

  def widen(x: jax.Array) -> jax.Array:
    missing = -H % LANES
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])

  def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
  ) -> jax.Array:
    b, T, k, R = query.shape[:4]
    block = max(n for n in (128, 256, LARGEST_BLOCK) if T % n == 0)
    kernel = splash.make_splash_mha(
      splash.MultiHeadMask([splash.CausalMask((T, T))] * (k * R)),
      block_sizes=splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
      ),
      head_shards=1,
      q_seq_shards=1,
      interpret=interpret,
    )
    out = jax.vmap(kernel)(
      widen(query).reshape(b, T, k * R, -1).swapaxes(1, 2),
      widen(key).swapaxes(1, 2),
      widen(value).swapaxes(1, 2),
      splash.SegmentIds(last, last),
    )
    return out.swapaxes(1, 2).reshape(b, T, k, R, -1)[..., :H]

  attend = over_rows_and_heads(attend, B, K)
  return attend(query, key, value, last)
