"""Tests drawing of tokens: filters, distributions and limits of slots."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.inference import sampler
from prm_jax.inference.sampler import SamplingConfig, Slots
from prm_jax.runtime.errors import UserError
from tests.shared.tiny_sampling import FILTERS, STOPS, filter_by_sorting


def some_logits(rows, V):
  """With equal ones and impossible ones among them."""
  rng = np.random.default_rng(V)
  logits = rng.normal(size=(rows, V), scale=3).round(1).astype(np.float32)
  logits[0, : V // 2] = -np.inf
  logits[1] = 0.0
  logits[1, ::2] = -0.0
  return logits


@pytest.mark.parametrize('V', [7, 110, 1000])
@pytest.mark.parametrize('name', FILTERS)
def test_filters_keep_the_same_tokens_as_sorting(name, V):
  sampling, logits = FILTERS[name], some_logits(6, V)
  least = sampler.least_logit(logits / sampling.temperature, sampling)
  kept = logits / sampling.temperature >= least
  for row, mask in zip(logits.astype(np.float64), kept, strict=True):
    expected = filter_by_sorting(row, sampling) > 0
    np.testing.assert_array_equal(mask & np.isfinite(row), expected)


def test_thresholds_are_exact():
  """Includes negative numbers, zeros of both signs, and ties."""
  x = jnp.array([[-5.0, 3.0, -0.0, 0.0, 3.0, -0.25, 0.25, -jnp.inf]])
  ones = jnp.ones_like(x)
  found = [
    float(sampler.threshold(x, ones, jnp.float32(k))[0, 0]) for k in range(1, 9)
  ]
  assert found == [3.0, 3.0, 0.25, 0.0, 0.0, -0.25, -5.0, -np.inf]


def draws_of(logits, sampling, count):
  keys = jax.random.bits(jax.random.key(0), (count, 2))
  rows = jnp.broadcast_to(jnp.asarray(logits), (count, len(logits)))
  draw = jax.jit(sampler.draw, static_argnums=3)
  return np.asarray(draw(rows, keys, jnp.arange(count) % 7, sampling))


@pytest.mark.parametrize('V', [2, 16, 17, 110])
def test_tokens_are_drawn_by_their_probability(V):
  """V is a square, one more than a square, or another number."""
  logits = some_logits(3, V)[2]
  probs = filter_by_sorting(logits.astype(np.float64), SamplingConfig())
  count = 40_000
  found = np.bincount(draws_of(logits, SamplingConfig(), count), minlength=V)
  # Five standard deviations, and one count for what is hardly ever drawn.
  allowed = 5 * np.sqrt(count * probs * (1 - probs)) + 1
  assert (np.abs(found - count * probs) < allowed).all()


def test_impossible_tokens_are_never_drawn():
  logits = np.full(1000, -np.inf, np.float32)
  logits[[3, 500, 999]] = [0.0, 1.0, -1.0]
  found = set(draws_of(logits, SamplingConfig(), 5000).tolist())
  assert found == {3, 500, 999}


def test_temperature_zero_takes_the_most_likely_token():
  logits = some_logits(6, 110)
  sampling = SamplingConfig(temperature=0)
  token = sampler.draw(logits, None, None, sampling)
  np.testing.assert_array_equal(token, logits.argmax(-1))


def test_a_draw_depends_on_its_own_key_and_position_only():
  logits = some_logits(8, 110)[2:]
  keys = np.asarray(jax.random.bits(jax.random.key(0), (6, 2)))
  at = np.arange(6)
  draw = jax.jit(sampler.draw, static_argnums=3)
  together = np.asarray(draw(logits, keys, at, SamplingConfig()))
  order = np.array([3, 1, 5])
  some = draw(logits[order], keys[order], at[order], SamplingConfig())
  np.testing.assert_array_equal(some, together[order])
  moved = [
    np.asarray(draw(logits, keys, at + n, SamplingConfig())) for n in range(9)
  ]
  assert len({tuple(row) for row in moved}) > 6


def test_a_slot_stops_at_every_limit():
  sep, end = STOPS
  rows = {
    # token before, token now, tokens left, steps left -> tokens, steps left
    'goes on': (7, 8, 5, 2, 4, 2),
    'a step ends': (7, sep, 5, 2, 4, 1),
    'the last step': (7, sep, 5, 1, 0, 0),
    'an empty step': (sep, sep, 5, 2, 0, 1),
    'an empty first step': (end, sep, 5, 2, 0, 1),
    'the chain ends': (sep, end, 5, 2, 0, 2),
    'the last token': (7, 8, 1, 2, 0, 2),
    'free already': (7, sep, 0, 2, 0, 2),
  }
  before, now, tokens, steps, *expected = (
    jnp.array(column) for column in zip(*rows.values(), strict=True)
  )
  slots = Slots(before, 10 + before, tokens, steps, jnp.zeros((8, 2)))
  after = sampler.advance(slots, now, STOPS)
  np.testing.assert_array_equal(after.tokens_left, expected[0])
  np.testing.assert_array_equal(after.steps_left, expected[1])
  np.testing.assert_array_equal(
    after.position - slots.position, [1, 1, 1, 1, 1, 1, 1, 0]
  )


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('temperature', -0.1),
    ('temperature', float('nan')),
    ('temperature', float('inf')),
    ('temperature', 1e-38),
    ('top_k', -1),
    ('top_p', 0.0),
    ('top_p', 1.1),
    ('min_p', 1.0),
    ('slots', 0),
    ('max_tokens', 0),
  ],
)
def test_a_bad_value_is_named(name, value):
  with pytest.raises(UserError, match=rf'^{name}={value}: expected'):
    dataclasses.replace(SamplingConfig(), **{name: value})
