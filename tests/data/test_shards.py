"""Tests that any number of processes reads the same batches, and resumes."""

import asyncio
import collections

import numpy as np
import pytest

from prm_jax.data.shards import Share, share_of_rows
from prm_jax.runtime import seals
from prm_jax.runtime.errors import UserError
from tests.data.packed_chains import (
  CHAINS,
  TREES,
  assert_equal,
  batches_of,
  problems_in,
)


def batches_of_shards(*own, shards=4, chains=CHAINS, **changes):
  """Returns the batches of a process that reads these shards."""
  return batches_of(chains, Share(shards, own, own), **changes)


@pytest.mark.parametrize(
  'processes', [[(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0,), (1,), (2,), (3,)]]
)
def test_processes_share_an_epoch(processes):
  parts = [list(batches_of_shards(*own)) for own in processes]
  for own, part in zip(processes, parts, strict=True):
    assert {len(batch['tokens']) for batch in part[:-1]} == {len(own)}
  once = problems_in(batches_of(CHAINS))
  assert set(once.values()) == {1}
  assert sum(map(problems_in, parts), collections.Counter()) == once
  # The same holds for later epochs, which have another order.
  later = [problems_in(batches_of_shards(*own, epochs=3)) for own in processes]
  assert set(sum(later, collections.Counter()).values()) == {3}


def endless(*own, chains=CHAINS):
  return iter(batches_of_shards(*own, chains=chains, epochs=None, batch_size=8))


@pytest.mark.slow
@pytest.mark.parametrize('chains', [CHAINS, TREES], ids=['flat', 'trees'])
def test_any_number_of_processes_reads_the_same_batches(chains):
  """Joins the parts of two and of four processes to the whole batch."""
  streams = [
    endless(*own, chains=chains)
    for own in ((0, 1, 2, 3), (0, 1), (2, 3), (0,), (1,), (2,), (3,))
  ]
  for _ in range(30):
    whole, *parts = map(next, streams)
    for run in (parts[:2], parts[2:]):
      joined = {
        name: np.concatenate([part[name] for part in run]) for name in whole
      }
      assert_equal(joined, whole)


class Created:
  """Stands for the folder that Orbax creates in the background."""

  def __init__(self, folder):
    self.folder = folder

  async def await_creation(self):
    return self.folder


@pytest.fixture
def position(tmp_path):
  """Returns a folder for the position in a checkpoint that has a seal."""
  for name in (seals.FOLDER, 'position'):
    (tmp_path / name).mkdir()
  return tmp_path / 'position'


async def await_both(awaitable):
  await (await awaitable)


def save(iterator, folder):
  asyncio.run(await_both(iterator.save(Created(folder))))


def load(iterator, folder):
  asyncio.run(await_both(iterator.load(folder)))


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_processes(position):
  """Saves from two processes; one and four processes read the next batch."""
  pair = endless(0, 1), endless(2, 3)
  for part in pair:
    for _ in range(9):
      next(part)
    save(part, position)
  assert sorted(path.name for path in position.iterdir()) == [
    f'shard_{i}-of-4.json' for i in range(4)
  ]
  whole, quarter = endless(0, 1, 2, 3), endless(2)
  for part in (whole, quarter):
    load(part, position)
  expected = np.concatenate([next(part)['tokens'] for part in pair])
  np.testing.assert_array_equal(next(whole)['tokens'], expected)
  np.testing.assert_array_equal(next(quarter)['tokens'], expected[4:6])
  halves = iter(batches_of_shards(0, 1, shards=2))
  with pytest.raises(UserError, match=r'in 4 shards, now they are in 2; start'):
    load(halves, position)


@pytest.mark.parametrize('consumed', [0, 7, 70])
@pytest.mark.parametrize('chains', [CHAINS, TREES], ids=['flat', 'trees'])
def test_a_restored_iterator_gives_the_same_next_batches(
  position, consumed, chains
):
  """Restores within the first packing bins and past their end."""
  iterator, fresh = (
    iter(batches_of(chains, batch_size=2, epochs=None)) for _ in range(2)
  )
  for _ in range(consumed):
    next(iterator)
  save(iterator, position)
  expected = [next(iterator) for _ in range(5)]
  load(fresh, position)
  for batch in expected:
    assert_equal(next(fresh), batch)
  # An iterator that has moved on returns to the position, too.
  load(iterator, position)
  assert_equal(next(iterator), expected[0])


ROWS = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}


@pytest.mark.parametrize(
  ('rows', 'shards', 'process', 'expected'),
  [
    (ROWS, 0, 0, Share(2, (0,), (0,))),
    (ROWS, 0, 1, Share(2, (1,), (1,))),
    (ROWS, 8, 1, Share(8, (4, 5, 6, 7), (4, 5, 6, 7))),
    # The order of the mesh is not that of the processes.
    ({0: {0, 1, 6, 7}, 1: {2, 3, 4, 5}}, 4, 0, Share(4, (0, 3), (0, 3))),
    # Processes 0 and 1 are a tensor-parallel group, and so are 2 and 3.
    (ROWS | {2: ROWS[1], 1: ROWS[0], 3: ROWS[1]}, 0, 1, Share(2, (0,), ())),
    (ROWS | {2: ROWS[1], 1: ROWS[0], 3: ROWS[1]}, 0, 2, Share(2, (1,), (1,))),
  ],
)
def test_a_process_reads_the_rows_of_its_devices(
  rows, shards, process, expected
):
  assert share_of_rows(rows, process, 8, shards) == expected


@pytest.mark.parametrize(
  ('rows', 'shards', 'message'),
  [
    (ROWS, 3, 'data.shards=3 .* the 8 rows .* one of 2, 4, 8, or to 0: 2'),
    (ROWS, -1, 'data.shards=-1 does not divide'),
    (ROWS, 1, 'data.shards=1 .* set it to one of 2, 4, 8, or to 0: 2'),
    ({0: {*range(5)}, 1: {5, 6, 7}}, 4, 'data.shards=4 .* set it to one of 8'),
  ],
)
def test_impossible_numbers_of_shards_are_rejected(rows, shards, message):
  with pytest.raises(UserError, match=message):
    share_of_rows(rows, 0, 8, shards)
