"""The decoder compared with plain NumPy in float64, and its invariances."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import (
  decode,
  extend,
  forward,
  init_cache,
  lm_logits,
  prefill,
  unstack_layers,
)
from prm_jax.models.attention import apply_rope
from tests.models.plain_transformer import (
  CHAINS,
  CONFIG,
  VARIANTS,
  alone,
  forward_in_numpy,
  packed_rows,
  params_of,
  run,
  some_tokens,
)
from tests.shared.packed import last_of

prefill_jit = jax.jit(prefill, static_argnums=1)
decode_jit = jax.jit(decode, static_argnums=1)


@pytest.mark.parametrize('variant', VARIANTS)
def test_forward_is_the_plain_implementation(variant):
  config = VARIANTS[variant]
  params = params_of(config)
  inputs = packed_rows()
  actual = run(params, config, *inputs)
  expected = forward_in_numpy(params, config, *inputs)
  assert np.abs(expected).max() > 1
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('unroll', [1, CONFIG.n_layers])
@pytest.mark.parametrize('remat', ['none', 'full'])
def test_states_of_some_tokens_are_those_of_all(unroll, remat):
  """With their gradients, and with the keys and values of all tokens."""
  config = dataclasses.replace(CONFIG, scan_unroll=unroll, remat=remat)
  params = params_of(config)
  inputs = *packed_rows(), None
  read = jnp.array([[3, 3, 0], [13, 5, 1], [0, 2, 7]])

  def all_states(params):
    hidden, *kv = extend(params, config, *inputs)
    return jnp.stack([hidden[b, read[b]] for b in range(3)]), *kv

  def some_states(params):
    return extend(params, config, *inputs, read)

  # The gradient sees states, keys and values.
  results = [
    jax.jit(
      jax.value_and_grad(lambda p, f=f: sum(map(jnp.sum, map(jnp.sin, f(p)))))
    )(params)
    for f in (all_states, some_states)
  ]
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
  jax.tree.map(close, *results)
  jax.tree.map(close, all_states(params), some_states(params))


def test_an_unrolled_last_layer_computes_only_what_is_read():
  """Its output projection and MLP see 1 of 14 tokens."""
  config = dataclasses.replace(CONFIG, scan_unroll=CONFIG.n_layers)
  inputs = packed_rows()
  read = jnp.zeros((len(inputs[0]), 1), jnp.int32)

  def count(read):
    compiled = (
      jax.jit(lambda params: forward(params, config, *inputs, read=read))
      .lower(params_of(config))
      .compile()
    )
    return compiled.cost_analysis()['flops']

  c, tokens = config, inputs[0].size - read.size
  spared = c.n_heads * c.head_dim * c.d_model + 3 * c.d_model * c.d_ff
  assert count(None) - count(read) > 2 * tokens * spared


@pytest.mark.parametrize('variant', ['base', 'untied'])
def test_next_token_logits(variant):
  config = VARIANTS[variant]
  params = params_of(config)
  hidden = np.random.default_rng(2).normal(size=(2, 3, config.d_model))
  table = params['lm_head' if variant == 'untied' else 'embed_tokens']
  assert ('lm_head' in params) == (variant == 'untied')
  actual = lm_logits(params, config, jnp.asarray(hidden, jnp.float32))
  expected = hidden @ np.asarray(table, np.float64).T
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_rope_by_hand():
  # H = 4, theta = 100: pairs (0, 2) and (1, 3) turn by p and by p / 10.
  x = jnp.array([1.0, 0.0, 0.0, 2.0]).reshape(1, 1, 1, 4)
  turned = apply_rope(x, jnp.array([[3]]), 100.0)[0, 0, 0]
  expected = [np.cos(3), -2 * np.sin(0.3), np.sin(3), 2 * np.cos(0.3)]
  np.testing.assert_allclose(turned, expected, atol=1e-6)


def test_only_relative_positions_matter():
  tokens, positions, last = packed_rows()
  params = params_of(CONFIG)
  np.testing.assert_allclose(
    run(params, CONFIG, tokens, positions + 7, last),
    run(params, CONFIG, tokens, positions, last),
    atol=2e-5,
  )


def test_packed_equals_unpacked():
  tokens, positions, last = packed_rows()
  params = params_of(CONFIG)
  packed = run(params, CONFIG, tokens, positions, last)
  for b, s in ((0, 1), (0, 2), (1, 1), (1, 2), (2, 1)):
    inside = CHAINS[b] == s
    single = run(params, CONFIG, *alone(tokens[b, inside][None]))
    np.testing.assert_allclose(packed[b, inside], single[0], atol=1e-5)


def test_padding_changes_nothing():
  """Its tokens change no bit; its length only the order of sums."""
  tokens, positions, last = packed_rows()
  params = params_of(CONFIG)
  real = CHAINS > 0
  expected = np.asarray(run(params, CONFIG, tokens, positions, last))
  other = np.where(real, tokens, some_tokens(tokens.shape, 9))
  assert (other != tokens).any()
  actual = np.asarray(run(params, CONFIG, other, positions, last))
  np.testing.assert_array_equal(actual[real], expected[real])
  longer = [np.pad(x, ((0, 2), (0, 6))) for x in (tokens, positions)]
  actual = run(
    params, CONFIG, *longer, last_of(np.pad(CHAINS, ((0, 2), (0, 6))))
  )
  assert np.isfinite(np.asarray(actual)).all()
  np.testing.assert_allclose(actual[:3, :14][real], expected[real], atol=1e-5)


def test_later_tokens_never_change_earlier_states():
  """Not even a bit, because a masked weight is exactly 0."""
  tokens, positions, last = alone(some_tokens((3, 14)))
  params = params_of(CONFIG)
  before = np.asarray(run(params, CONFIG, tokens, positions, last))
  for t in (1, 6, 13):
    changed = tokens.copy()
    changed[:, t:] = (changed[:, t:] + 1) % CONFIG.vocab_size
    after = np.asarray(run(params, CONFIG, changed, positions, last))
    np.testing.assert_array_equal(after[:, :t], before[:, :t])
    assert (after[:, t:] != before[:, t:]).all(-1).all()


# Three prompts of unequal length, padded; two rows share each.
LENGTHS = np.array([4, 7, 1])
PROMPT_MASK = np.arange(8) < LENGTHS[:, None]


def run_with_prefix(prompts, rows, positions, last):
  config = VARIANTS['bias']
  params = params_of(config)
  prefix = prefill_jit(params, config, prompts, PROMPT_MASK)
  return run(params, config, rows, positions, last, prefix)


def row_positions(rows):
  """Positions of rows that continue their prompts."""
  starts = np.repeat(LENGTHS, 2)[:, None]
  return (starts + np.arange(rows.shape[1])).astype(np.int32)


def test_a_prefix_and_its_rows_equal_whole_rows():
  config = VARIANTS['bias']
  params = params_of(config)
  prompts, rows = some_tokens((3, 8), 3), some_tokens((6, 5), 4)
  actual = run_with_prefix(
    prompts, rows, row_positions(rows), np.full_like(rows, 4)
  )
  for b, row in enumerate(rows):
    length = LENGTHS[b // 2]
    whole = alone(np.concatenate([prompts[b // 2, :length], row])[None])
    expected = forward_in_numpy(params, config, *whole)[0, length:]
    np.testing.assert_allclose(actual[b], expected, rtol=0, atol=1e-5)
  # The longest prompt also equals our own forward of the whole row.
  whole = np.concatenate([prompts[1:2, :7], rows[2:3]], axis=1)
  expected = run(params, config, *alone(whole))[0, 7:]
  np.testing.assert_allclose(actual[2], expected, rtol=0, atol=1e-5)


def test_padding_of_a_prefix_changes_nothing():
  prompts, rows = some_tokens((3, 8), 5), some_tokens((6, 5), 6)
  other = np.where(PROMPT_MASK, prompts, some_tokens((3, 8), 7))
  assert (other != prompts).any()
  rest = (rows, row_positions(rows), np.full_like(rows, 4))
  np.testing.assert_array_equal(
    run_with_prefix(prompts, *rest), run_with_prefix(other, *rest)
  )


def test_packed_candidates_share_a_prefix():
  """Two candidates in one row see the prompt, and not each other."""
  config = VARIANTS['bias']
  params = params_of(config)
  prompts, rows = some_tokens((3, 8), 8), some_tokens((6, 5), 9)
  positions = row_positions(rows)
  positions[:, 3:] -= 3
  last = np.broadcast_to(np.int32([2, 2, 2, 4, 4]), (6, 5))
  actual = run_with_prefix(prompts, rows, positions, last)
  for b, part in itertools.product(range(6), (slice(0, 3), slice(3, 5))):
    length = LENGTHS[b // 2]
    whole = np.concatenate([prompts[b // 2, :length], rows[b, part]])[None]
    expected = forward_in_numpy(params, config, *alone(whole))[0, length:]
    np.testing.assert_allclose(actual[b, part], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('chunks', [(14,), (1,) * 14, (5, 1, 1, 7)])
def test_cached_decoding_equals_the_whole_forward(variant, chunks):
  """At once, token by token, and mixed; the cache is longer than the rows."""
  config = VARIANTS[variant]
  params = params_of(config)
  tokens, positions, last = alone(some_tokens((3, 14), 11))
  expected = forward_in_numpy(params, config, tokens, positions, last)
  cache = init_cache(config, 3, 17)
  unstacked = unstack_layers(params, config)
  start = 0
  for size in chunks:
    now = slice(start, start + size)
    hidden, cache = decode_jit(
      unstacked, config, tokens[:, now], positions[:, now], cache
    )
    np.testing.assert_allclose(hidden, expected[:, now], rtol=0, atol=1e-5)
    start += size


def test_rows_of_a_cache_continue_or_start_again():
  """Rows have their own lengths, and one starts over on old entries."""
  params = params_of(CONFIG)
  tokens, positions, last = alone(some_tokens((2, 9), 12))
  expected = forward_in_numpy(params, CONFIG, tokens, positions, last)
  cache = init_cache(CONFIG, 2, 9)
  params = unstack_layers(params, CONFIG)
  _, cache = decode_jit(params, CONFIG, tokens[:, :6], positions[:, :6], cache)
  # Row 0 continues at 6, row 1 starts again with its own first tokens.
  mixed = np.stack([tokens[0, 6:], tokens[1, :3]])
  at = np.stack([positions[0, 6:], positions[1, :3]])
  hidden, _ = decode_jit(params, CONFIG, mixed, at, cache)
  np.testing.assert_allclose(hidden[0], expected[0, 6:], rtol=0, atol=1e-5)
  np.testing.assert_allclose(hidden[1], expected[1, :3], rtol=0, atol=1e-5)
