"""The TPU kernels, interpreted, compared with attention written out.

Compiling them needs no TPU either: tests/aot/test_tpu_kernels.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.data import tries
from prm_jax.models.attention import attend_at_once
from prm_jax.models.tpu_attention import block_sizes, tree_attention
from prm_jax.models.tpu_kernels import make_visits

T, H = 384, 64  # a row has three blocks by three


def random_rows(rows, seed):
  """Returns `last` and what is no padding, of rows of two trees each."""
  rng = np.random.default_rng(seed)
  last, real = np.tile(np.arange(T, dtype=np.int32), (rows, 1)), []
  for b in range(rows):
    chains = []
    for _ in range(2):
      trunk = rng.integers(1, 9, rng.integers(20, 90))
      chains += [
        np.int32([*trunk[: rng.integers(5, 20)], *rng.integers(1, 9, n)])
        for n in rng.integers(10, 50, 3)
      ]
    trie = tries.build(chains)
    last[b, : len(trie.last)] = trie.last
    real.append(np.arange(T) < len(trie.last))
  return jnp.asarray(last), jnp.asarray(np.stack(real))


def some_inputs(rows, K, R, prefix, seed=0):
  """Returns query, key and value, a prefix's keys and values, and a gradient.

  Args:
    prefix: groups and length of the prefix; the groups may be 0.
  """
  rng = np.random.default_rng(seed)
  wide, narrow = (rows, T, K, R, H), (rows, T, K, H)
  shapes = [wide, narrow, narrow]
  if prefix[0]:
    shapes += [(*prefix, K, H)] * 2
  made = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]
  grad = jnp.asarray(rng.normal(size=wide), jnp.float32)
  return [made[0] * H**-0.5, *made[1:]], grad


def values_and_gradients(attend, inputs, grad, last, real, mask):
  """Returns the result at real tokens, and the gradients of all inputs."""

  @jax.jit
  def both(inputs, grad):
    def masked(query, key, value, *kv):
      prefix = (*kv, mask) if kv else None
      out = attend(query, key, value, last, prefix)
      return jnp.where(real[..., None, None, None], out, 0)

    out, back = jax.vjp(masked, *inputs)
    return out, *back(grad)

  return both(inputs, grad)


@pytest.mark.parametrize(
  ('rows', 'K', 'R', 'prefix'),
  [
    (1, 1, 2, (0, 0)),
    (2, 2, 1, (0, 0)),
    (2, 1, 2, (1, 150)),
    (4, 1, 1, (2, 40)),
  ],
  ids=['shared heads', 'two heads', 'prefix', 'two prefixes'],
)
def test_the_kernels_equal_attention_written_out(rows, K, R, prefix):
  last, real = random_rows(rows, seed=rows)
  inputs, grad = some_inputs(rows, K, R, prefix)
  mask = np.arange(prefix[1]) < prefix[1] - np.arange(prefix[0])[:, None] * 7
  given = inputs, grad, last, real, jnp.asarray(mask)
  interpreted = functools.partial(tree_attention, interpret=True)
  ours = values_and_gradients(interpreted, *given)
  exact = values_and_gradients(attend_at_once, *given)
  for a, b in zip(ours, exact, strict=True):
    assert jnp.abs(b).max() > 0.1
    np.testing.assert_allclose(a, b, atol=3e-5)


def test_bfloat16_scores_and_softmax_are_float32():
  """The error is no larger than rounding of inputs, weights and result."""
  last, real = random_rows(1, seed=5)
  inputs, grad = some_inputs(1, 1, 2, (0, 0))
  half = [x.astype(jnp.bfloat16) for x in (*inputs, grad)]
  interpreted = functools.partial(tree_attention, interpret=True)
  ours = values_and_gradients(
    interpreted, half[:-1], half[-1], last, real, None
  )
  exact = [x.astype(jnp.float32) for x in half]
  theirs = values_and_gradients(
    attend_at_once, exact[:-1], exact[-1], last, real, None
  )
  for a, b in zip(ours, theirs, strict=True):
    assert a.dtype == jnp.bfloat16
    error = jnp.abs(a.astype(jnp.float32) - b)
    # 8 bits: three roundings of half a unit each in what is summed.
    assert error.max() < 3 * 2.0**-8 * jnp.abs(b).max()


def test_blocks_that_nobody_sees_are_not_visited():
  """A value of infinity there would make the result NaN."""
  chains = [np.int32([1] * 256), np.int32([1] * 10 + [2] * 100)]
  trie = tries.build(chains)
  last = np.arange(T, dtype=np.int32)
  last[: len(trie.last)] = trie.last
  (query, key, value), _ = some_inputs(1, 1, 1, (0, 0))
  spoilt = value.at[:, 128:256].set(jnp.inf)
  out = tree_attention(query, key, spoilt, jnp.asarray(last[None]), None, True)
  # The second chain begins with the third block, and sees ten tokens before it.
  assert jnp.isfinite(out[0, 256:356]).all()
  assert not jnp.isfinite(out[0, 128:256]).any()


@pytest.mark.parametrize('seed', range(20))
def test_visits_are_sorted_and_split_between_blocks(seed):
  rng = np.random.default_rng(seed)
  own, other = (rng.integers(0, 6, 40) for _ in range(2))
  visible = rng.random(40) < 0.5
  visible[0] = True
  visits = make_visits(*map(jnp.asarray, (own, other, visible)))
  count = visible.sum()
  expected = sorted(zip(own[visible], other[visible], strict=True))
  pairs = np.asarray(visits.pairs[:count])
  assert [(p >> 16, p & 0xFFFF) for p in pairs] == expected
  (first, first_end), (second, second_end) = np.asarray(visits.parts).reshape(
    2, 2
  )
  assert first == 0 and second_end == count
  if second:  # two parts, each with whole blocks
    assert first_end == second
    assert pairs[second - 1] >> 16 != pairs[second] >> 16
  else:  # one block: both cores compute it
    assert first_end == count and len(set(own[visible])) == 1


@pytest.mark.parametrize('length', [128, 384, 1024, 4096, 32_768])
@pytest.mark.parametrize('group', [1, 3, 7, 16])
@pytest.mark.parametrize('prefix', [0, 100, 5000])
def test_blocks_divide_rows_and_fit_the_memory(length, group, prefix):
  queries, keys = block_sizes(length, group, prefix)
  assert length % queries == length % keys == 0
  assert queries % 128 == keys % 128 == 0
  # Scores, weights and their gradients in float32: three of 16 MiB.
  assert 3 * 4 * group * queries * keys <= 8 * 2**20
