"""Detects checkpoints that were damaged on disk.

    arrays on devices -> array_sums -> Seal, saved in the checkpoint
    checkpoint on disk -> find_damage -> '' or what is damaged
    checkpoints of a run -> go_back_to_whole -> the damaged are set aside

Neither Orbax nor the file system notices a bit that changed in an array. So a
checkpoint stores the sum of the words of each array, which any single changed
bit changes. Text files are sealed by a checksum of their own.
"""

import asyncio
import contextlib
import errno
import itertools
import json
import os
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from prm_jax.runtime import paths, processes
from prm_jax.runtime.array_reader import check_arrays
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import path_name

FOLDER, FILE = 'seal', 'sums.json'
# What TensorStore and the system say where a file may be whole.
PASSING = (
  *('UNAVAILABLE', 'DEADLINE_EXCEEDED', 'PERMISSION_DENIED', 'ABORTED'),
  *('UNAUTHENTICATED', 'RESOURCE_EXHAUSTED', 'CANCELLED'),
)
SYSTEM = (
  *(errno.EIO, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE),
  *(errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT),
)


def seal(content: Any) -> str:
  """Writes JSON with a checksum of itself."""
  text = json.dumps(content)
  return json.dumps({'crc32': zlib.crc32(text.encode()), 'content': text})


def unseal(path: paths.Path) -> Any:
  """Reads what `seal` wrote.

  Raises:
    ValueError: it is not what was written.
  """
  try:
    read = json.loads(path.read_text())
    if zlib.crc32(read['content'].encode()) == read['crc32']:
      return json.loads(read['content'])
  except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
    pass  # as below
  raise ValueError(f'{path.name} is not what was written')


class Seal:
  """Saves sums of arrays and the metrics, by Orbax's StatefulCheckpointable.

  Args:
    trees: the trees of the checkpoint, by name.
    has_position: whether the position of an input iterator is beside them.
    metrics: those that choose the best checkpoint.
  """

  def __init__(
    self,
    trees: Mapping[str, Any],
    has_position: bool,
    metrics: dict[str, float] | None,
  ) -> None:
    arrays = {name: array_sums(tree) for name, tree in trees.items()}
    self._text = seal(
      {'arrays': arrays, 'has_position': has_position, 'metrics': metrics}
    )

  async def save(self, directory: Any) -> Awaitable[None]:
    """Returns an awaitable that writes the file, in process 0."""

    async def write() -> None:
      folder = await directory.await_creation()
      if processes.is_first():
        await asyncio.to_thread((folder / FILE).write_text, self._text)

    return write()

  async def load(self, directory: Any) -> Awaitable[None]:
    """Must be there for Orbax's protocol; `read_seal` reads a seal."""
    raise NotImplementedError


def array_sums(tree: Any) -> dict[str, int]:
  """Returns the `word_sum` (array_reader.py) of each array of a tree.

  Its arrays are on the devices of one mesh, which need not be the current one.
  """
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  shardings = (leaf.sharding for _, leaf in leaves)
  meshes = (it.mesh for it in shardings if isinstance(it, NamedSharding))
  mesh = next(meshes, None)
  with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
    sums = {path_name(path): sum_words(leaf) for path, leaf in leaves}
  # All are computed before the first is waited for.
  return {name: int(value) for name, value in sums.items()}


@jax.jit
def sum_words(array: jax.Array) -> jax.Array:
  """Returns the `word_sum` of an array, sharded or not."""
  if array.dtype == bool:
    array = array.astype(jnp.uint8)
  kind = {1: jnp.uint8, 2: jnp.uint16}.get(array.dtype.itemsize, jnp.uint32)
  words = jax.lax.bitcast_convert_type(array, kind)
  return jnp.sum(words, dtype=jnp.uint32)


def read_sums(folder: paths.Path, tree: str) -> dict[str, int]:
  """Returns the sums of one tree of a checkpoint, by path.

  A checkpoint of an earlier version has none.

  Raises:
    ValueError: the seal is damaged, or missing.
  """
  return read_seal(folder)['arrays'][tree] if is_sealed(folder) else {}


def is_sealed(folder: paths.Path) -> bool:
  """Says whether a checkpoint was saved with a seal, even if it is now lost."""
  if (folder / FOLDER).exists():
    return True
  about = folder / '_CHECKPOINT_METADATA'
  return about.exists() and b'"seal"' in about.read_bytes()


def read_seal(folder: paths.Path) -> dict[str, Any]:
  """Reads the seal of a checkpoint that has one."""
  path = folder / FOLDER / FILE
  if not path.exists():
    raise ValueError('its seal is missing')
  return unseal(path)


def go_back_to_whole(directory: paths.Path, log: Callable[[str], None]) -> None:
  """Sets the latest checkpoint aside while it is damaged.

  All processes of a job call this before they open the checkpoints. It moves a
  folder out of the way and deletes nothing.

  Args:
    directory: the folder of the checkpoints, which need not exist.

  Raises:
    UserError: no checkpoint is whole, or they are not on a disk.
  """
  steps = _saved_steps(directory)
  # It also waits for all: nobody may still look when process 0 goes on.
  processes.check_same(
    'the saved checkpoints',
    str(steps),
    'wait until the file system shows the same to all, and start them again',
  )
  for step, before in itertools.pairwise([*steps, None]):
    folder = directory / str(step)
    damage = find_damage(folder)
    if not damage:
      return
    what = f'checkpoint {folder} is damaged ({damage})'
    if before is None:
      raise UserError(
        f'{what}, and there is no whole one; delete that folder to begin anew'
      )
    if paths.is_remote(folder):
      raise UserError(
        f'{what}; delete that folder to go on from the one before it'
      )
    aside = _free_path(directory.parent / f'damaged_{step}')
    processes.first_alone('damaged', folder.rename, aside)
    log(f'{what}; it is {aside} now, and the one before it is read')


def _saved_steps(directory: paths.Path) -> list[int]:
  """Returns the steps whose checkpoint was saved to its end, the last first."""
  if not directory.exists():
    return []
  done = (
    path
    for path in directory.iterdir()
    if path.name.isdigit()
    and (not paths.is_remote(path) or (path / 'commit_success.txt').exists())
  )
  return sorted((int(path.name) for path in done), reverse=True)


def _free_path(path: paths.Path) -> paths.Path:
  """Returns the path, or the first with a number behind it that is free."""
  numbered = (path.with_name(f'{path.name}_{i}') for i in itertools.count(2))
  return next(
    each for each in itertools.chain([path], numbered) if not each.exists()
  )


def find_damage(folder: paths.Path) -> str:
  """Returns what of a checkpoint is damaged, for an error; '' if nothing is.

  Each of several processes reads a part of it. A checkpoint of an earlier
  version has no seal, and is taken as it is.

  Raises:
    UserError: in all processes, if one cannot read it, for a reason that says
      nothing about the checkpoint: a disk that fails, too many open files.
  """
  damage, failure = '', ''
  try:
    _check_own_part(folder)
  except Exception as error:  # TensorStore raises many kinds
    if processes.is_loss(error):
      raise
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    if _is_damage(error):
      damage = text
    else:
      failure = f'{type(error).__name__}: {text}'
  found = processes.exchange('damage', json.dumps([damage, failure]))
  damages, failures = zip(*map(json.loads, found), strict=True)
  if why := next(filter(None, failures), ''):
    raise UserError(
      f'checkpoint {folder} cannot be read ({why}); see to that, and run the '
      'same command again'
    )
  return next(filter(None, damages), '')


def _is_damage(error: Exception) -> bool:
  """Says whether an error is about what is in a file, or that it is missing."""
  if isinstance(error, FileNotFoundError | NotADirectoryError):
    return True
  text = str(error)
  return (
    isinstance(error, ValueError | LookupError | TypeError)
    and not any(status in text for status in PASSING)
    and not any(os.strerror(number) in text for number in SYSTEM)
  )


def _check_own_part(folder: paths.Path) -> None:
  """Raises what is wrong with the part of a checkpoint that is ours to read."""
  if not is_sealed(folder):
    return
  sealed = read_seal(folder)
  if _read_metrics(folder) != sealed['metrics']:
    raise ValueError('its metrics are not what was written')
  _check_positions(folder / 'data', sealed['has_position'])
  for tree, sums in sealed['arrays'].items():
    names = sorted(sums)[processes.index() :: processes.count()]
    try:
      check_arrays(folder / tree, {name: sums[name] for name in names})
    except ValueError as error:
      raise ValueError(f'{tree}: {error}') from error


def _check_positions(folder: paths.Path, has_position: bool) -> None:
  """Raises ValueError unless the position of each shard is there and whole."""
  there = sorted(folder.glob('*.json')) if folder.exists() else []
  if has_position and not there:
    raise ValueError('the position of the input is missing')
  shards = [path for path in there if path.name.startswith('shard_')]
  for path in shards:
    unseal(path)
    count = path.stem.rpartition('-of-')[2]
    if count != str(len(shards)):
      raise ValueError('the position of a part of the input is missing')


def _read_metrics(folder: paths.Path) -> Any:
  """Returns the metrics as Orbax wrote them; None for none."""
  path = folder / 'metrics' / 'metrics'
  try:
    return json.loads(path.read_text()) if path.exists() else None
  except ValueError:
    return 'damaged'


def read_position(path: paths.Path) -> Any:
  """Reads the position of an input, which an earlier version did not seal.

  Raises:
    ValueError: it is not what was written.
  """
  if is_sealed(path.parents[1]):
    return unseal(path)
  return json.loads(path.read_text())
