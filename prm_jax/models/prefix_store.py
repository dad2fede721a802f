"""Caches the keys and values of partial chains on the device.

    pieces of ids (a prompt, its steps) -> find: those in the cache
      -> gather their slots -> a model reads the new tokens
      -> add: slots for these -> put

Search continues the same prefixes again and again. A piece is stored once,
however many chains go through it (RadixAttention; Zheng et al., 2024), with one
slot per token, so that chains branch and beams change places by a gather alone.
The tree of pieces is on the host, the slots are on the device. The PRM
(`TreeScorer`) and the policy (`Writer`) each have a store.
"""

import collections
import dataclasses
import functools
import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from prm_jax.models import Cache, Prefix, TransformerConfig
from prm_jax.models.cache_shardings import pool_sharding
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import BATCH, constrain

Ids = tuple[int, ...]


class Pool(NamedTuple):
  """Keys and values, one slot per token; the last slot always stays empty.

  Slots come first, so that a gather reads whole rows of memory: with layers
  first, XLA turned the whole pool around before it took a few slots from it.
  """

  keys: jax.Array  # [slots + 1, L, K, H]
  values: jax.Array  # [slots + 1, L, K, H]


@dataclasses.dataclass(eq=False, slots=True)
class Piece:
  """Is a node of the tree: some tokens that follow another piece's.

  Attributes:
    before: the piece that it follows; None for the root.
    slots: [n] int32, the slots of its own tokens.
    first: the position of its first token.
    used: the call of `PrefixStore.begin` after which it was last asked for.
    after: the pieces that follow it, by their ids.
    score: the PRM's score of the step that ends here; NaN if there is none.
  """

  before: 'Piece | None'
  ids: Ids
  slots: np.ndarray
  first: int = 0
  used: int = 0
  after: dict[Ids, 'Piece'] = dataclasses.field(default_factory=dict)
  score: float = math.nan

  @property
  def end(self) -> int:
    """Returns the number of tokens from the chain's start to its end."""
    return self.first + len(self.ids)


class PrefixStore:
  """Holds the tree of pieces and the pool with their keys and values.

  Pieces that were found or added stay at least until the next `begin`. When
  room is needed, the least recently used pieces are dropped, leaves first.

  Args:
    slots: the largest number of tokens in the store, at least one.

  Attributes:
    root: the start of every chain.
    pool: callers that write to it assign the new one.
  """

  def __init__(self, config: TransformerConfig, mesh: Mesh, slots: int) -> None:
    self.slots, self.sharding = slots, pool_sharding(config, mesh)
    init = functools.partial(init_pool, config, slots)
    self._init = jax.jit(init, out_shardings=self.sharding)
    self.clear()

  def clear(self) -> None:
    """Empties the store."""
    self.root = Piece(None, (), np.zeros(0, np.int32))
    self.pool = None  # there may be no room for two
    self.pool = self._init()
    self._free = list(range(self.slots))
    # The most recently used piece comes last, and every piece comes after those
    # that follow it in a chain: so the first one is always a leaf.
    self._order: collections.OrderedDict[Piece, None] = (
      collections.OrderedDict()
    )
    self._now = 0

  def begin(self) -> None:
    """Starts a new round: pieces of earlier rounds may now be dropped."""
    self._now += 1

  def find(self, pieces: Sequence[Ids]) -> list[Piece]:
    """Returns the root and a chain's first pieces that are in the store."""
    found = [self.root]
    for ids in pieces:
      piece = found[-1].after.get(ids)
      if piece is None:
        break
      found.append(piece)
    self._touch(found[-1])
    return found

  def add(self, before: Piece, ids: Ids) -> Piece | None:
    """Adds a piece, whose keys and values the caller must then `put`.

    Args:
      before: a piece that was found or added since `begin`.

    Returns:
      None if the pieces of this round leave no room for it. A single chain
      right after `begin` always finds room if it fits into the slots.
    """
    while len(self._free) < len(ids):
      if not self._drop_oldest():
        return None
    kept = len(self._free) - len(ids)
    own = np.array(self._free[kept:], np.int32)
    del self._free[kept:]
    piece = Piece(before, ids, own, before.end)
    before.after[ids] = piece
    self._touch(piece)
    return piece

  def _touch(self, piece: Piece) -> None:
    while piece.before is not None:
      piece.used = self._now
      self._order[piece] = None
      self._order.move_to_end(piece)
      piece = piece.before

  def _drop_oldest(self) -> bool:
    oldest = next(iter(self._order), None)
    if oldest is None or oldest.used == self._now:
      return False
    del self._order[oldest], oldest.before.after[oldest.ids]
    self._free.extend(oldest.slots.tolist())
    return True


def init_pool(config: TransformerConfig, slots: int) -> Pool:
  """Makes an empty pool, of zeros: masked values must be finite, too."""
  shape = pool_shape(config, slots)
  return Pool(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


def pool_shape(
  config: TransformerConfig, slots: int
) -> tuple[int, int, int, int]:
  """Returns the shape of a Pool's keys, and of its values."""
  return slots + 1, config.n_layers, config.n_kv_heads, config.head_dim


def pool_bytes(config: TransformerConfig, mesh: Mesh, slots: int) -> int:
  """Returns how much memory a Pool takes on each device, in bytes."""
  shape = pool_sharding(config, mesh).shard_shape(pool_shape(config, slots))
  return 2 * math.prod(shape) * jnp.dtype(config.dtype).itemsize


def slots_for(
  config: TransformerConfig,
  mesh: Mesh,
  rows: int,
  length: int,
  flag: str,
  share: float = 0.5,
) -> int:
  """Returns the number of slots for a store, if it fits a share of the memory.

  Args:
    length: longest chain in tokens.
    flag: name of the option that sets `rows`, for messages.
    share: of the memory that is available, which it may take.

  Raises:
    UserError: its Pool would take more than the share.
  """
  slots = rows * length
  sharers, memory = _memory(mesh)
  taken = sharers * pool_bytes(config, mesh, slots)
  logging.info('%s=%d: a key-value cache of %.3f GB', flag, rows, taken / 1e9)
  if taken > share * memory:
    fits = rows_that_fit(config, mesh, length, share)
    cure = f'lower it to {fits:,} or less'
    if fits < 1:
      cure = 'not one fits, use a smaller model or a shorter window'
    raise UserError(
      f'{flag}={rows}: keys and values of {rows:,} chains of {length:,} tokens '
      f'take {taken / 1e9:,.1f} GB, more than {share:.0%} of the '
      f'{memory / 1e9:,.1f} GB available; {cure}'
    )
  return slots


def rows_that_fit(
  config: TransformerConfig, mesh: Mesh, length: int, share: float = 0.5
) -> int:
  """Returns the most chains whose store fits a share of the memory."""
  sharers, memory = _memory(mesh)
  if math.isinf(memory):
    return sys.maxsize
  each = sharers * pool_bytes(config, mesh, 0)
  return (int(share * memory) // each - 1) // length


def _memory(mesh: Mesh) -> tuple[int, float]:
  """Returns how many devices share a memory, and its bytes."""
  device = mesh.local_devices[0]
  if device.platform == 'cpu':  # all CPU devices share the host's memory
    pages = os.sysconf('SC_PHYS_PAGES')
    return len(mesh.local_devices), pages * os.sysconf('SC_PAGE_SIZE')
  # Some devices do not report theirs.
  return 1, (device.memory_stats() or {}).get('bytes_limit', math.inf)


def index_of(pieces: Sequence[Piece], rows: int, length: int) -> np.ndarray:
  """Returns [rows, length] int32: the slots of each piece's chain, then -1.

  -1 is the last slot of the pool, which stays empty.
  """
  index = np.full((rows, length), -1, np.int32)
  for row, last in zip(index, pieces, strict=False):
    slots, piece = [], last
    while piece is not None:
      slots.append(piece.slots)
      piece = piece.before
    row[: last.end] = np.concatenate(slots[::-1])
  return index


def gather(
  pool: Pool,
  index: jax.Array,  # [B, S] from `index_of`
) -> Prefix:  # of as many groups as rows
  """Gathers chains from the pool, in the form that models read as a prefix."""

  def take(x: jax.Array) -> jax.Array:
    taken = constrain(x[index], BATCH, None, None, 'model')
    return jnp.moveaxis(taken, 2, 0)

  return Prefix(take(pool.keys), take(pool.values), index >= 0)


def gather_cache(pool: Pool, index: jax.Array) -> Cache:  # of B rows, S long
  """Gathers chains from the pool, in the form that `decode` continues."""

  def unstack(x: jax.Array) -> tuple[jax.Array, ...]:  # [L, B, S, K, H]
    return tuple(constrain(layer.swapaxes(1, 2), BATCH, 'model') for layer in x)

  keys, values, _ = gather(pool, index)
  return Cache(unstack(keys), unstack(values))


def put(
  pool: Pool,
  slots: jax.Array,  # [n] int32; those beyond the pool, which may be equal, are
  # not written
  keys: jax.Array,  # [L, ..., K, H], the middle axes hold n tokens
  values: jax.Array,
) -> Pool:
  """Writes new tokens to the pool, in place if the pool is donated."""
  size = len(pool.keys)
  beyond = size + jnp.arange(len(slots), dtype=slots.dtype)
  places = jnp.where(slots < size, slots, beyond)

  def write(old: jax.Array, new: jax.Array) -> jax.Array:
    layers, *rest = old.shape[1:]
    new = new.reshape(layers, -1, *rest).swapaxes(0, 1)
    return old.at[places].set(new, mode='drop', unique_indices=True)

  return Pool(write(pool.keys, keys), write(pool.values, values))


def put_cache(
  pool: Pool,
  cache: Cache,  # of B rows
  rows: jax.Array,  # [n]
  positions: jax.Array,  # [n]
  slots: jax.Array,  # [n] as in `put`
) -> Pool:
  """Writes tokens of a cache to the pool."""

  def stack(layers: tuple[jax.Array, ...]) -> jax.Array:  # [B, K, S, H]
    return jnp.stack([x[rows, :, positions] for x in layers])

  return put(pool, slots, stack(cache.keys), stack(cache.values))
