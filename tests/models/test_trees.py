"""A row of trees computes what its chains compute alone.

Random trees: chains branch, repeat, are prefixes of others, and several trees
share a row with padding.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data import tries
from prm_jax.models import (
  Rows,
  TransformerConfig,
  forward,
  init_params,
  prefill,
  step_likelihood,
  token_logprobs,
)
from prm_jax.models.attention import attend_at_once, fused_on_gpu
from prm_jax.models.packed_attention import BLOCK, packed_attention

MODEL = TransformerConfig(31, 32, 2, 4, 2, 48)
T = 48  # tokens in a row
LONG = 2 * BLOCK + 40
WAYS = {
  'at once': attend_at_once,
  'blocks': packed_attention,
  'fused': functools.partial(fused_on_gpu, implementation='xla'),
}


@st.composite
def chains_of(draw, most=20):
  """Draws chains that begin as earlier ones do, up to a random token."""
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  chains = []
  for _ in range(draw(st.integers(1, 5))):
    kept = []
    if chains and rng.random() < 0.8:
      other = chains[rng.integers(len(chains))]
      kept = other[: rng.integers(len(other) + 1)].tolist()
    new = rng.integers(1, 4, rng.integers(not kept, most + 1 - len(kept)))
    chains.append(np.int32([*kept, *new]))
  return chains


def lay_out(chains, length=T):
  """Returns the arrays [1, length] of a row of the chains' trie, and it."""
  trie = tries.build(chains)
  n, at = len(trie.tokens), np.arange(length, dtype=np.int32)
  fill = length - n

  def after(x, value):
    return jnp.asarray(np.pad(x, (0, fill), constant_values=value)[None])

  last = jnp.asarray(np.concatenate([trie.last, at[n:]])[None])
  return (
    after(trie.tokens, 0),
    after(trie.depths, -1),
    last,
    after(trie.parents, -1),
  ), trie


@functools.cache
def params():
  return init_params(jax.random.key(0), MODEL)


run = jax.jit(forward, static_argnums=1)


def alone(chain, length=20):
  """Returns the hidden states of a chain in a row of its own."""
  tokens = np.zeros((1, length), np.int32)
  tokens[0, : len(chain)] = chain
  positions = np.arange(length, dtype=np.int32)[None]
  last = np.full((1, length), length - 1, np.int32)
  return np.asarray(run(params(), MODEL, tokens, positions, last))[0]


@settings(deadline=None, max_examples=30)
@given(chains_of(most=9))
def test_each_chain_of_a_tree_has_the_states_that_it_has_alone(chains):
  (tokens, positions, last, _), trie = lay_out(chains)
  hidden = np.asarray(run(params(), MODEL, tokens, positions, last))[0]
  assert np.isfinite(hidden).all()
  for chain, path in zip(chains, trie.paths, strict=True):
    np.testing.assert_allclose(
      hidden[path], alone(chain)[: len(chain)], atol=2e-5
    )


def long_tree(seed):
  """Returns chains of a tree that branches inside and between blocks."""
  rng = np.random.default_rng(seed)
  trunk = rng.integers(1, 30, 100)
  first = np.r_[trunk, rng.integers(1, 30, 60)]
  second = np.r_[first[:130], rng.integers(1, 30, 40)]
  third = np.r_[trunk[:20], rng.integers(1, 30, 30)]
  return [np.int32(x) for x in (first, second, third, rng.integers(1, 30, 20))]


def random_heads(seed, length, K=2, R=2, H=8):
  keys = jax.random.split(jax.random.key(seed), 4)
  wide, narrow = (1, length, K, R, H), (1, length, K, H)
  shapes = wide, narrow, narrow, wide
  return [
    jax.random.normal(key, s) for key, s in zip(keys, shapes, strict=True)
  ]


def closed_form(query, key, value, trie, prefix):
  """Attends chain by chain; a token's result is that of any of its chains."""
  out = jnp.zeros(query.shape)
  for path in trie.paths:
    q, k, v = query[0, path], key[0, path], value[0, path]
    visible = jnp.tril(jnp.ones((len(path), len(path)), bool))
    if prefix is not None:
      keys, values, mask = (x[0] for x in prefix)
      k, v = jnp.concatenate([keys, k]), jnp.concatenate([values, v])
      seen = jnp.broadcast_to(mask, (len(path), len(mask)))
      visible = jnp.concatenate([seen, visible], 1)
    scores = jnp.einsum('tkrh,ukh->krtu', q, k)
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf))
    out = out.at[0, path].set(jnp.einsum('krtu,ukh->tkrh', weights, v))
  return out


@pytest.mark.parametrize('with_prefix', [False, True])
@pytest.mark.parametrize('way', WAYS)
def test_every_way_equals_the_closed_form(way, with_prefix):
  (_, positions, last, _), trie = lay_out(long_tree(0), LONG)
  *inputs, grad = random_heads(1, LONG)
  real = (positions >= 0)[..., None, None, None]
  prefix = None
  if with_prefix:
    _, keys, values, _ = random_heads(2, 6)
    prefix = keys, values, jnp.arange(6)[None] < 5

  def values_and_gradients(attend):
    @jax.jit
    def both(*inputs):
      out, back = jax.vjp(lambda *x: jnp.where(real, attend(*x), 0.0), *inputs)
      return out, *back(grad)

    return both(*inputs)

  ours = values_and_gradients(lambda *x: WAYS[way](*x, last, prefix))
  exact = values_and_gradients(lambda *x: closed_form(*x, trie, prefix))
  assert jnp.abs(exact[1]).max() > 0.1
  for a, b in zip(ours, exact, strict=True):
    np.testing.assert_allclose(a, b, atol=3e-5)


def test_blocks_that_nobody_sees_are_not_visited():
  """A value of infinity there would make the result NaN."""
  chains = [np.int32([1] * 2 * BLOCK), np.int32([1] * 10 + [2] * 100)]
  (_, _, last, _), _ = lay_out(chains, 3 * BLOCK)
  query, key, value, _ = random_heads(3, 3 * BLOCK)
  # The second chain begins with the third block, and sees the first ten tokens.
  spoilt = value.at[:, BLOCK : 2 * BLOCK].set(jnp.inf)
  out = packed_attention(query, key, spoilt, last, None)[0]
  assert jnp.isfinite(out[2 * BLOCK : 2 * BLOCK + 100]).all()
  assert not jnp.isfinite(out[BLOCK : 2 * BLOCK]).any()


@settings(deadline=None, max_examples=20)
@given(chains_of(most=9))
def test_a_prefix_before_a_tree(chains):
  (tokens, positions, last, _), trie = lay_out(chains)
  prompt = np.int32([[5, 6, 7, 0]])
  mask = np.arange(4)[None] < 3
  prefix = jax.jit(prefill, static_argnums=1)(params(), MODEL, prompt, mask)
  hidden = run(params(), MODEL, tokens, positions + 3, last, prefix)[0]
  for chain, path in zip(chains, trie.paths, strict=True):
    whole = alone(np.r_[prompt[0, :3], chain])
    expected = whole[3 : 3 + len(chain)]
    np.testing.assert_allclose(hidden[path], expected, atol=2e-5)


@jax.jit
def lm_losses(params, tokens, positions, last, parents):
  hidden = forward(params, MODEL, tokens, positions, last)
  return -token_logprobs(params, MODEL, hidden, tokens, parents, parents >= 0)


def summed_loss(params, arrays, weights):
  return (weights * lm_losses(params, *arrays)).sum()


slope = jax.jit(jax.value_and_grad(summed_loss))


@settings(deadline=None, max_examples=15)
@given(chains_of(most=12))
def test_the_lm_loss_and_its_gradient_are_those_of_the_chains(chains):
  arrays, trie = lay_out(chains)
  weights = np.zeros((1, T), np.float32)
  weights[0, : len(trie.tokens)] = trie.counts * (trie.parents >= 0)
  loss, gradient = slope(params(), arrays, weights)
  total, sums = 0.0, jax.tree.map(jnp.zeros_like, params())
  for chain in chains:
    own, flat = lay_out([chain])
    counted = np.zeros((1, T), np.float32)
    counted[0, 1 : len(flat.tokens)] = 1
    value, more = slope(params(), own, counted)
    total += value
    sums = jax.tree.map(jnp.add, sums, more)
  np.testing.assert_allclose(loss, total, rtol=1e-5)
  size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(sums))
  for a, b in zip(
    jax.tree.leaves(gradient), jax.tree.leaves(sums), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=1e-5 * size)


@settings(deadline=None, max_examples=15)
@given(chains_of(most=12), st.integers(0, 2**31))
def test_tokens_of_a_step_are_those_of_its_chain(chains, seed):
  """A step may branch inside: its tokens are on the way to its own end."""
  rng = np.random.default_rng(seed)
  (tokens, positions, last, parents), trie = lay_out(chains)
  n = len(trie.tokens)
  kinds = np.zeros((1, T), np.int8)
  kinds[0, :n] = rng.integers(0, 3, n) * (trie.parents >= 0)
  ends, begins = np.zeros((2, 1, len(chains)), np.int32)
  for c, path in enumerate(trie.paths):
    at = rng.integers(len(path))
    ends[0, c], begins[0, c] = path[at], rng.integers(at + 1)
  rows = Rows(tokens, positions, last, parents, kinds, ends, begins)
  hidden = run(params(), MODEL, tokens, positions, last)
  found = np.asarray(step_likelihood(params(), MODEL, hidden, rows))
  logs = -np.asarray(lm_losses(params(), tokens, positions, last, parents))[0]
  for c, path in enumerate(trie.paths):
    depth = int(np.flatnonzero(path == ends[0, c])[0])
    own = path[begins[0, c] : depth + 1]
    expected = [logs[own[kinds[0, own] == kind]].sum() for kind in (1, 2)]
    np.testing.assert_allclose(found[0, c], expected, atol=2e-5)
