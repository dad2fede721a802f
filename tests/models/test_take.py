"""Sums of vectors by place, as GPUs add them up, and what takes from places."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import (
  HeadConfig,
  TransformerConfig,
  decode,
  forward,
  init_cache,
  init_head,
  init_params,
  step_logits,
  token_terms,
  unstack_layers,
)
from prm_jax.models.prefix_store import Pool, put
from prm_jax.models.take import add_at, in_order, take_tokens
from tests.models.some_platform import as_on


def test_a_place_has_the_sum_of_its_vectors():
  places = jnp.array([2, 0, 2, 5, -1, 2, 4])
  vectors = jnp.arange(1.0, 8.0)[:, None] * jnp.array([1.0, 10.0])
  # 2 has the first, third and sixth; 5 and -1 are beyond the four places.
  expected = np.zeros((4, 2))
  expected[0] = [2.0, 20.0]
  expected[2] = [1.0 + 3.0 + 6.0, 100.0]
  for add in (add_at, in_order):
    np.testing.assert_array_equal(add(4, places, vectors), expected)


@pytest.mark.slow
@pytest.mark.parametrize('count', [1, 2, 63, 400])
def test_places_in_order_have_the_sums_of_a_matrix_product(count):
  rng = np.random.default_rng(count)
  places = rng.integers(-2, 12, count)
  vectors = rng.normal(size=(count, 3)).astype(np.float32)
  own = np.arange(10)[:, None] == places
  found = jax.jit(in_order, static_argnums=0)(10, places, vectors)
  np.testing.assert_allclose(found, own @ vectors, rtol=0, atol=1e-5)
  rows = jax.vmap(lambda *x: in_order(10, *x))(
    np.stack([places, places[::-1]]), np.stack([vectors, vectors[::-1]])
  )
  np.testing.assert_allclose(rows[0], found, rtol=0, atol=1e-5)
  np.testing.assert_allclose(rows[1], found, rtol=0, atol=1e-5)


def test_gradients_of_taken_tokens_meet_where_tokens_are_taken_twice():
  x = jnp.arange(24.0).reshape(2, 4, 3)
  tokens = jnp.array([[1, 1, 3], [0, 2, 0]])
  weights = jnp.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])

  def total(x: jax.Array) -> jax.Array:
    return (take_tokens(x, tokens).sum(-1) * weights).sum()

  expected = [[0.0, 3.0, 0.0, 4.0], [40.0, 0.0, 16.0, 0.0]]
  found = jax.grad(total)(x)
  assert found.shape == x.shape
  for k in range(3):
    np.testing.assert_array_equal(found[..., k], expected)


def scatters(jaxpr):
  """Finds everything in a program that is scattered to places."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name.startswith('scatter'):
      yield eqn
    for value in jax.tree.leaves([*eqn.params.values()]):
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        yield from scatters(inner)


MODEL = TransformerConfig(
  **{'vocab_size': 50, 'd_model': 16, 'n_layers': 2, 'n_heads': 2},
  **{'n_kv_heads': 1, 'd_ff': 32, 'head_dim': 8},
)


def loss(params, tokens):
  """Reads a row's words, and a head at the ends of some steps."""
  B, T = tokens.shape
  positions = jnp.tile(jnp.arange(T), (B, 1))
  last = jnp.full((B, T), T - 1)
  hidden = forward(params['backbone'], MODEL, tokens, positions, last)
  terms = token_terms(
    *(params['backbone'], MODEL, hidden, tokens, positions - 1, positions > 3)
  )
  ends = jnp.tile(jnp.arange(2, T, 3), (B, 1))
  return terms.logprobs.sum() + step_logits(params['head'], hidden, ends).sum()


@pytest.mark.slow  # one operation after the other, for the same rounding
def test_no_gradient_on_a_gpu_scatters_to_places_that_may_be_equal():
  """XLA would sort all numbers by their place, which takes longer than all."""
  params = {
    'backbone': init_params(jax.random.key(0), MODEL),
    'head': init_head(jax.random.key(1), 16, HeadConfig('logit')),
  }
  tokens = jax.random.randint(jax.random.key(2), (3, 12), 0, 50)
  expected = jax.grad(loss)(params, tokens)
  with as_on('gpu'):
    program = jax.make_jaxpr(jax.grad(loss))(params, tokens)
    found = jax.grad(loss)(params, tokens)
  places = [eqn.params['unique_indices'] for eqn in scatters(program.jaxpr)]
  assert len(places) >= 6 and all(places)
  chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_cache_is_written_to_places_that_differ():
  params = init_params(jax.random.key(0), MODEL)
  params = unstack_layers(params, MODEL)
  row = jnp.arange(4)[None]
  program = jax.make_jaxpr(decode, static_argnums=1)(
    params, MODEL, row, row, init_cache(MODEL, 1, 8)
  )
  places = [eqn.params['unique_indices'] for eqn in scatters(program.jaxpr)]
  assert len(places) == 2 * MODEL.n_layers and all(places)


def test_a_pool_is_written_to_places_that_differ():
  pool = Pool(jnp.zeros((5, 2, 1, 3)), jnp.zeros((5, 2, 1, 3)))
  slots = jnp.array([3, 9, 0, 9])
  new = jnp.arange(1.0, 25.0).reshape(2, 4, 1, 3)
  found = put(pool, slots, new, -new)
  expected = np.zeros((5, 2, 1, 3))
  expected[3], expected[0] = new[:, 0], new[:, 2]
  np.testing.assert_array_equal(found.keys, expected)
  np.testing.assert_array_equal(found.values, -expected)
  program = jax.make_jaxpr(put)(pool, slots, new, new)
  places = [eqn.params['unique_indices'] for eqn in scatters(program.jaxpr)]
  assert places == [True, True]
