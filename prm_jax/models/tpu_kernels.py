"""Attends over blocks of tokens on a TPU: three kernels, and their gradient.

Every key is seen by one span of queries, and only pairs of blocks in which a
query sees a key are visited. Scores stay in the chip's own memory: the forward
kernel keeps a running softmax (Milakov and Gimelshein, 2018; Dao et al., 2022),
and the two of the gradient compute the weights again from its normaliser.

All three hold scores with keys along rows and queries along columns. Sums over
keys then need no exchange between the lanes of a register, and what belongs to
a query is a single row. The query heads of a key head stand side by side, so
keys are read once for all of them. Letters beyond those of `models/__init__`:

    n query blocks of U tokens    m key blocks of V tokens
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from prm_jax.models.remat import ATTENTION, named

MASKED = -1e30  # finite, so that a block that is all masked gives no NaN
CORES = 2  # of a v5p, which share the visits; others do both parts in turn
_SHIFT = 16  # bits of the second block of a pair
_NONE = np.iinfo(np.int32).max  # stands after the last pair


class Visits(NamedTuple):
  """Lists the pairs of blocks that a kernel visits.

  Attributes:
    pairs: [L] int32. A pair holds the block that a kernel's result is for, and
      the other block in its lower 16 bits. Pairs are sorted.
    parts: [2 * CORES] int32, begin and end of each core's pairs. All pairs of a
      block are in one part.
  """

  pairs: jax.Array
  parts: jax.Array


def make_visits(
  own: jax.Array,  # [L] int32, the block that the result is for
  other: jax.Array,  # [L] int32
  visible: jax.Array,  # [L] bool
) -> Visits:
  """Sorts the visible pairs, at least one, and splits them over the cores."""
  pairs = jnp.sort(jnp.where(visible, own << _SHIFT | other, _NONE))
  count = visible.sum(dtype=jnp.int32)
  at = jnp.arange(len(pairs))
  own = pairs >> _SHIFT
  begins = (own != jnp.roll(own, 1)) & (at > 0) & (at < count)
  # A core without pairs would still write a block, so that with a single block
  # both cores compute it.
  off_balance = jnp.where(begins, jnp.abs(2 * at - count), _NONE)
  cut = jnp.where(begins.any(), jnp.argmin(off_balance), 0)
  first_end = jnp.where(cut > 0, cut, count)
  parts = jnp.stack([jnp.zeros_like(count), first_end, cut, count])
  return Visits(pairs, parts.astype(jnp.int32))


class Blocks(NamedTuple):
  """Holds keys and values, and which queries see them.

  Attributes:
    key, value: [K, m, V, H].
    spans: [m, 2, V] int32, the first and the last query that see a key, by
      their places in all n * U.
  """

  key: jax.Array
  value: jax.Array
  spans: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend_blocks(
  query: jax.Array,  # [K, n, R, U, H], scaled; R query heads share a key head
  blocks: Blocks,
  by_query: Visits,  # the visits for each block of queries
  by_key: Visits,  # the same visits for each block of keys
  interpret: bool,
) -> jax.Array:  # [K, n, R, U, H]
  """Computes softmax attention of every query to the keys that it sees.

  Every query must see a key. Every block of queries must be visited; the
  gradients of a block of keys that is not visited are not set.

  Args:
    interpret: whether to run the kernels without a TPU, slowly.
  """
  return _forward(query, blocks, by_query, by_key, interpret)[0]


def _visit(
  kernel: Callable[..., None],
  interpret: bool,
  visits: Visits,
  inputs: tuple[tuple[jax.Array, int], ...],
  outputs: tuple[tuple[jax.ShapeDtypeStruct, int], ...],
  scratch: tuple[tuple[int, ...], ...],
) -> list[jax.Array]:
  """Runs a kernel at every visit, for each key head.

  Args:
    kernel: gets a `_Place` and references to inputs, outputs and scratch.
    inputs, outputs: arrays [K, blocks, ...], or [blocks, ...] without heads if
      their rank is 3; and 0 for blocks of the result, 1 for the others.
    scratch: shapes of float32 scratch memory.
  """

  def spec(x: jax.Array | jax.ShapeDtypeStruct, which: int) -> pl.BlockSpec:
    shared = len(x.shape) == 3
    inside = x.shape[1:] if shared else x.shape[2:]

    def index(
      core: jax.Array,
      head: jax.Array,
      step: jax.Array,
      pairs: Any,
      parts: Any,
    ) -> tuple[Any, ...]:
      end = parts[2 * core + 1]
      pair = pairs[jnp.minimum(parts[2 * core] + step, end - 1)]
      block = pair & ((1 << _SHIFT) - 1) if which else pair >> _SHIFT
      zeros = (0,) * len(inside)
      return (block, *zeros) if shared else (head, block, *zeros)

    return pl.BlockSpec((None,) * (2 - shared) + inside, index)

  def run(pairs: Any, parts: Any, *references: Any) -> None:
    core, step = pl.program_id(0), pl.program_id(2)
    begin, end = parts[2 * core], parts[2 * core + 1]
    at = begin + step
    block = pairs[jnp.minimum(at, end - 1)]

    @pl.when(at < end)
    def _() -> None:
      kernel(
        _Place(
          block >> _SHIFT,
          block & ((1 << _SHIFT) - 1),
          (at == begin)
          | (pairs[jnp.maximum(at - 1, 0)] >> _SHIFT != block >> _SHIFT),
          (at == end - 1)
          | (
            pairs[jnp.minimum(at + 1, len(visits.pairs) - 1)] >> _SHIFT
            != block >> _SHIFT
          ),
        ),
        *references,
      )

  parts = visits.parts.reshape(CORES, 2)
  heads = inputs[0][0].shape[0]
  return pl.pallas_call(
    run,
    out_shape=[x for x, _ in outputs],
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2,
      grid=(CORES, heads, jnp.max(parts[:, 1] - parts[:, 0])),
      in_specs=[spec(*each) for each in inputs],
      out_specs=[spec(*each) for each in outputs],
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'arbitrary', 'arbitrary')
    ),
    interpret=interpret,
  )(visits.pairs, visits.parts, *(x for x, _ in inputs))


class _Place(NamedTuple):
  """Says at which visit a kernel is."""

  own: jax.Array
  other: jax.Array
  is_first: jax.Array  # whether it is the first one of its own block
  is_last: jax.Array


def _dot(x: jax.Array, y: jax.Array, over: tuple[int, int]) -> jax.Array:
  return jax.lax.dot_general(
    x,
    y,
    (((over[0],), (over[1],)), ((), ())),
    preferred_element_type=jnp.float32,
  )


def _flat(x: jax.Array) -> jax.Array:  # [R, U, H] -> [R * U, H]
  return x.reshape(-1, x.shape[-1])


def _scores(
  query: jax.Array,  # [R, U, H]
  key: jax.Array,  # [V, H]
  spans: jax.Array,  # [2, V]
  query_block: jax.Array,
) -> jax.Array:  # [V, R * U]
  """Computes the scores of two blocks; MASKED where a query sees no key."""
  R, U, _ = query.shape
  V = key.shape[0]
  at = query_block * U + jax.lax.broadcasted_iota(jnp.int32, (V, U), 1)
  spans = jnp.swapaxes(spans, 0, 1)
  visible = (spans[:, :1] <= at) & (at <= spans[:, 1:])
  bias = jnp.where(visible, 0.0, MASKED)
  return _dot(key, _flat(query), (1, 1)) + jnp.concatenate([bias] * R, 1)


def _forward(
  query: jax.Array,
  blocks: Blocks,
  by_query: Visits,
  by_key: Visits,
  interpret: bool,
) -> tuple[jax.Array, tuple[Any, ...]]:
  K, n, R, U, H = query.shape

  def kernel(place: _Place, *references: Any) -> None:
    query, key, value, spans, out, normaliser, *running = references
    highest, total, mixed = running

    @pl.when(place.is_first)
    def _() -> None:
      highest[...] = jnp.full_like(highest, MASKED)
      total[...] = jnp.zeros_like(total)
      mixed[...] = jnp.zeros_like(mixed)

    scores = _scores(query[...], key[...], spans[...], place.own)
    before = highest[...]
    higher = jnp.maximum(before, scores.max(0, keepdims=True))
    weights, kept = jnp.exp(scores - higher), jnp.exp(before - higher)
    highest[...] = higher
    total[...] = total[...] * kept + weights.sum(0, keepdims=True)
    mixed[...] = mixed[...] * kept + _dot(
      value[...], weights.astype(value.dtype), (0, 0)
    )

    @pl.when(place.is_last)
    def _() -> None:
      average = jnp.swapaxes(mixed[...] / total[...], 0, 1)
      out[...] = average.astype(out.dtype).reshape(out.shape)
      normaliser[...] = highest[...] + jnp.log(total[...])

  out, normaliser = _visit(
    kernel,
    interpret,
    by_query,
    (
      (query, 0),
      (blocks.key, 1),
      (blocks.value, 1),
      (blocks.spans, 1),
    ),
    (
      (jax.ShapeDtypeStruct(query.shape, query.dtype), 0),
      (jax.ShapeDtypeStruct((K, n, 1, R * U), jnp.float32), 0),
    ),
    ((1, R * U), (1, R * U), (H, R * U)),
  )
  out, normaliser = named(ATTENTION, out, normaliser)
  return out, (query, blocks, by_query, by_key, out, normaliser)


def _to_scores(
  query_block: jax.Array,
  query: jax.Array,
  keys: tuple[jax.Array, jax.Array, jax.Array],
  saved: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
  """Returns the weights of two blocks and the gradient of their scores."""
  (key, value, spans), (grad, normaliser, mean) = keys, saved
  weights = jnp.exp(_scores(query, key, spans, query_block) - normaliser)
  to_weights = _dot(value, _flat(grad), (1, 1))
  to_scores = weights * (to_weights - mean)
  return weights.astype(value.dtype), to_scores.astype(value.dtype)


def _backward(
  interpret: bool, saved: tuple[Any, ...], grad: jax.Array
) -> tuple[jax.Array, Blocks, None, None]:
  query, blocks, by_query, by_key, out, normaliser = saved
  K, n, R, U, H = query.shape
  V = blocks.key.shape[2]
  mean = (grad.astype(jnp.float32) * out).sum(-1).reshape(K, n, 1, R * U)

  def for_queries(
    place: _Place,
    query: Any,
    *references: Any,
  ) -> None:
    *inputs, to_query, total = references
    key, value, spans, grad, normaliser, mean = [x[...] for x in inputs]

    @pl.when(place.is_first)
    def _() -> None:
      total[...] = jnp.zeros_like(total)

    _, to_scores = _to_scores(
      place.own, query[...], (key, value, spans), (grad, normaliser, mean)
    )
    total[...] += _dot(key, to_scores, (0, 0))

    @pl.when(place.is_last)
    def _() -> None:
      found = jnp.swapaxes(total[...], 0, 1).astype(to_query.dtype)
      to_query[...] = found.reshape(to_query.shape)

  def for_keys(
    place: _Place,
    query: Any,
    *references: Any,
  ) -> None:
    *inputs, to_key, to_value, key_total, value_total = references
    key, value, spans, grad, normaliser, mean = [x[...] for x in inputs]

    @pl.when(place.is_first)
    def _() -> None:
      key_total[...] = jnp.zeros_like(key_total)
      value_total[...] = jnp.zeros_like(value_total)

    weights, to_scores = _to_scores(
      place.other, query[...], (key, value, spans), (grad, normaliser, mean)
    )
    value_total[...] += _dot(weights, _flat(grad), (1, 0))
    key_total[...] += _dot(to_scores, _flat(query[...]), (1, 0))

    @pl.when(place.is_last)
    def _() -> None:
      to_key[...] = key_total[...].astype(to_key.dtype)
      to_value[...] = value_total[...].astype(to_value.dtype)

  def like(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)

  def inputs(queries: int, keys: int) -> tuple[tuple[jax.Array, int], ...]:
    return (
      (query, queries),
      *((x, keys) for x in blocks),
      (grad, queries),
      (normaliser, queries),
      (mean, queries),
    )

  (to_query,) = _visit(
    for_queries,
    interpret,
    by_query,
    inputs(0, 1),
    ((like(query), 0),),
    ((H, R * U),),
  )
  to_key, to_value = _visit(
    for_keys,
    interpret,
    by_key,
    inputs(1, 0),
    ((like(blocks.key), 0), (like(blocks.value), 0)),
    ((V, H), (V, H)),
  )
  return to_query, Blocks(to_key, to_value, None), None, None


attend_blocks.defvjp(_forward, _backward)
