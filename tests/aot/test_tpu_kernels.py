"""The attention kernels compile for TPUs, in the sizes that they are for."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from prm_jax.aot.compiler import compile_program, memory_of, open_topology
from prm_jax.models.tpu_attention import tree_attention

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None,
  reason="needs: pip install 'jax[tpu]'",
)

QWEN, SMOLLM2 = (1, 7, 128), (3, 3, 64)  # K of a device, R, H


@functools.cache
def a_chip(topology):
  return open_topology(topology)[0]


def lower(device, dtype, rows, length, heads, prefix):
  """Lowers attention and its gradient; `prefix` is its length, or 0."""
  K, R, H = heads

  def array(shape, dtype):
    placed = SingleDeviceSharding(device)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)

  narrow = array((rows, length, K, H), dtype)
  inputs = [array((rows, length, K, R, H), dtype), narrow, narrow]
  if prefix:
    inputs += [array((1, prefix, K, H), dtype)] * 2
  last = array((rows, length), jnp.int32)
  mask = array((1, prefix), jnp.bool_)

  def gradients(inputs, last, mask):
    def loss(inputs):
      query, key, value, *kv = inputs
      shared = (*kv, mask) if kv else None
      out = tree_attention(query, key, value, last, shared)
      return out.astype(jnp.float32).sum()

    return jax.grad(loss)(inputs)

  return (
    jax.jit(gradients)
    .trace(inputs, last, mask)
    .lower(lowering_platforms=('tpu',))
  )


@pytest.mark.parametrize('topology', ['v5e:2x2', 'v5p:2x2x1', 'v6e:2x2'])
@pytest.mark.parametrize(
  ('dtype', 'rows', 'length', 'heads', 'prefix'),
  [
    ('bfloat16', 2, 4096, QWEN, 0),
    ('bfloat16', 2, 1024, SMOLLM2, 500),
    ('bfloat16', 1, 32_768, QWEN, 0),
    ('float32', 2, 1024, SMOLLM2, 0),
  ],
  ids=['7B', 'prefix', 'long', 'float32'],
)
def test_the_kernels_compile(topology, dtype, rows, length, heads, prefix):
  lowered = lower(a_chip(topology), dtype, rows, length, heads, prefix)
  assert lowered.as_text().count('tpu_custom_call') == 3
  compiled, lines = compile_program(lowered)
  assert compiled is not None, lines
  # Scores stay on the chip: those of all heads would take four times as much.
  scores = 4 * rows * length**2 * heads[0] * heads[1]
  assert memory_of(compiled)['temporaries'] < scores / 4
