"""Caches keys and values of chains that search may continue.

    prompts -> what is cached of each is gathered, the rest is read
    chains that end -> their slots' keys and values -> the PrefixStore

`SamplingConfig.kept` sets its size. The token that ended a step or a prompt has
been written but not read: it is read with what follows it, so every piece but
the first begins with such a token.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax.inference.packing import bucket
from prm_jax.inference.sampler import Stops
from prm_jax.models import Cache, TransformerConfig, prefix_store
from prm_jax.models.prefix_store import Ids, PrefixStore, index_of

SMALLEST_BUCKET = 32
# Fewest and most tokens that one call copies into the store.
SMALLEST_COPY = 64
LARGEST_COPY = 4096


def split_pieces(ids: Sequence[int], stops: Stops) -> list[Ids]:
  """Splits ids into pieces; each but the first begins with a stop id."""
  starts = [i for i, token in enumerate(ids) if not i or token in stops]
  bounds = itertools.pairwise([*starts, len(ids)])
  return [tuple(ids[start:end]) for start, end in bounds]


class KeptChains:
  """Connects a Writer to a PrefixStore.

  Args:
    config: the backbone's architecture.
    mesh: devices that hold the store.
    stops: ids that end steps and chains.
    slots: number of tokens that are kept; the least recently used are dropped.
    call: `Writer.call`, which runs a program by name.

  Attributes:
    programs: programs that the Writer runs for this cache, by name.
  """

  def __init__(
    self,
    config: TransformerConfig,
    mesh: Mesh,
    stops: Stops,
    slots: int,
    call: Callable[..., Any],
  ) -> None:
    self._store = PrefixStore(config, mesh, slots)
    self._stops, self._call = stops, call
    self.programs = {
      'recall': jax.jit(prefix_store.gather_cache),
      'keep': jax.jit(
        prefix_store.put_cache,
        donate_argnums=0,
        out_shardings=self._store.sharding,
      ),
    }

  def forget(self) -> None:
    """Empties the store."""
    self._store.clear()

  def read(self, prompts: Sequence[Ids]) -> tuple[Cache, list[int]]:
    """Returns keys and values of all but the last token of each prompt.

    Returns:
      A cache with a row for each prompt (and perhaps more), and how many
      tokens of each prompt were in the store and did not have to be read.
    """
    self._store.begin()
    known = [
      self._store.find(split_pieces(ids, self._stops)[:-1])[-1]
      for ids in prompts
    ]
    first = [piece.end for piece in known]
    new = [ids[n:-1] for ids, n in zip(prompts, first, strict=True)]
    G = bucket(len(prompts), 1)
    S = bucket(max(map(len, prompts)) - 1, SMALLEST_BUCKET)
    index = index_of(known, G, S)
    cache = self._call('recall', (G, S), self._store.pool, index)
    if not any(new):
      return cache, first
    T = bucket(max(map(len, new)), SMALLEST_BUCKET)
    tokens, starts = np.zeros((G, T), np.int32), np.zeros(G, np.int32)
    for row, ids in enumerate(new):
      tokens[row, : len(ids)], starts[row] = ids, first[row]
    cache = self._call('read_on', (G, T, S), tokens, starts, cache)
    self.write(cache, list(enumerate(prompts)))
    return cache, first

  def write(self, cache: Cache, chains: Sequence[tuple[int, Ids]]) -> None:
    """Stores chains up to their last stop id, as far as there is room.

    Args:
      cache: holds the keys and values of all but the chains' last tokens.
      chains: row in the cache and ids of each chain.
    """
    try:
      self._copy(cache, self._make_room(chains))
    except BaseException:
      # The tree may hold pieces whose keys and values were never written.
      self._store.clear()
      raise

  def _make_room(
    self, chains: Sequence[tuple[int, Ids]]
  ) -> np.ndarray:  # [3, n] row, position and slot of every new token
    self._store.begin()
    copied = [np.zeros((3, 0), int)]
    for row, ids in chains:
      pieces = split_pieces(ids, self._stops)[:-1]
      path = self._store.find(pieces)
      for own in pieces[len(path) - 1 :]:
        piece = self._store.add(path[-1], own)
        if piece is None:
          break
        path.append(piece)
        positions = np.arange(piece.first, piece.end)
        rows = np.full(len(own), row)
        copied.append(np.stack([rows, positions, piece.slots]))
    return np.concatenate(copied, 1)

  def _copy(self, cache: Cache, tokens: np.ndarray) -> None:
    B, _, S, _ = cache.keys[0].shape
    for at in range(0, tokens.shape[1], LARGEST_COPY):
      part = tokens[:, at : at + LARGEST_COPY]
      n = bucket(part.shape[1], SMALLEST_COPY)
      filled = np.zeros((3, n), np.int32)
      filled[2] = self._store.slots + 1  # beyond the pool, so it is dropped
      filled[:, : part.shape[1]] = part
      self._store.pool = self._call(
        'keep', (n, B, S), self._store.pool, cache, *filled
      )
