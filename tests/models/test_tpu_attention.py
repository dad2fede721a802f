"""The TPU kernel, interpreted, compared with packed_attention."""

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.models.packed_attention import packed_attention
from prm_jax.models.tpu_attention import splash_attention
from tests.shared.packed import last_of

B, T, K, R, H = 1, 384, 1, 2, 64  # three blocks by three of the kernel


def some_inputs():
  rng = np.random.default_rng(0)
  shapes = (B, T, K, R, H), (B, T, K, H), (B, T, K, H)
  query, key, value = (
    jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes
  )
  segment_ids = np.ones((B, T), np.int32)
  segment_ids[0, 100:] = 2  # over two blocks
  segment_ids[0, 230:] = 3
  segment_ids[0, 300:] = 0
  return (query * H**-0.5, key, value), jnp.asarray(segment_ids)


def test_the_kernel_equals_packed_attention():
  inputs, segment_ids = some_inputs()
  last = last_of(segment_ids)

  def run(attend):
    def loss(inputs):
      out = attend(*inputs)
      out = jnp.where((segment_ids > 0)[..., None, None, None], out, 0.0)
      return jnp.sin(out).sum(), out

    (_, out), gradients = jax.value_and_grad(loss, has_aux=True)(inputs)
    return out, gradients

  out, gradients = run(lambda *x: splash_attention(*x, last, True))
  expected = run(lambda *x: packed_attention(*x, last, None))
  np.testing.assert_allclose(out, expected[0], atol=1e-5)
  for ours, theirs in zip(gradients, expected[1], strict=True):
    assert jnp.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
