"""A census kept on disk: the same batches, its own key, and damage named."""

import dataclasses
import errno
import os

import numpy as np
import pytest

from prm_jax.data import census as census_lib
from prm_jax.data.pipeline import make_batches
from prm_jax.data.targets import TargetConfig
from prm_jax.runtime.errors import UserError
from tests.data.packed_chains import BATCHES, CHAINS, FORMAT, TARGETS

CONFIG = dataclasses.replace(BATCHES, epochs=2)


@pytest.fixture(scope='module')
def taken():
  return census_lib.take_census(CHAINS, FORMAT, TARGETS, CONFIG)


@pytest.fixture
def folder(taken, tmp_path):
  folder = tmp_path / 'encoded' / 'key'
  census_lib.save(taken, folder)
  return folder


def test_a_census_that_is_read_gives_the_same_batches(taken, folder):
  read = census_lib.read(folder)
  assert read.summary() == taken.summary()
  np.testing.assert_array_equal(read.usable, taken.usable)
  assert len(read.tries) == len(taken.tries) == len([*read.tries])
  pairs = zip(
    make_batches(read, CONFIG), make_batches(taken, CONFIG), strict=True
  )
  for ours, expected in pairs:
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
      np.testing.assert_array_equal(ours[name], value)


def test_the_second_of_two_writers_changes_nothing(taken, folder):
  before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
  census_lib.save(taken, folder)
  assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
  assert [path.name for path in folder.parent.iterdir()] == ['key']


def test_a_write_that_fails_leaves_nothing(taken, tmp_path, monkeypatch):
  def fail(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(OSError, match=f"No space left .*'{tmp_path}/key'"):
    census_lib.save(taken, tmp_path / 'key')
  assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
  'damage',
  [
    lambda folder: (folder / 'usable.npy').unlink(),
    lambda folder: (folder / 'stops.npy').write_bytes(b''),
    lambda folder: (folder / 'kinds.npy').write_bytes(b'\x93NUMPY'),
    lambda folder: (folder / 'about.json').write_text('{"steps": 3}'),
    lambda folder: (folder / 'about.json').write_text('[]'),
  ],
)
def test_damage_is_named(folder, damage):
  damage(folder)
  with pytest.raises(UserError, match=f'^{folder} cannot be read .*delete it'):
    census_lib.read(folder)


def test_no_pickle_is_opened(folder):
  np.save(folder / 'usable.npy', np.array([{}], object), allow_pickle=True)
  with pytest.raises(UserError, match='cannot be read'):
    census_lib.read(folder)


def test_the_key_changes_with_what_a_census_depends_on():
  def key(fmt=FORMAT, targets=TARGETS, config=CONFIG):
    return census_lib.key(fmt, targets, config)

  other = [
    key(dataclasses.replace(FORMAT, end=None)),
    key(dataclasses.replace(FORMAT, max_length=FORMAT.max_length - 1)),
    key(targets=TargetConfig('completion')),
    key(config=dataclasses.replace(CONFIG, trees=not CONFIG.trees)),
    key(config=dataclasses.replace(CONFIG, row_length=4096)),
  ]
  assert len({key(), *other}) == 6
  # The order and the size of batches do not change it.
  assert key(config=dataclasses.replace(CONFIG, seed=9, batch_size=1)) == key()
