"""Arrays are read chunk by chunk, whatever part of them a device holds."""

import json

import jax
import numpy as np
import pytest
import tensorstore as ts

from prm_jax.runtime.array_reader import (
  check_arrays,
  read_arrays,
  read_part,
  word_sum,
)
from prm_jax.runtime.sharding import make_mesh


@pytest.fixture
def stored(tmp_path):
  """A tree with one array of 10 x 7 in chunks of 4 x 3."""
  values = np.random.default_rng(0).normal(size=(10, 7)).astype(np.float32)
  spec = {
    'driver': 'zarr3',
    'kvstore': {
      'driver': 'ocdbt',
      'base': f'{tmp_path.as_uri()}/',
      'path': 'a.b/',
    },
    'metadata': {
      'chunk_grid': {
        'name': 'regular',
        'configuration': {'chunk_shape': [4, 3]},
      }
    },
  }
  array = ts.open(spec, create=True, dtype=values.dtype, shape=values.shape)
  array.result().write(values).result()
  (tmp_path / '_METADATA').write_text(json.dumps({'use_zarr3': True}))
  return tmp_path, array.result(), values


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_whole_array(stored, dtype):
  folder, _, values = stored
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  placed = jax.NamedSharding(mesh, jax.P())
  wanted = jax.ShapeDtypeStruct(values.shape, dtype, sharding=placed)
  sums = {'a/b': word_sum(values)}
  check_arrays(folder, sums)
  found = read_arrays(folder, {'a': {'b': wanted}}, sums)
  np.testing.assert_array_equal(found['a']['b'], values.astype(wanted.dtype))
  for read in (
    lambda: check_arrays(folder, {'a/b': sums['a/b'] + 1}),
    lambda: read_arrays(folder, {'a': {'b': wanted}}, {'a/b': sums['a/b'] + 1}),
  ):
    with pytest.raises(ValueError, match='a/b is not what was written'):
      read()


@pytest.mark.parametrize(
  'part', [np.s_[3:9, 2:7], np.s_[0:4, 3:6], np.s_[5:6, 0:7], np.s_[4:10, 6:7]]
)
def test_a_part_that_begins_and_ends_within_chunks(stored, part):
  _, array, values = stored
  into = np.zeros_like(values[part])
  assert read_part(array[part], into) % 2**32 == word_sum(values[part])
  np.testing.assert_array_equal(into, values[part])
