"""Reads the arrays of a checkpoint piece by piece.

    folder of a tree, shapes and shardings -> chunks on disk -> arrays

Orbax reads a whole array in the type on disk before it converts and places it,
and the parameters of all layers are one array. Here only a few chunks of an
array are in memory beside what is kept, in the type in which it is kept.
"""

import collections
import ctypes
import itertools
import json
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from prm_jax.runtime import paths
from prm_jax.runtime.sharding import path_name

CHUNK = 4 * 2**20  # bytes of a piece as checkpoints are written
AHEAD = 4  # chunks that are read at a time
ALIGNED = 64  # bytes; JAX takes over memory of the host that begins at such
CONTEXT = {
  'cache_pool': {'total_bytes_limit': 0},
  'data_copy_concurrency': {'limit': 4},
  'file_io_concurrency': {'limit': 4},
}

Block = tuple[slice, ...]


class StoredTree:
  """Opens the arrays of one tree of a checkpoint.

  Args:
    folder: of the tree.

  Raises:
    ValueError, OSError: there is none, or it is damaged.
  """

  def __init__(self, folder: paths.Path) -> None:
    written = json.loads((folder / '_METADATA').read_text())
    remote = paths.is_remote(folder)
    base = str(folder) if remote else folder.absolute().as_uri()
    self._driver = 'zarr3' if written['use_zarr3'] else 'zarr'
    self._store = {'driver': 'ocdbt', 'base': f'{base}/'}
    self._context = ts.Context(CONTEXT)

  def open(self, name: str) -> ts.TensorStore:
    """Opens an array by its path in the tree, 'a/b/c'."""
    path = {'path': f'{name.replace("/", ".")}/'}
    spec = {'driver': self._driver, 'kvstore': self._store | path}
    return ts.open(spec, context=self._context, open=True, read=True).result()


def read_arrays(
  folder: paths.Path, abstract: dict[str, Any], sums: Mapping[str, int]
) -> dict[str, Any]:
  """Returns the arrays that `abstract` names, with its types and shardings.

  Args:
    folder: of one tree of a checkpoint.
    abstract: nested dicts of shapes with types and shardings.
    sums: `word_sum` of arrays as they were written, by path. Only arrays that
      this process reads whole are compared.

  Raises:
    ValueError, OSError: an array is missing, damaged or of another shape;
      TensorStore may raise others.
  """
  tree = StoredTree(folder)

  def read(path: Any, wanted: Any) -> jax.Array:
    name = path_name(path)
    stored = tree.open(name)
    if stored.shape != wanted.shape:
      raise ValueError(
        f'{name} has the shape {list(stored.shape)}, expected '
        f'{list(wanted.shape)}'
      )
    shards: dict[Any, np.ndarray] = {}  # devices may hold the same one
    found: list[int] = []

    def shard(index: tuple[slice, ...]) -> np.ndarray:
      bounds = tuple((each.start, each.stop) for each in index)
      if bounds not in shards:
        part = stored[index]
        shards[bounds] = empty_aligned(part.shape, wanted.dtype)
        found.append(read_part(part, shards[bounds]))
      return shards[bounds]

    placed = jax.make_array_from_callback(wanted.shape, wanted.sharding, shard)
    if sum(part.size for part in shards.values()) == stored.size:
      check_sum(name, sum(found), sums)
    _give_back()
    return placed

  return jax.tree_util.tree_map_with_path(read, abstract)


def check_arrays(folder: paths.Path, sums: Mapping[str, int]) -> None:
  """Reads arrays without keeping them, and compares them with their sums.

  Args: as in `read_arrays`.

  Raises: what `read_arrays` raises.
  """
  tree = StoredTree(folder)
  for name in sums:
    check_sum(name, read_part(tree.open(name), None), sums)
  _give_back()


def check_sum(name: str, found: int, sums: Mapping[str, int]) -> None:
  """Raises ValueError if an array is not what was written."""
  if found % 2**32 != sums.get(name, found % 2**32):
    raise ValueError(f'{name} is not what was written')


def word_sum(array: np.ndarray) -> int:
  """Returns the sum of the words of an array, modulo 2^32.

  A word is an unsigned integer of as many bytes as an element, of 4 at most.
  Any change of one word changes the sum.
  """
  word = {1: np.uint8, 2: np.uint16}.get(array.dtype.itemsize, np.uint32)
  words = np.ascontiguousarray(array).reshape(-1).view(word)
  return int(words.sum(dtype=np.uint32))


def read_part(part: ts.TensorStore, into: np.ndarray | None) -> int:
  """Reads a part of an array chunk by chunk, some of them ahead.

  Args:
    into: where it is written, in whatever type; None for nowhere.

  Returns:
    The sum of its words as they are on disk, not modulo 2^32.
  """
  chunks = _chunks_of(part)

  def begin(count: int) -> Iterator[tuple[Block, ts.Future]]:
    for block in itertools.islice(chunks, count):
      yield block, part[block].read()

  reading = collections.deque(begin(AHEAD))
  found = 0
  while reading:
    block, future = reading.popleft()
    piece = np.asarray(future.result())
    reading.extend(begin(1))
    if into is not None:
      own = zip(block, part.domain.inclusive_min, strict=True)
      at = tuple(slice(x.start - low, x.stop - low) for x, low in own)
      into[at] = piece
    found += word_sum(piece)
  return found


def _chunks_of(part: ts.TensorStore) -> Iterator[Block]:
  """Yields where the chunks of an array lie, as far as they are in a part."""
  sides = []
  # A single number has no layout.
  chunks = part.chunk_layout.read_chunk.shape or ()
  for side, chunk in zip(part.domain, chunks, strict=True):
    first, end = side.inclusive_min, side.exclusive_max
    cuts = [first, *range((first // chunk + 1) * chunk, end, chunk), end]
    sides.append(itertools.starmap(slice, itertools.pairwise(cuts)))
  return itertools.product(*sides)


def empty_aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Returns an array without values that JAX can take over on a CPU."""
  size = int(np.prod(shape)) * np.dtype(dtype).itemsize
  whole = np.empty(size + ALIGNED, np.uint8)
  start = -whole.ctypes.data % ALIGNED
  return whole[start : start + size].view(dtype).reshape(shape)


def _give_back() -> None:
  """Gives memory freed by TensorStore's threads to the system.

  glibc would keep it for each thread, hundreds of megabytes in all.
  """
  if platform.libc_ver()[0] == 'glibc':
    ctypes.CDLL('libc.so.6').malloc_trim(0)
