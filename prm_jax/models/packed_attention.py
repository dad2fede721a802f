"""Attends over long packed rows, computing only what can be seen.

In a row of several trees most pairs of tokens may not see each other. What a
block of queries sees before itself is one path: the ancestors of its first
token. Each block goes over its own keys and over that path's, gathered into
blocks, with a running softmax (Milakov and Gimelshein, 2018; Dao et al., 2022);
the backward pass visits the same pairs. The paths are data, so one compiled
program serves every packing. Memory grows with T, but for the paths of the row
that is computed: T^2 / 32 bytes, 0.1 GiB at 65,536 tokens.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from prm_jax.models.remat import ATTENTION, named
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

  def pad(x: jax.Array) -> jax.Array:
    after = [(0, 0), (0, blocks * BLOCK - T)] + [(0, 0)] * (x.ndim - 2)
    return jnp.pad(x, after)

  cut = pad(query).reshape(B, blocks, BLOCK, *query.shape[2:])
  rows = (
    cut.transpose(0, 1, 3, 4, 2, 5),  # [B, n, K, R, BLOCK, H]
    pad(key),
    pad(value),
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


class Paths(NamedTuple):
  """Lists, from the root, what the first token of each block sees before it.

  The other tokens of the block see no more than that outside it.
  """

  tokens: jax.Array  # [n, T] int32; behind the end of a path without meaning
  length: jax.Array  # [n] int32


def _find_paths(last: jax.Array) -> Paths:  # [n, BLOCK]
  """Walks over the blocks; each keeps the part of the path that goes on."""
  at = jnp.arange(last.size)
  flat = last.reshape(-1)

  def next_block(
    path: tuple[jax.Array, jax.Array], block: tuple[jax.Array, jax.Array]
  ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    tokens, length = path
    start, last = block
    after = start + BLOCK
    kept = jnp.sum((at < length) & (flat[tokens] >= after))
    goes_on = last >= after
    more = start + jnp.argsort(~goes_on, stable=True)
    tokens = jax.lax.dynamic_update_slice(tokens, more, (kept,))
    return (tokens, kept + goes_on.sum()), path

  starts = BLOCK * jnp.arange(len(last))
  root = jnp.zeros_like(at), jnp.zeros_like(at[0])
  return Paths(*jax.lax.scan(next_block, root, (starts, last))[1])


def _within(last: jax.Array, start: jax.Array) -> jax.Array:
  """Says which keys of a block its own queries see: [BLOCK, BLOCK] bool."""
  at = jnp.arange(BLOCK)
  return (at <= at[:, None]) & (start + at[:, None] <= last)


def _piece(
  paths: Paths, last: jax.Array, start: jax.Array, s: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns BLOCK tokens of one block's path, and which queries see which."""
  at = jnp.arange(BLOCK)
  tokens = jax.lax.dynamic_slice_in_dim(paths.tokens, s * BLOCK, BLOCK)
  on_path = s * BLOCK + at < paths.length
  tokens = jnp.where(on_path, tokens, start)
  return tokens, on_path & (start + at[:, None] <= last[tokens])


def _cut(x: jax.Array, start: jax.Array) -> jax.Array:
  """Cuts a block out of keys or values: [K, T, H] -> [K, BLOCK, H]."""
  return jax.lax.dynamic_slice_in_dim(x, start, BLOCK, 1)


def _take(x: jax.Array, tokens: jax.Array) -> jax.Array:
  """Takes tokens of keys or values: [K, T, H] -> [K, BLOCK, H]."""
  return x.at[:, tokens].get(mode='promise_in_bounds')


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

  def dot_over_queries(x: jax.Array, y: jax.Array) -> jax.Array:
    # Without the barrier XLA swaps the operands, which on a CPU transposes a
    # block of scores first and took 1.5 times as long.
    out = jax.lax.optimization_barrier(dot('KRUH,KRUV->KHV', x, y))
    return out.swapaxes(1, 2)

  weights = jnp.exp(_scores(query, key, visible) - normaliser)
  to_value = dot_over_queries(grad, weights.astype(value.dtype))
  to_weights = dot('KRUH,KVH->KRUV', grad, value)
  to_scores = (weights * (to_weights - mean)).astype(value.dtype)
  to_query = dot('KRUV,KVH->KRUH', to_scores, key)
  to_key = dot_over_queries(query, to_scores)
  return to_query, to_key, to_value


@jax.custom_vjp
def _attend_row(
  query: jax.Array,  # [n, K, R, BLOCK, H]
  key: jax.Array,  # [T, K, H]
  value: jax.Array,  # [T, K, H]
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
  key, value, flat = key.swapaxes(0, 1), value.swapaxes(0, 1), last.reshape(-1)

  def one_block(block: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    start, paths, q, last = block
    k, v = _cut(key, start), _cut(value, start)

    def add_piece(
      s: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
      tokens, visible = _piece(paths, flat, start, s)
      return _add_keys(
        state, q, _take(key, tokens), _take(value, tokens), visible
      )

    state = nothing if prefix is None else _add_keys(nothing, q, *prefix)
    state = _add_keys(state, q, k, v, _within(last, start))
    pieces = -(-paths.length // BLOCK)
    highest, total, out = jax.lax.fori_loop(0, pieces, add_piece, state)
    return (out / total).astype(value.dtype), highest + jnp.log(total)

  starts = BLOCK * jnp.arange(len(query))
  out, normaliser = jax.lax.map(
    one_block, (starts, _find_paths(last), query, last)
  )
  out, normaliser = named(ATTENTION, out, normaliser)
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
  """Goes over the blocks from the last to the first.

  What a block adds to the gradients of its path is summed by depth. The block
  that holds a token of the path takes them from there: every query that sees
  the token and is not in its block has been visited by then.
  """
  query, key, value, last, prefix, out, normaliser = saved
  flat = last.reshape(-1)

  def one_block(
    totals: tuple[Any, ...], block: tuple[Any, ...]
  ) -> tuple[tuple[Any, ...], tuple[jax.Array, ...]]:
    by_depth, left, to_prefix = totals
    start, paths, goes_on, taken, next_taken, last, *rest = block
    q, normaliser, out, grad = rest
    k, v = _cut(key, start), _cut(value, start)
    mean = jnp.sum(grad.astype(jnp.float32) * out, -1, keepdims=True)
    saved = normaliser, grad, mean

    def own(left: jax.Array, x: jax.Array) -> jax.Array:
      place = jnp.cumsum(goes_on) - 1
      return x + jnp.where(goes_on[:, None], left[:, place], 0.0)

    to_query, *to_own = _gradients(q, k, v, _within(last, start), saved)
    to_own = map(own, left, to_own)
    if prefix is not None:
      more, *to_shared = _gradients(q, *prefix, saved)
      to_query += more
      to_prefix = jax.tree.map(jnp.add, to_prefix, to_shared)

    def add_piece(
      s: jax.Array, state: tuple[jax.Array, list[jax.Array]]
    ) -> tuple[jax.Array, list[jax.Array]]:
      to_query, by_depth = state
      tokens, visible = _piece(paths, flat, start, s)
      k, v = _take(key, tokens), _take(value, tokens)
      more, *to_path = _gradients(q, k, v, visible, saved)
      at = s * BLOCK
      kept = at + jnp.arange(BLOCK)[:, None] < taken

      def add(total: jax.Array, x: jax.Array) -> jax.Array:
        before = jax.lax.dynamic_slice_in_dim(total, at, BLOCK, 1)
        x += jnp.where(kept, before, 0.0)
        return jax.lax.dynamic_update_slice_in_dim(total, x, at, 1)

      return to_query + more, [*map(add, by_depth, to_path)]

    pieces = -(-paths.length // BLOCK)
    to_query, by_depth = jax.lax.fori_loop(
      0, pieces, add_piece, (to_query, by_depth)
    )
    left = [
      jax.lax.dynamic_slice_in_dim(total, next_taken, BLOCK, 1)
      for total in by_depth
    ]
    found = to_query.astype(q.dtype), *(x.astype(k.dtype) for x in to_own)
    return (by_depth, left, to_prefix), found

  def zeros(*arrays: jax.Array) -> list[jax.Array]:
    return [jnp.zeros(x.shape) for x in arrays]

  starts, paths = BLOCK * jnp.arange(len(query)), _find_paths(last)
  goes_on = last >= starts[:, None] + BLOCK
  # Depth of the first token of each block that goes on.
  taken = jnp.append(paths.length[1:], 0) - goes_on.sum(1)
  next_taken = jnp.append(0, taken[:-1])  # of the block before
  (*_, to_prefix), (to_query, to_key, to_value) = jax.lax.scan(
    one_block,
    (
      zeros(key, value),
      zeros(key[:, :BLOCK], value[:, :BLOCK]),
      None if prefix is None else zeros(*prefix[:2]),
    ),
    (
      *(starts, paths, goes_on, taken, next_taken, last),
      *(query, normaliser, out, grad),
    ),
    reverse=True,
  )
  if prefix is not None:
    to_prefix = (*(x.astype(key.dtype) for x in to_prefix), None)

  def joined(x: jax.Array) -> jax.Array:  # [n, K, BLOCK, H] -> [T, K, H]
    return x.swapaxes(1, 2).reshape(-1, *x.shape[1::2])

  return to_query, joined(to_key), joined(to_value), None, to_prefix


_attend_row.defvjp(_forward, _backward)
