"""Blockwise attention against plain softmax attention, with its gradients.

Rows here are longer than a block; those of test_transformer.py are shorter.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models.attention import attention
from prm_jax.models.layers import linear
from tests.models.long_rows import (
  B,
  G,
  H,
  K,
  N,
  S,
  T,
  arrays,
  some_inputs,
  some_last,
  value_and_gradients,
)
from tests.shared.command_line import run_module
from tests.shared.packed import last_of


def plain_attention(query, key, value, last, prefix):
  """All scores at once, the prefix copied to every row in front of its keys."""
  at = np.arange(T)
  visible = (at <= at[:, None]) & (at[:, None] <= last[:, None])
  if prefix is not None:
    keys, values, mask = (jnp.repeat(x, B // G, axis=0) for x in prefix)
    key = jnp.concatenate([keys, key], axis=1)
    value = jnp.concatenate([values, value], axis=1)
    mask = jnp.broadcast_to(mask[:, None], (B, T, S))
    visible = jnp.concatenate([mask, visible], axis=2)
  key, value = (jnp.repeat(x, N // K, axis=2) for x in (key, value))
  scores = jnp.einsum('BTNH,BUNH->BNTU', query, key) / H**0.5
  scores = jnp.where(visible[:, None], scores, -jnp.inf)
  return jnp.einsum('BNTU,BUNH->BTNH', jax.nn.softmax(scores), value)


@pytest.mark.parametrize('with_prefix', [False, True])
def test_blockwise_attention_equals_plain_attention(with_prefix):
  inputs = some_inputs()
  out, gradients = value_and_gradients(attention, with_prefix, inputs)
  expected = value_and_gradients(plain_attention, with_prefix, inputs)
  np.testing.assert_allclose(out, expected[0], atol=1e-5)
  for ours, theirs in zip(gradients, expected[1], strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    # The prefix has a gradient if and only if it is used.
    assert with_prefix == bool(jnp.abs(gradients[-1]).max() > 0.1)


def test_later_blocks_never_change_earlier_ones():
  query, key, value, *_ = some_inputs()
  attend = jax.jit(attention, static_argnames='prefix')
  before = attend(query, key, value, some_last(), prefix=None)
  for t in (127, 128, 299):
    changed = (x.at[:, t:].add(1.0) for x in (query, key, value))
    after = attend(*changed, some_last(), prefix=None)
    np.testing.assert_array_equal(after[:, :t], before[:, :t])
    assert (after[:, t:] != before[:, t:]).all()


@pytest.mark.slow
def test_eight_devices_attend_to_their_own_rows_and_heads():
  # REPLICA,FSDP,MODEL: the 2 key heads divide over the first mesh only.
  meshes = ('2,2,2', '1,2,4')
  results = run_module('tests.models.attention_on_devices', *meshes)
  for mesh in meshes:
    assert results[mesh]['difference'] < 1e-5
  assert results[meshes[0]]['collectives'] == []


def test_bfloat16_scores_and_softmax_are_float32():
  """The error is no larger than rounding of inputs, weights and result."""
  inputs = [x.astype(jnp.bfloat16) for x in some_inputs()]
  exact = [x.astype(jnp.float32) for x in inputs]
  out, gradients = value_and_gradients(attention, True, inputs)
  expected = value_and_gradients(plain_attention, True, exact)
  pairs = zip([out, *gradients], [expected[0], *expected[1]], strict=True)
  for ours, theirs in pairs:
    assert ours.dtype == jnp.bfloat16
    error = jnp.abs(ours.astype(jnp.float32) - theirs)
    # 8 bits: three roundings of half a unit each in what is summed.
    assert error.max() < 3 * 2.0**-8 * jnp.abs(theirs).max()


@pytest.mark.parametrize('rows', ['padding', 'one chain', 'many'])
def test_every_packing_is_finite_and_deterministic(rows):
  segment_ids = {
    'padding': np.zeros((B, T), np.int32),
    'one chain': np.ones((B, T), np.int32),
    'many': 1 + np.tile(np.arange(T, dtype=np.int32), (B, 1)),
  }[rows]
  query, key, value, *_ = some_inputs()
  attend = jax.jit(attention, static_argnames='prefix')
  out = attend(query, key, value, last_of(segment_ids), prefix=None)
  assert np.isfinite(np.asarray(out)).all()
  if rows == 'many':  # chains of one token, which sees only itself
    alone = jnp.repeat(value, N // K, axis=2)
    np.testing.assert_allclose(out, alone, rtol=1e-6)
  again = attend(query, key, value, last_of(segment_ids), prefix=None)
  np.testing.assert_array_equal(out, again)


@pytest.mark.parametrize(
  ('x', 'kernel', 'inputs', 'einsum'),
  [
    ((2, 3, 4), (4, 5), 1, 'abc,cd->abd'),
    ((2, 3, 4), (4, 5, 6), 1, 'abc,cde->abde'),
    ((2, 3, 4, 5), (4, 5, 6), 2, 'abcd,cde->abe'),
  ],
)
def test_a_linear_map_and_its_written_out_gradients(x, kernel, inputs, einsum):
  x, kernel = arrays(x, kernel)

  def loss(product):
    return lambda x, kernel: jnp.sin(product(x, kernel)).sum()

  ours = loss(lambda x, kernel: linear(x, kernel, inputs))
  theirs = loss(lambda x, kernel: jnp.einsum(einsum, x, kernel))
  actual, expected = (
    jax.value_and_grad(f, (0, 1))(x, kernel) for f in (ours, theirs)
  )
  np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
  for gradient, other in zip(actual[1], expected[1], strict=True):
    assert gradient.shape == other.shape
    np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-6)
