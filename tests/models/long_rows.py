"""Makes inputs of attention with rows longer than a block, and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.models.packed_attention import BLOCK
from tests.shared.packed import last_of

B, G, N, K, H, S = 4, 2, 4, 2, 6, 9
T = 2 * BLOCK + 44  # two whole blocks and a part of one
PREFIX_MASK = np.arange(S) < np.array([[9], [4]])


def arrays(*shapes, seed=0):
  rng = np.random.default_rng(seed)
  return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


def some_inputs():
  """Returns query, key and value; keys and values of the prefix."""
  return arrays(
    (B, T, N, H), (B, T, K, H), (B, T, K, H), (G, S, K, H), (G, S, K, H)
  )


def some_last():
  """Returns `last` of `some_segments`."""
  return last_of(some_segments())


def some_segments():
  """Returns segments that begin and end inside blocks; one spans all three."""
  segment_ids = np.ones((B, T), np.int32)
  segment_ids[1, 50:] = 2
  segment_ids[1, 290:] = 0
  segment_ids[2, 128:] = 2
  segment_ids[2, 200:] = 3
  segment_ids[3, 5:] = 0
  return segment_ids


@functools.partial(jax.jit, static_argnums=(0, 1))
def value_and_gradients(attend, with_prefix, inputs):
  """Returns the result of attention and the gradients of all its inputs."""

  def loss(inputs):
    query, key, value, *prefix = inputs
    prefix = (*prefix, PREFIX_MASK) if with_prefix else None
    segment_ids = some_segments()
    out = attend(query, key, value, last_of(segment_ids), prefix)
    # The result at padding has no meaning.
    out = jnp.where((segment_ids > 0)[:, :, None, None], out, 0.0)
    return jnp.sin(out).sum(), out

  (_, out), gradients = jax.value_and_grad(loss, has_aux=True)(inputs)
  return out, gradients
