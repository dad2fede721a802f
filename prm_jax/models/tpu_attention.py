"""Attends over rows of trees on TPU, and to prefixes that rows share.

The counterpart of `packed_attention` and `gpu_attention`. All rows of a device
become one sequence of tokens for the kernels of `tpu_kernels.py`, with the keys
of the prefixes behind it. There every key has one span of queries that see it:
the subtree of a row's token, all rows of a prefix's group.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.models.tpu_kernels import (
  Blocks,
  Visits,
  attend_blocks,
  make_visits,
)
from prm_jax.runtime.sharding import over_rows_and_heads

LANES = 128  # the length of rows must be a multiple of it
_BLOCKS = (128, 256, 512)  # tokens
# Scores of a block, in float32, that fit the chip's memory several times.
_QUERIES, _SCORES = 1024, 1024 * 512
_LATEST = np.iinfo(np.int32).max  # no query comes so late

# Keys and values [G, S, K, H], mask [G, S]; False is padding.
Prefix = tuple[jax.Array, jax.Array, jax.Array]


def tree_attention(
  query: jax.Array,  # [B, T, K, R, H], scaled; R query heads share a key head
  key: jax.Array,  # [B, T, K, H]
  value: jax.Array,  # [B, T, K, H]
  last: jax.Array,  # [B, T] int32
  prefix: Prefix | None,
  interpret: bool = False,
) -> jax.Array:  # [B, T, K, R, H]
  """Computes attention within trees; T must be a multiple of LANES.

  Query i sees key j of its row where j <= i <= last[j], and the prefix of its
  group: row b has that of group b // (B / G). On a mesh each device computes
  its own rows and heads.

  Args:
    last: the row's index of the last token of each token's subtree; at padding
      the token itself.
    interpret: whether to run the kernels without a TPU, slowly.
  """
  B = len(last)
  rows, shared = (query, key, value, last), ()
  if prefix is not None:
    shared = prefix
    rows += (jnp.arange(B) // (B // len(prefix[2])),)
  attend = functools.partial(_attend, interpret)
  return over_rows_and_heads(attend, rows, shared)


class _Sizes(NamedTuple):
  """Gives the sizes of blocks: queries of one head, and keys."""

  queries: int
  keys: int


def block_sizes(length: int, group: int, prefix: int) -> _Sizes:
  """Chooses sizes that divide the rows and fit the chip's memory.

  Args:
    length: tokens of a row.
    group: query heads of a key head, whose scores are computed together.
    prefix: tokens of a prefix; blocks are not longer than it needs.
  """
  whole = [size for size in _BLOCKS if length % size == 0]

  def largest(most: int) -> int:
    return max(size for size in whole if size <= max(most, LANES))

  queries = largest(_QUERIES // group)
  keys = largest(_SCORES // (group * queries))
  if prefix:
    keys = min(keys, largest(-(-prefix // LANES) * LANES))
  return _Sizes(queries, keys)


class _Keys(NamedTuple):
  """Holds keys one after another, and the queries that see them.

  Attributes:
    key, value: [S, K, H].
    first, last: [S] int32, places of queries among all of the device's tokens.
  """

  key: jax.Array
  value: jax.Array
  first: jax.Array
  last: jax.Array


def _attend(
  interpret: bool, rows: tuple[jax.Array, ...], shared: tuple[jax.Array, ...]
) -> jax.Array:
  """Attends over one device's rows and heads."""
  query, key, value, last, *group = rows
  B, T, K, R, H = query.shape
  U, V = block_sizes(T, R, shared[2].shape[1] if shared else 0)
  place = jnp.arange(B * T)
  keys = _Keys(
    key.reshape(-1, K, H),
    value.reshape(-1, K, H),
    place,
    (last + place.reshape(B, T)[:, :1]).reshape(-1),
  )
  # The blocks of keys that a row might see: its own, and those of its prefix.
  near = place[: B * T // V].reshape(B, -1)
  if shared:
    behind = _prefix_keys(shared, group[0], T, V)
    each = len(behind.key) // len(shared[2]) // V
    theirs = group[0][:, None] * each + jnp.arange(each) + near.size
    near = jnp.concatenate([near, theirs], 1)
    keys = _Keys(*map(jnp.concatenate, zip(keys, behind, strict=True)))
  spans = jnp.stack([keys.first.reshape(-1, V), keys.last.reshape(-1, V)], 1)
  blocks = Blocks(
    keys.key.reshape(-1, V, K, H).transpose(2, 0, 1, 3),
    keys.value.reshape(-1, V, K, H).transpose(2, 0, 1, 3),
    spans,
  )
  out = attend_blocks(
    query.reshape(-1, U, K, R, H).transpose(2, 0, 3, 1, 4),
    blocks,
    *_visits(spans, near, T, U),
    interpret,
  )
  return out.transpose(1, 3, 0, 2, 4).reshape(query.shape)


def _prefix_keys(
  prefix: Prefix,
  group: jax.Array,  # [B] of each row, ascending
  length: int,
  size: int,
) -> _Keys:
  """Returns the keys of all prefixes, each padded to whole blocks of `size`."""
  keys, values, mask = prefix
  groups = jnp.arange(len(mask))[:, None]
  # All rows of a group may be on other devices.
  used = mask & (groups == group).any(1, keepdims=True)
  first = (group < groups).sum(1, keepdims=True) * length
  last = (group <= groups).sum(1, keepdims=True) * length - 1

  def flat(x: jax.Array, unused: int) -> jax.Array:
    at = used.reshape(used.shape + (1,) * (x.ndim - 2))
    after = [(0, 0), (0, -mask.shape[1] % size)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(jnp.where(at, x, unused), after, constant_values=unused)
    return x.reshape(-1, *x.shape[2:])

  # Zeros make the gradient zero where no kernel sets it.
  return _Keys(
    flat(keys, 0), flat(values, 0), flat(first, _LATEST), flat(last, -1)
  )


def _visits(
  spans: jax.Array,  # [m, 2, V]
  near: jax.Array,  # [B, blocks of keys that a row might see]
  length: int,
  size: int,
) -> tuple[Visits, Visits]:
  """Finds the pairs of blocks where a query sees a key: by queries, by keys.

  The queries that see some key of a block lie without a gap, since those keys'
  subtrees share the block or reach beyond it. So the earliest and the latest
  are enough.
  """
  B, blocks = len(near), length // size
  first, last = spans[:, 0].min(-1)[near], spans[:, 1].max(-1)[near]
  begin = jnp.arange(B * blocks).reshape(B, blocks, 1) * size
  visible = (first[:, None] < begin + size) & (begin <= last[:, None])
  own, other = jnp.broadcast_arrays(begin // size, near[:, None])
  own, other, visible = (x.reshape(-1) for x in (own, other, visible))
  return make_visits(own, other, visible), make_visits(other, own, visible)
