"""Attends over long packed rows, computing only the visible blocks.

In a row of several trees most pairs of tokens may not see each other. Each
block of queries goes over the key blocks of which it sees a token, with a
running softmax (Milakov and Gimelshein, 2018; Dao et al., 2022); the backward
pass visits the same blocks. Which these are is data, so one compiled program
serves every packing, and memory grows with T, not T^2.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from prm_jax.runtime.sharding import over_rows_and_heads

MASKED = -1e30  # finite, so that a row of padding gives a number, not NaN
BLOCK = 128  # tokens

# One row's prefix: keys and values [K, S, H], mask [1, S].
RowPrefix = tuple[jax.Array, jax.Array, jax.Array] | None


def packed_attention(
  query: jax.Array,  # [B, T, K, R, H], scaled; R query heads share a key head
  key: jax.Array,  # [B, T, K, H]
  value: jax.Array,  # [B, T, K, H]
  last: jax.Array,  # [B, T]
  prefix: tuple[jax.Array, jax.Array, jax.Array] | None,  # see Prefix, no L
) -> jax.Array:  # [B, T, K, R, H]
  """Computes attention within the trees of rows, and to the prefix.

  Query i sees key j where j <= i <= last[j]. The result at padding is finite
  and has no meaning. On a mesh each device goes over its own rows and heads,
  one row after another; where the number of heads does not divide by the
  devices, all compute all heads.
  """
  B, T = last.shape
  blocks = -(-T // BLOCK)
  fill = jnp.arange(T, blocks * BLOCK, dtype=last.dtype)
  last = jnp.concatenate([last, jnp.tile(fill, (B, 1))], 1)

  def cut(x: jax.Array) -> jax.Array:  # [B, T, ...] -> [B, n, BLOCK, ...]
    after = [(0, 0), (0, blocks * BLOCK - T)] + [(0, 0)] * (x.ndim - 2)
    return jnp.pad(x, after).reshape(B, blocks, BLOCK, *x.shape[2:])

  rows = (
    cut(query).transpose(0, 1, 3, 4, 2, 5),  # [B, n, K, R, BLOCK, H]
    cut(key).swapaxes(2, 3),  # [B, n, K, BLOCK, H]
    cut(value).swapaxes(2, 3),
    last.reshape(B, blocks, BLOCK),
  )
  shared = ()
  if prefix is not None:
    # The group of each row.
    rows += (jnp.arange(B) // (B // len(prefix[2])),)
    shared = prefix
  out = over_rows_and_heads(_attend_rows, rows, shared)
  out = out.transpose(0, 1, 4, 2, 3, 5)
  return out.reshape(B, blocks * BLOCK, *query.shape[2:])[:, :T]


def _attend_rows(
  rows: tuple[jax.Array, ...], shared: tuple[jax.Array, ...]
) -> jax.Array:
  """Attends one row after another, because each has its own loop bounds."""
  if shared:
    keys, values, mask = shared
    mask = jnp.expand_dims(mask, 1)
    shared = keys.swapaxes(1, 2), values.swapaxes(1, 2), mask

  def one(row: tuple[jax.Array, ...]) -> jax.Array:
    if not shared:
      return _attend_row(*row, None)
    *row, group = row
    return _attend_row(*row, tuple(x[group] for x in shared))

  return jax.lax.map(one, rows)


class Blocks(NamedTuple):
  """Lists the key blocks that each block of queries sees."""

  order: jax.Array  # [n, n] int32, those that it sees come first, ascending
  count: jax.Array  # [n] int32


def _visible_blocks(last: jax.Array) -> Blocks:  # [n, BLOCK]
  """Finds the blocks of which a token is seen.

  That is the block itself, and each earlier one with a token whose subtree
  reaches the block's first query.
  """
  at = jnp.arange(len(last))
  reached = at[:, None] * last.shape[1] <= last.max(1)
  seen = (at == at[:, None]) | ((at < at[:, None]) & reached)
  return Blocks(jnp.argsort(~seen, 1, stable=True), seen.sum(1))


def _visible(last: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
  """Says which keys of block j block i's queries see: [BLOCK, BLOCK] bool."""
  at = jnp.arange(last.shape[1])
  queries, keys = at[:, None] + i * len(at), at + j * len(at)
  return (keys <= queries) & (queries <= last[j])


def _scores(query: jax.Array, key: jax.Array, visible: jax.Array) -> jax.Array:
  """Scores a block: [K, R, U, H], [K, V, H], [U or 1, V] -> [K, R, U, V]."""
  scores = jnp.einsum(
    'KRUH,KVH->KRUV', query, key, preferred_element_type=jnp.float32
  )
  return jnp.where(visible, scores, MASKED)


def _add_keys(
  state: tuple[jax.Array, jax.Array, jax.Array],
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  visible: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Adds some more keys to the running softmax, in float32."""
  highest, total, out = state
  scores = _scores(query, key, visible)
  higher = jnp.maximum(highest, scores.max(-1, keepdims=True))
  weights, kept = jnp.exp(scores - higher), jnp.exp(highest - higher)
  total = total * kept + weights.sum(-1, keepdims=True)
  out = out * kept + jnp.einsum(
    'KRUV,KVH->KRUH',
    weights.astype(value.dtype),
    value,
    preferred_element_type=jnp.float32,
  )
  return higher, total, out


def _gradients(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  visible: jax.Array,
  saved: Sequence[jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns float32 gradients of one block pair for query, key and value."""
  normaliser, grad, mean = saved
  dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  weights = jnp.exp(_scores(query, key, visible) - normaliser)
  to_value = dot('KRUV,KRUH->KVH', weights.astype(value.dtype), grad)
  to_weights = dot('KRUH,KVH->KRUV', grad, value)
  to_scores = (weights * (to_weights - mean)).astype(value.dtype)
  to_query = dot('KRUV,KVH->KRUH', to_scores, key)
  to_key = dot('KRUV,KRUH->KVH', to_scores, query)
  return to_query, to_key, to_value


@jax.custom_vjp
def _attend_row(
  query: jax.Array,  # [n, K, R, BLOCK, H]
  key: jax.Array,  # [n, K, BLOCK, H]
  value: jax.Array,  # [n, K, BLOCK, H]
  last: jax.Array,  # [n, BLOCK]
  prefix: RowPrefix,
) -> jax.Array:  # [n, K, R, BLOCK, H]
  return _forward(query, key, value, last, prefix)[0]


def _forward(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  last: jax.Array,
  prefix: RowPrefix,
) -> tuple[jax.Array, tuple[Any, ...]]:
  heads = query.shape[1:-1]
  nothing = (
    jnp.full((*heads, 1), MASKED),
    jnp.zeros((*heads, 1)),
    jnp.zeros(query.shape[1:]),
  )

  def one_block(
    block: tuple[jax.Array, Blocks, jax.Array],
  ) -> tuple[jax.Array, jax.Array]:
    i, seen, q = block

    def add_block(
      n: jax.Array,
      state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
      j = seen.order[n]
      return _add_keys(state, q, key[j], value[j], _visible(last, i, j))

    state = nothing if prefix is None else _add_keys(nothing, q, *prefix)
    highest, total, out = jax.lax.fori_loop(0, seen.count, add_block, state)
    return (out / total).astype(value.dtype), highest + jnp.log(total)

  order = jnp.arange(len(query))
  out, normaliser = jax.lax.map(
    one_block, (order, _visible_blocks(last), query)
  )
  return out, (query, key, value, last, prefix, out, normaliser)


def _backward(
  saved: tuple[Any, ...], grad: jax.Array
) -> tuple[
  jax.Array,
  jax.Array,
  jax.Array,
  None,
  tuple[jax.Array, jax.Array, None] | None,
]:
  query, key, value, last, prefix, out, normaliser = saved
  mean = jnp.sum(grad.astype(jnp.float32) * out, -1, keepdims=True)

  def add_at(total: jax.Array, j: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(total, total[j] + x, j, 0)

  def one_block(
    totals: tuple[jax.Array, jax.Array, list[jax.Array] | None],
    block: tuple[Any, ...],
  ) -> tuple[tuple[jax.Array, jax.Array, list[jax.Array] | None], jax.Array]:
    i, seen, q, *saved = block

    def add_block(
      n: jax.Array,
      totals: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
      to_query, to_key, to_value = totals
      j = seen.order[n]
      more = _gradients(q, key[j], value[j], _visible(last, i, j), saved)
      return (
        to_query + more[0],
        add_at(to_key, j, more[1]),
        add_at(to_value, j, more[2]),
      )

    to_key, to_value, to_prefix = totals
    to_query = jnp.zeros(q.shape)
    if prefix is not None:
      to_query, *more = _gradients(q, *prefix, saved)
      to_prefix = jax.tree.map(jnp.add, to_prefix, more)
    to_query, to_key, to_value = jax.lax.fori_loop(
      0, seen.count, add_block, (to_query, to_key, to_value)
    )
    return (to_key, to_value, to_prefix), to_query.astype(q.dtype)

  def zeros(*arrays: jax.Array) -> list[jax.Array]:
    return [jnp.zeros(x.shape) for x in arrays]

  order = jnp.arange(len(query))
  (to_key, to_value, to_prefix), to_query = jax.lax.scan(
    one_block,
    (*zeros(key, value), None if prefix is None else zeros(*prefix[:2])),
    (order, _visible_blocks(last), query, normaliser, grad, mean),
  )
  if prefix is not None:
    to_prefix = (*(x.astype(key.dtype) for x in to_prefix), None)
  to_key, to_value = to_key.astype(key.dtype), to_value.astype(value.dtype)
  return to_query, to_key, to_value, None, to_prefix


_attend_row.defvjp(_forward, _backward)
