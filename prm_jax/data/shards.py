"""Which rows of a batch a process reads, and where its reading stands.

    chains -> shard 0, 1, .. S-1, each packed on its own -> rows in shard order

A batch is the same rows in the same order however many processes read it: a
process reads the shards whose rows its devices hold. The position of every
shard is a file of its own in the checkpoint, so another number of processes
can go on from there.
"""

import asyncio
import dataclasses
import json
import pathlib
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

import grain
import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import batch_sharding


@dataclasses.dataclass(frozen=True)
class Share:
  """What one process reads.

  Attributes:
    shards: how many the chains are split into.
    own: the numbers of those that are read here, ascending.
    saved: those whose position is saved here. Processes that are one in tensor
      parallelism read the same rows; the first of them saves.
  """

  shards: int = 1
  own: tuple[int, ...] = (0,)
  saved: tuple[int, ...] = (0,)


def share_of_process(mesh: Mesh, batch_size: int, shards: int) -> Share:
  """The shards whose rows the devices of this process hold.

  Args:
    batch_size: rows over all processes.
    shards: 0 makes as few as can be.

  Raises:
    UserError: the rows do not divide into so many shards, or a shard's rows
      are on several processes.
  """
  return share_of_rows(
    rows_of_processes(mesh, batch_size), jax.process_index(), batch_size, shards
  )


def rows_of_processes(mesh: Mesh, batch_size: int) -> dict[int, set[int]]:
  """Which rows of a batch each process's devices hold.

  Not in order, and not each once: a mesh follows the wires between chips, and
  processes that share tensor parallelism hold the same rows.
  """
  rows: dict[int, set[int]] = {}
  held = batch_sharding(mesh).devices_indices_map((batch_size,))
  for device, (part,) in held.items():
    here = rows.setdefault(device.process_index, set())
    here.update(range(*part.indices(batch_size)))
  return rows


def share_of_rows(
  rows: Mapping[int, set[int]], here: int, batch_size: int, shards: int
) -> Share:
  """`share_of_process` of process `here`, from the rows of every process."""
  fitting = [
    count
    for count in range(1, batch_size + 1)
    if _fits(rows, batch_size, count)
  ]
  if shards and shards not in fitting:
    raise UserError(
      f'data.shards={shards} does not divide the {batch_size} rows of '
      f'data.batch_size so that each is read by one process; set it to one of '
      f'{", ".join(map(str, fitting))}, or to 0: {fitting[0]}'
    )
  count = shards or fitting[0]
  length = batch_size // count
  own = {row // length for row in rows[here]}
  before = {
    row // length for p, part in rows.items() if p < here for row in part
  }
  return Share(count, tuple(sorted(own)), tuple(sorted(own - before)))


def _fits(rows: Mapping[int, set[int]], batch_size: int, count: int) -> bool:
  """Whether no shard's rows are partly on a process and partly not."""
  length = batch_size // count
  return batch_size % count == 0 and all(
    len({row // length for row in part}) * length == len(part)
    for part in rows.values()
  )


class ShardedBatches:
  """The batches of a process: the rows of its shards, in their order.

  Args:
    datasets: of batches, for every shard in `share.own`.
  """

  def __init__(self, datasets: list[grain.IterDataset], share: Share) -> None:
    self._datasets, self._share = datasets, share

  def __iter__(self) -> 'ShardIterator':
    return ShardIterator([iter(d) for d in self._datasets], self._share)


class ShardIterator(Iterator[dict[str, np.ndarray]]):
  """Next batches, and a position that Orbax saves (StatefulCheckpointable)."""

  def __init__(self, parts: list[grain.DatasetIterator], share: Share) -> None:
    self._parts = dict(zip(share.own, parts, strict=True))
    self._share = share

  def __next__(self) -> dict[str, np.ndarray]:
    # In the last batches of an epoch a shard may have ended before another.
    ended: dict[str, np.ndarray] = {}
    found = [next(part, ended) for part in self._parts.values()]
    found = [batch for batch in found if batch is not ended]
    if not found:
      raise StopIteration
    return {
      name: np.concatenate([batch[name] for batch in found])
      for name in found[0]
    }

  def get_state(self) -> dict[int, Any]:
    """The position in every shard that is read here."""
    return {shard: part.get_state() for shard, part in self._parts.items()}

  def set_state(self, state: Mapping[int, Any]) -> None:
    for shard, part in self._parts.items():
      part.set_state(state[shard])

  def _file(self, directory: Any, shard: int) -> pathlib.Path:
    return directory / f'shard_{shard}-of-{self._share.shards}.json'

  async def save(self, directory: Any) -> Awaitable[None]:
    """Takes the position now; the awaitable writes it."""
    texts = {
      shard: json.dumps(self._parts[shard].get_state())
      for shard in self._share.saved
    }

    async def write() -> None:
      folder = await directory.await_creation()
      for shard, text in texts.items():
        await asyncio.to_thread(self._file(folder, shard).write_text, text)

    return write()

  async def load(self, directory: Any) -> Awaitable[None]:
    """The awaitable moves to the position in `directory`.

    Raises:
      UserError: it was saved with another number of shards.
    """

    async def read() -> None:
      there = sorted(path.name for path in directory.glob('shard_*-of-*.json'))
      counts = {name[:-5].rpartition('-of-')[2] for name in there}
      if counts - {str(self._share.shards)}:
        raise UserError(
          f'the chains were read in {counts.pop()} shards up to this '
          f'checkpoint, now in {self._share.shards}; start as many processes '
          'as before (only with data.shards set may their number change)'
        )
      for shard, part in self._parts.items():
        part.set_state(json.loads(self._file(directory, shard).read_text()))

    return read()
