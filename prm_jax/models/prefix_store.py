"""Keys and values of chains that are gone on from, kept on the device.

    pieces of ids (a prompt, its steps) -> find: those that are kept
      -> gather their slots -> a model reads what is new
      -> add: slots for that -> put

Search goes on from the same prefixes again and again. A piece is kept once,
however many chains go through it (Zheng et al., 2024: RadixAttention), one
token a slot: chains branch, and beams change places, by gather alone. The tree
of pieces is on the host, the slots are on the device; both models have such a
store (`TreeScorer`, `Writer`).
"""

import collections
import dataclasses
import functools
import logging
import math
import os
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
  """Slots of a token each; the last is empty and stays so."""

  keys: jax.Array  # [L, slots + 1, K, H]
  values: jax.Array  # [L, slots + 1, K, H]


@dataclasses.dataclass(eq=False, slots=True)
class Piece:
  """Some tokens after those of another piece.

  Attributes:
    before: the piece that it follows; None of the root.
    ids: its own tokens.
    slots: [n] int32 of all tokens from the chain's beginning to its end.
    used: when it was asked for last, in calls of `PrefixStore.begin`.
    after: the pieces that follow it, by their ids.
    score: a PRM's, of the step that ends here; NaN where there is none.
  """

  before: 'Piece | None'
  ids: Ids
  slots: np.ndarray
  used: int = 0
  after: dict[Ids, 'Piece'] = dataclasses.field(default_factory=dict)
  score: float = math.nan

  @property
  def first(self) -> int:
    """The position of its first token."""
    return len(self.slots) - len(self.ids)


class PrefixStore:
  """The tree of pieces, and the pool in which they lie.

  What is found or added stays until the next `begin` at least; beyond that the
  pieces go that were not asked for longest, never before those that follow.

  Args:
    slots: tokens that are kept at most, one at least.

  Attributes:
    root: the beginning of every chain.
    pool: who writes to it replaces it.
  """

  def __init__(self, config: TransformerConfig, mesh: Mesh, slots: int) -> None:
    self.slots, self.sharding = slots, pool_sharding(config, mesh)
    init = functools.partial(init_pool, config, slots)
    self._init = jax.jit(init, out_shardings=self.sharding)
    self.clear()

  def clear(self) -> None:
    """Forgets all."""
    self.root = Piece(None, (), np.zeros(0, np.int32))
    self.pool = None  # there may be no room for two
    self.pool = self._init()
    self._free = list(range(self.slots))
    # The latest used last, and what is before a piece later than the piece: the
    # first of all is one that nothing follows.
    self._order: collections.OrderedDict[Piece, None] = (
      collections.OrderedDict()
    )
    self._now = 0

  def begin(self) -> None:
    """Allows what was found and added so far to go."""
    self._now += 1

  def find(self, pieces: Sequence[Ids]) -> list[Piece]:
    """The root, and as many of a chain's pieces as are kept."""
    found = [self.root]
    for ids in pieces:
      piece = found[-1].after.get(ids)
      if piece is None:
        break
      found.append(piece)
    self._touch(found[-1])
    return found

  def add(self, before: Piece, ids: Ids) -> Piece | None:
    """A new piece, for whoever asked to `put` its keys and values.

    None where there is no room for it among what may not go; for one chain
    alone, right after `begin`, there is as long as it fits the slots.

    Args:
      before: found or added since `begin`.
    """
    while len(self._free) < len(ids):
      if not self._drop_oldest():
        return None
    kept = len(self._free) - len(ids)
    own = np.array(self._free[kept:], np.int32)
    del self._free[kept:]
    piece = Piece(before, ids, np.concatenate([before.slots, own]))
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
    self._free.extend(oldest.slots[oldest.first :].tolist())
    return True


def init_pool(config: TransformerConfig, slots: int) -> Pool:
  """Empty slots; zeros, for what is masked must still be finite."""
  shape = pool_shape(config, slots)
  return Pool(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


def pool_shape(
  config: TransformerConfig, slots: int
) -> tuple[int, int, int, int]:
  """Of a Pool's keys, and of its values."""
  return config.n_layers, slots + 1, config.n_kv_heads, config.head_dim


def pool_bytes(config: TransformerConfig, mesh: Mesh, slots: int) -> int:
  """What a Pool takes of each device, in bytes."""
  shape = pool_sharding(config, mesh).shard_shape(pool_shape(config, slots))
  return 2 * math.prod(shape) * jnp.dtype(config.dtype).itemsize


def slots_for(
  config: TransformerConfig, mesh: Mesh, rows: int, length: int, flag: str
) -> int:
  """The slots of a store, where half of the memory has room for its Pool.

  Args:
    rows: chains that are kept.
    length: of each, in tokens.
    flag: the option that says how many rows.

  Raises:
    UserError: there is less room.
  """
  slots = rows * length
  device, sharers = mesh.local_devices[0], 1
  if device.platform == 'cpu':  # all of them have the host's memory
    sharers = len(mesh.local_devices)
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  else:  # not every device tells
    memory = (device.memory_stats() or {}).get('bytes_limit', math.inf)
  taken = sharers * pool_bytes(config, mesh, slots)
  logging.info('%s=%d: a pool of %.3f GB', flag, rows, taken / 1e9)
  if taken > memory / 2:
    each = sharers * pool_bytes(config, mesh, 0)
    fits = (int(memory / 2) // each - 1) // length
    cure = f'lower it to {fits:,} or less'
    if fits < 1:
      cure = 'not one fits, take a smaller model or a shorter window'
    raise UserError(
      f'{flag}={rows}: keys and values of {rows:,} chains of {length:,} tokens '
      f'take {taken / 1e9:,.1f} GB, more than half of the {memory / 1e9:,.1f} '
      f'GB that there are; {cure}'
    )
  return slots


def index_of(pieces: Sequence[Piece], rows: int, length: int) -> np.ndarray:
  """[rows, length] int32: the slots up to each piece's end, then empty ones.

  -1 is the last slot, which is empty.
  """
  index = np.full((rows, length), -1, np.int32)
  for row, piece in zip(index, pieces, strict=False):
    row[: len(piece.slots)] = piece.slots
  return index


def gather(
  pool: Pool,
  index: jax.Array,  # [B, S] from `index_of`
) -> Prefix:  # of as many groups as rows
  """What the models read before new tokens."""
  taken = (constrain(x[:, index], None, BATCH, None, 'model') for x in pool)
  return Prefix(*taken, index >= 0)


def gather_cache(pool: Pool, index: jax.Array) -> Cache:  # of B rows, S long
  """`gather` in the form that `decode` goes on from."""

  def of(x: jax.Array) -> tuple[jax.Array, ...]:  # [L, B, S, K, H]
    return tuple(constrain(layer.swapaxes(1, 2), BATCH, 'model') for layer in x)

  keys, values, _ = gather(pool, index)
  return Cache(of(keys), of(values))


def put(
  pool: Pool,
  slots: jax.Array,  # [n] int32; those beyond the pool are not written
  keys: jax.Array,  # [L, ..., K, H], n between
  values: jax.Array,
) -> Pool:
  """Writes new tokens, in place where the pool is donated."""

  def write(old: jax.Array, new: jax.Array) -> jax.Array:
    new = new.reshape(len(old), -1, *old.shape[2:])
    return old.at[:, slots].set(new, mode='drop')

  return Pool(write(pool.keys, keys), write(pool.values, values))


def put_cache(
  pool: Pool,
  cache: Cache,  # of B rows
  rows: jax.Array,  # [n]
  positions: jax.Array,  # [n]
  slots: jax.Array,  # [n] as in `put`
) -> Pool:
  """`put` of tokens out of a cache."""

  def of(layers: tuple[jax.Array, ...]) -> jax.Array:  # [B, K, S, H]
    return jnp.stack([x[rows, :, positions] for x in layers])

  return put(pool, slots, of(cache.keys), of(cache.values))
