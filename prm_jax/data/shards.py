"""Divides the rows of a batch between processes and saves reading positions.

    chains -> shard 0, 1, .. S-1, each packed on its own -> rows in shard order

A batch has the same rows in the same order however many processes read it: each
process reads the shards whose rows its devices hold. The checkpoint keeps the
position of every shard in a file of its own, so a run can continue with another
number of processes.
"""

import asyncio
import dataclasses
import pathlib
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

import grain
import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax.runtime.errors import UserError
from prm_jax.runtime.seals import read_position, seal
from prm_jax.runtime.sharding import batch_sharding


@dataclasses.dataclass(frozen=True)
class Share:
  """Says which shards one process reads.

  Attributes:
    shards: number of shards that the chains are split into.
    own: indices of the shards that this process reads, ascending.
    saved: indices of the shards whose position this process saves. Processes
      of one tensor-parallel group read the same rows; the first one saves.
  """

  shards: int = 1
  own: tuple[int, ...] = (0,)
  saved: tuple[int, ...] = (0,)


def share_of_process(mesh: Mesh, batch_size: int, shards: int) -> Share:
  """Returns the shards whose rows the devices of this process hold.

  Args:
    batch_size: number of rows over all processes.
    shards: number of shards; 0 takes the smallest that is possible.

  Raises:
    UserError: the rows cannot be divided into this number of shards so that
      each shard lies on one process.
  """
  return share_of_rows(
    rows_of_processes(mesh, batch_size), jax.process_index(), batch_size, shards
  )


def rows_of_processes(mesh: Mesh, batch_size: int) -> dict[int, set[int]]:
  """Returns the rows of a batch that each process's devices hold.

  The rows need not be in the order of the processes, because a mesh follows the
  wires between chips. Processes of one tensor-parallel group hold the same
  rows.
  """
  rows: dict[int, set[int]] = {}
  held = batch_sharding(mesh).devices_indices_map((batch_size,))
  for device, (part,) in held.items():
    here = rows.setdefault(device.process_index, set())
    here.update(range(*part.indices(batch_size)))
  return rows


def share_of_rows(
  rows: Mapping[int, set[int]], process: int, batch_size: int, shards: int
) -> Share:
  """Returns the share of one process, given the rows of every process.

  Args:
    rows: the rows of each process, as `rows_of_processes` returns them.

  Raises:
    UserError: as for `share_of_process`.
  """
  possible = [
    count
    for count in range(1, batch_size + 1)
    if _is_possible(rows, batch_size, count)
  ]
  if shards and shards not in possible:
    raise UserError(
      f'data.shards={shards} does not divide the {batch_size} rows of '
      f'data.batch_size so that each is read by one process; set it to one of '
      f'{", ".join(map(str, possible))}, or to 0: {possible[0]}'
    )
  count = shards or possible[0]
  length = batch_size // count
  own = {row // length for row in rows[process]}
  saved_before = {
    row // length for p, part in rows.items() if p < process for row in part
  }
  return Share(count, tuple(sorted(own)), tuple(sorted(own - saved_before)))


def _is_possible(
  rows: Mapping[int, set[int]], batch_size: int, count: int
) -> bool:
  """Says whether every process holds all rows of a shard or none of them."""
  length = batch_size // count
  return batch_size % count == 0 and all(
    len({row // length for row in part}) * length == len(part)
    for part in rows.values()
  )


class ShardedBatches:
  """Joins the batches of a process's shards into the batches of the process.

  A batch is an array, or arrays by name.

  Args:
    datasets: the batches of each shard in `share.own`.
    share: the shards that the process reads.
  """

  def __init__(self, datasets: list[grain.IterDataset], share: Share) -> None:
    self._datasets, self._share = datasets, share

  def __iter__(self) -> 'ShardIterator':
    return ShardIterator([iter(d) for d in self._datasets], self._share)


class ShardIterator(Iterator[Any]):
  """Iterates over batches; its position is saved by Orbax.

  `save` and `load` are Orbax's StatefulCheckpointable protocol.
  """

  def __init__(self, parts: list[grain.DatasetIterator], share: Share) -> None:
    self._parts = dict(zip(share.own, parts, strict=True))
    self._share = share

  def __next__(self) -> Any:
    # Near the end of an epoch one shard may end before another.
    batches = [next(part, None) for part in self._parts.values()]
    batches = [batch for batch in batches if batch is not None]
    if not batches:
      raise StopIteration
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)

  def _file(self, directory: Any, shard: int) -> pathlib.Path:
    return directory / f'shard_{shard}-of-{self._share.shards}.json'

  async def save(self, directory: Any) -> Awaitable[None]:
    """Reads the position now; the returned awaitable writes it."""
    texts = {
      shard: seal(self._parts[shard].get_state()) for shard in self._share.saved
    }

    async def write() -> None:
      folder = await directory.await_creation()
      for shard, text in texts.items():
        await asyncio.to_thread(self._file(folder, shard).write_text, text)

    return write()

  async def load(self, directory: Any) -> Awaitable[None]:
    """Returns an awaitable that moves to the position saved in `directory`.

    Raises:
      UserError: the position was saved with another number of shards.
    """

    async def read() -> None:
      saved = sorted(path.name for path in directory.glob('shard_*-of-*.json'))
      counts = {name[:-5].rpartition('-of-')[2] for name in saved}
      if counts - {str(self._share.shards)}:
        raise UserError(
          f'this checkpoint was saved with the chains in {counts.pop()} '
          f'shards, now they are in {self._share.shards}; start as many '
          'processes as before (their number may change only if data.shards '
          'is set)'
        )
      for shard, part in self._parts.items():
        file = self._file(directory, shard)
        if not file.exists():  # RL of an earlier version had one name
          file = directory / 'process_0-of-1.json'
        part.set_state(read_position(file))

    return read()
