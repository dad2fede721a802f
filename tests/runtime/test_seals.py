"""Sums of arrays are those of their words; any bit that changes is found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.runtime.array_reader import word_sum
from prm_jax.runtime.seals import array_sums, seal, unseal
from prm_jax.runtime.sharding import make_mesh

DTYPES = ('float32', 'bfloat16', 'int32', 'uint32', 'int8', 'bool', 'float16')


def test_a_sum_worked_by_hand():
  words = np.array([1, 2**31, 2**31 + 5], np.uint32)
  assert word_sum(words) == 6  # 2^32 + 6, modulo 2^32
  assert word_sum(np.float32(1.0)) == 0x3F800000
  assert word_sum(np.array([0x0102, 0xFFFF], np.uint16)) == 0x0102 + 0xFFFF


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape', [(), (0,), (3, 5), (8, 4)])
def test_devices_sum_as_the_host_does(dtype, shape):
  values = np.random.default_rng(0).normal(size=shape) * 100
  array = jnp.asarray(values).astype(dtype)
  assert array_sums({'a': {'b': array}}) == {'a/b': word_sum(np.asarray(array))}


def test_an_array_on_a_mesh_has_the_same_sum():
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  array = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
  there = jax.device_put(array, NamedSharding(mesh, P('fsdp', 'model')))
  assert array_sums({'a': there}) == {'a': word_sum(array)}


@given(
  data=st.binary(min_size=4, max_size=64),
  at=st.integers(0, 2**16),
  draw=st.data(),
)
def test_any_byte_that_changes_changes_the_sum(data, at, draw):
  before = np.frombuffer(data[: len(data) // 4 * 4], np.uint8).copy()
  after = before.copy()
  after[at % after.size] ^= draw.draw(st.integers(1, 255))
  for kind in (np.uint8, np.uint16, np.float32):
    assert word_sum(before.view(kind)) != word_sum(after.view(kind))


@given(position=st.integers(0, 2**16), bit=st.integers(0, 7))
def test_any_bit_of_a_sealed_text_that_changes_is_found(
  tmp_path_factory, position, bit
):
  path = tmp_path_factory.mktemp('sealed') / 'a.json'
  content = {'position': 1234, 'of': ['x', 0.1, None]}
  path.write_text(seal(content))
  assert unseal(path) == content
  data = bytearray(path.read_bytes())
  data[position % len(data)] ^= 1 << bit
  path.write_bytes(bytes(data))
  with pytest.raises(ValueError, match=r'^a\.json is not what was written$'):
    unseal(path)
