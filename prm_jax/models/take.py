"""Takes vectors from places, and adds up the gradients of those places."""

import operator

import jax
import jax.numpy as jnp

from prm_jax.runtime.sharding import platform


@jax.custom_vjp
def take_tokens(x: jax.Array, tokens: jax.Array) -> jax.Array:
  """Takes tokens of each row: [B, T, ...] and [B, P] -> [B, P, ...]."""
  return jax.vmap(operator.getitem)(x, tokens)


def _take_forward(
  x: jax.Array, tokens: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return take_tokens(x, tokens), (x[:0], tokens)  # its shape is kept alone


def _take_backward(
  saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, None]:
  (_, size, *rest), tokens = saved[0].shape, saved[1]
  vectors = grad.reshape(*tokens.shape, -1)
  sums = jax.vmap(lambda at, given: add_at(size, at, given))(tokens, vectors)
  return sums.reshape(-1, size, *rest), None


take_tokens.defvjp(_take_forward, _take_backward)


def add_at(
  size: int,
  places: jax.Array,  # [N] int32, from 0 to `size` - 1; others count nowhere
  vectors: jax.Array,  # [N, D]
) -> jax.Array:  # [size, D]
  """Returns the sum of each place's vectors, with the same bits each time.

  To have the same bits on a GPU, XLA sorts all N x D numbers by their place.
  There `in_order` sorts the N places alone.
  """
  if platform() == 'gpu':
    return in_order(size, places, vectors)
  places = jnp.where(places < 0, size, places)  # -1 would be the last
  zeros = jnp.zeros((size, vectors.shape[1]), vectors.dtype)
  return zeros.at[places].add(vectors, mode='drop')


def in_order(size: int, places: jax.Array, vectors: jax.Array) -> jax.Array:
  """Does what `add_at` does by adding neighbours up in the order of places."""
  order = jnp.argsort(places, stable=True)
  places, vectors = places[order], vectors[order]
  changes = places[1:] != places[:-1]
  first, last = jnp.append(True, changes), jnp.append(changes, True)

  def join(
    left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, jax.Array]:
    (begun, before), (begins, here) = left, right
    return begun | begins, jnp.where(begins[:, None], here, before + here)

  _, sums = jax.lax.associative_scan(join, (first, vectors))
  # Each place is written once; the other sums go beyond the end, each to a
  # place of its own.
  inside = last & (places >= 0) & (places < size)
  beyond = size + jnp.arange(len(places), dtype=places.dtype)
  zeros = jnp.zeros((size, vectors.shape[1]), vectors.dtype)
  return zeros.at[jnp.where(inside, places, beyond)].set(
    sums, mode='drop', unique_indices=True
  )
