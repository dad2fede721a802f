"""Reads the arrays of a checkpoint piece by piece.

    folder of a tree, shapes and shardings -> chunks on disk -> arrays

Orbax reads a whole array in the type on disk before it converts and places it,
and the parameters of all layers are one array. Here only a few chunks of an
array are in memory beside what is kept, in the type in which it is kept.
"""

import ctypes
import json
import platform
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from prm_jax.runtime import paths
from prm_jax.runtime.sharding import path_name

CHUNK = 4 * 2**20  # bytes of a piece as checkpoints are written
ALIGNED = 64  # bytes; JAX takes over memory of the host that begins at such
CONTEXT = {
  'cache_pool': {'total_bytes_limit': 0},
  'data_copy_concurrency': {'limit': 4},
  'file_io_concurrency': {'limit': 4},
}


def read_arrays(folder: paths.Path, abstract: dict[str, Any]) -> dict[str, Any]:
  """Returns the arrays that `abstract` names, with its types and shardings.

  Args:
    folder: of one tree of a checkpoint.
    abstract: nested dicts of shapes with types and shardings.

  Raises:
    ValueError: an array is missing, damaged or of another shape; OSError and
      what TensorStore raises else, too.
  """
  written = json.loads((folder / '_METADATA').read_text())
  base = str(folder) if paths.is_remote(folder) else folder.absolute().as_uri()
  spec = {
    'driver': 'zarr3' if written['use_zarr3'] else 'zarr',
    'kvstore': {'driver': 'ocdbt', 'base': f'{base}/'},
  }
  context = ts.Context(CONTEXT)

  def read(path: Any, wanted: Any) -> jax.Array:
    name = path_name(path)
    own = spec | {
      'kvstore': spec['kvstore'] | {'path': f'{name.replace("/", ".")}/'}
    }
    stored = ts.open(own, context=context, open=True, read=True).result()
    if stored.shape != wanted.shape:
      raise ValueError(
        f'{name} has the shape {list(stored.shape)}, expected '
        f'{list(wanted.shape)}'
      )
    if stored.dtype.numpy_dtype != wanted.dtype:
      stored = ts.cast(stored, ts.dtype(wanted.dtype))
    shards: dict[Any, np.ndarray] = {}  # devices may hold the same one

    def shard(index: tuple[slice, ...]) -> np.ndarray:
      bounds = tuple((each.start, each.stop) for each in index)
      if bounds not in shards:
        shards[bounds] = _read_part(stored, index)
      return shards[bounds]

    placed = jax.make_array_from_callback(wanted.shape, wanted.sharding, shard)
    _give_back()
    return placed

  return jax.tree_util.tree_map_with_path(read, abstract)


def _read_part(stored: ts.TensorStore, index: tuple[slice, ...]) -> np.ndarray:
  """Reads a part of an array, along the axis with the most chunks.

  TensorStore has all that it is asked for at once in memory, as it is on disk.
  """
  part = stored[index]
  read = empty_aligned(part.shape, stored.dtype.numpy_dtype)
  if not part.rank:
    read[...] = part.read().result()
    return read
  chunk = stored.chunk_layout.read_chunk.shape
  axis = max(range(part.rank), key=lambda i: part.shape[i] / chunk[i])
  first, end = part.domain[axis].inclusive_min, part.domain[axis].exclusive_max
  for start in range(first, end, chunk[axis]):
    stop = min(start + chunk[axis], end)
    at = ts.d[axis]
    piece = part[at[start:stop]][ts.d[:].translate_to[0]]
    into = ts.array(read)[at[start - first : stop - first]]
    into[ts.d[:].translate_to[0]].write(piece).result()
  return read


def empty_aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Returns an array without values that JAX can take over on a CPU."""
  size = int(np.prod(shape)) * np.dtype(dtype).itemsize
  whole = np.empty(size + ALIGNED, np.uint8)
  start = -whole.ctypes.data % ALIGNED
  return whole[start : start + size].view(dtype).reshape(shape)


def _give_back() -> None:
  """Returns what TensorStore's threads freed to the system.

  glibc would keep it for each thread, hundreds of megabytes in all.
  """
  if platform.libc_ver()[0] == 'glibc':
    ctypes.CDLL('libc.so.6').malloc_trim(0)
