"""Tests aggregates by hand, packing by properties, and scores in parts."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.inference import score
from prm_jax.inference.score import (
  AGGREGATES,
  aggregate,
  bucket,
  pack_rows,
  row_bucket,
)
from prm_jax.models import (
  HeadConfig,
  TransformerConfig,
  forward,
  prefill,
  step_logits,
  step_probabilities,
)
from prm_jax.runtime.errors import UserError
from prm_jax.training.train_state import make_params

SCORES = np.array([[0.5, 0.25, 0.9, 0.1], [0.4, 0.8, 0.0, 0.7]], np.float32)
MASK = np.array([[True, True, True, False], [True, False, False, True]])


@pytest.mark.parametrize(
  ('how', 'expected'),
  [
    ('min', [0.25, 0.4]),
    ('max', [0.9, 0.7]),
    ('sum', [1.65, 1.1]),
    ('mean', [0.55, 0.55]),
    ('last', [0.9, 0.7]),
    ('prod', [math.log(0.1125), math.log(0.28)]),
  ],
)
@pytest.mark.parametrize('asarray', [np.asarray, jnp.asarray])
def test_aggregate_by_hand(how, expected, asarray):
  actual = aggregate(asarray(SCORES), MASK, how)
  assert actual.dtype == np.float32
  np.testing.assert_allclose(actual, expected, rtol=1e-6)
  # Any number of leading axes is allowed; masked scores are not read.
  np.testing.assert_allclose(
    aggregate(SCORES[0], MASK[0], how), expected[0], rtol=1e-6
  )
  np.testing.assert_allclose(
    aggregate(SCORES[:, None], MASK[:, None], how)[:, 0], expected, rtol=1e-6
  )
  garbage = np.where(MASK, SCORES, np.nan)
  np.testing.assert_array_equal(aggregate(garbage, MASK, how), actual)


@pytest.mark.parametrize('how', AGGREGATES)
def test_one_step_is_its_own_aggregate(how):
  actual = aggregate(np.array([0.3, 0.9]), np.array([True, False]), how)
  expected = math.log(0.3) if how == 'prod' else 0.3
  np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_the_product_of_a_long_chain_does_not_underflow():
  scores = np.full((2, 300), 0.3)
  scores[1, 7] = 0.29
  assert np.prod(scores.astype(np.float32), axis=1).tolist() == [0.0, 0.0]
  logs = aggregate(scores, np.ones((2, 300), bool), 'prod')
  expected = [300 * math.log(0.3), 299 * math.log(0.3) + math.log(0.29)]
  np.testing.assert_allclose(logs, expected, rtol=1e-6)
  assert logs[0] > logs[1]


def test_scores_of_exactly_0():
  scores = np.array([[0.0, 1.0], [0.0, 0.5], [0.0, 0.0], [1e-30, 1.0]])
  mask = np.ones(scores.shape, bool)
  logs = np.asarray(aggregate(scores, mask, 'prod'))
  # Finite, and ordered by the other steps.
  assert np.isfinite(logs).all()
  assert logs[3] > logs[0] > logs[1] > logs[2]
  for how in ('min', 'last', 'mean', 'sum', 'max'):
    np.testing.assert_allclose(aggregate(scores[2], mask[2], how), 0.0)


def test_unknown_aggregate():
  with pytest.raises(UserError, match="unknown aggregate 'median': expected"):
    aggregate(SCORES, MASK, 'median')


def test_buckets_by_hand():
  assert [bucket(n) for n in (1, 64, 65, 128, 129)] == [64, 64, 128, 128, 256]
  assert [bucket(n, 1) for n in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, 16]
  rows = [row_bucket(n, 1) for n in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17)]
  assert rows == [1, 2, 3, 4, 5, 7, 8, 10, 12, 14, 20]
  # On eight devices everything is a multiple of eight.
  assert [row_bucket(n, 8) for n in (1, 8, 9, 25, 65)] == [8, 8, 16, 32, 80]


@given(st.integers(1, 10_000), st.sampled_from([1, 2, 3, 8]))
def test_row_buckets_waste_at_most_a_fifth(rows, multiple):
  padded = row_bucket(rows, multiple)
  assert padded % multiple == 0
  needed = -(-rows // multiple) * multiple
  assert rows <= padded
  assert (padded - needed) / padded <= 1 / 5


def test_rows_are_twice_as_long_where_that_pads_less():
  def shape(*lengths):
    steps = [
      (np.arange(n), np.array([n - 1]), np.zeros(n, bool)) for n in lengths
    ]
    return pack_rows(steps, 0, 1)[0].tokens.shape

  assert shape(40, 40, 40) == (1, 128)
  assert shape(40, 40) == (2, 64)  # as many tokens either way
  assert shape(40, 24, 40, 24) == (2, 64)


@st.composite
def candidates(draw):
  """Draws (tokens, step_ends, numbers); all tokens differ, and none is 0."""
  made, token = [], 1
  for lengths in draw(
    st.lists(
      st.lists(st.integers(2, 40), min_size=1, max_size=6),
      min_size=1,
      max_size=12,
    )
  ):
    tokens = np.arange(token, token + sum(lengths), dtype=np.int32)
    step_ends = np.cumsum(lengths).astype(np.int32) - 1
    made.append((tokens, step_ends, tokens % 3 == 0))
    token += len(tokens)
  return made


@settings(deadline=None)
@given(candidates(), st.integers(0, 50), st.sampled_from([1, 3, 8]))
def test_pack_rows_keeps_every_candidate_apart(made, first_position, multiple):
  rows, layout = pack_rows(made, first_position, multiple)
  B, T = rows.tokens.shape
  P = rows.step_ends.shape[1]
  assert B % multiple == 0
  shortest = bucket(max(len(tokens) for tokens, *_ in made))
  assert T in (shortest, 2 * shortest)
  assert rows.numbers.dtype == bool
  for array in (*rows[:4], layout.slots):
    assert array.dtype == np.int32

  used = np.zeros((B, T), bool)
  for i, (tokens, step_ends, numbers) in enumerate(made):
    mask = layout.step_mask[i]
    assert mask[: len(step_ends)].all()
    assert mask.sum() == len(step_ends)
    row_of, step_of = np.divmod(layout.slots[i, mask], P)
    b = row_of[0]
    assert (row_of == b).all()
    # The slot of every step leads to the step's own last token.
    at = rows.step_ends[b, step_of]
    np.testing.assert_array_equal(rows.tokens[b, at], tokens[step_ends])
    start = at[-1] + 1 - len(tokens)
    inside = slice(start, at[-1] + 1)
    np.testing.assert_array_equal(rows.tokens[b, inside], tokens)
    np.testing.assert_array_equal(rows.numbers[b, inside], numbers)
    np.testing.assert_array_equal(
      rows.positions[b, inside], first_position + np.arange(len(tokens))
    )
    assert (rows.last[b, inside] == at[-1]).all()
    before = np.arange(start - 1, at[-1])
    before[0] = -1
    np.testing.assert_array_equal(rows.parents[b, inside], before)
    assert not used[b, inside].any()
    used[b, inside] = True
  np.testing.assert_array_equal(used, rows.positions >= 0)
  np.testing.assert_array_equal(used, rows.tokens > 0)
  # No two chains share a slot.
  slots = layout.slots[layout.step_mask]
  assert len(set(slots.tolist())) == len(slots)


def test_the_longest_are_packed_first():
  """44 + 20 and 40 + 24 fill two rows; the given order would take three."""
  made = [
    (np.ones(n, np.int32), np.array([n - 1], np.int32), np.zeros(n, bool))
    for n in (20, 40, 44, 24)
  ]
  rows, layout = pack_rows(made, 0, 1)
  np.testing.assert_array_equal(rows.positions >= 0, np.ones((2, 64), bool))
  slots = layout.slots[layout.step_mask]
  np.testing.assert_array_equal(
    rows.step_ends.reshape(-1)[slots], [63, 39, 43, 63]
  )


@given(candidates())
@settings(deadline=None)
def test_no_two_rows_could_be_merged(made):
  """First fit leaves at most one row that is at most half full."""
  rows, _ = pack_rows(made, 0, 1)
  filled = (rows.positions >= 0).sum(1)
  filled = np.sort(filled[filled > 0])
  assert len(filled) < 2 or filled[0] + filled[1] > rows.tokens.shape[1]


def test_a_mask_of_another_shape_is_refused():
  with pytest.raises(AssertionError, match='aggregate: step_mask'):
    aggregate(SCORES, MASK[:, :3], 'min')


MODEL = TransformerConfig(50, 16, 1, 2, 1, 16)
HEAD = HeadConfig('two_class')


@functools.cache
def params():
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(
    lambda key: make_params(key, MODEL, HEAD), jax.random.key(0)
  )
  return jax.tree.map(
    lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), jnp.float32), shapes
  )


def some_rows(count, seed=0):
  """Returns `count` rows of 64 tokens, with one candidate each."""
  rng = np.random.default_rng(seed)
  made = []
  for length in rng.integers(40, 65, count):
    tokens = rng.integers(1, 50, length).astype(np.int32)
    step_ends = np.array([length // 2, length - 1], np.int32)
    made.append((tokens, step_ends, np.zeros(length, bool)))
  return pack_rows(made, 0, 1)


def scores_of(rows, prefix=None):
  run = functools.partial(score.row_scores, model=MODEL, head=HEAD)
  return np.asarray(jax.jit(run)(params(), rows, prefix))


@functools.cache
def whole_scores():
  """Returns the scores of six rows computed in one part."""
  return scores_of(some_rows(6)[0])


def test_row_scores_are_the_head_at_every_step_end():
  rows, layout = some_rows(6)
  actual = whole_scores()
  run = jax.jit(forward, static_argnums=1)
  hidden = run(params()['backbone'], MODEL, *rows[:3])
  expected = step_probabilities(
    step_logits(params()['head'], hidden, rows.step_ends), HEAD
  )
  np.testing.assert_allclose(actual, expected, atol=1e-6)
  assert np.ptp(actual.reshape(-1)[layout.slots[layout.step_mask]]) > 0.05


@pytest.mark.parametrize(
  ('count', 'limit'),
  [
    (6, 2 * 64),  # three parts of two
    (6, 3 * 64 + 1),  # two parts of three
    (5, 3 * 64),  # a prime number of rows: only one by one
    (3, 16),  # a row alone is longer than a call may be
  ],
)
def test_scores_in_parts_equal_those_of_the_whole(monkeypatch, count, limit):
  rows, _ = some_rows(6)
  assert rows.tokens.shape == (6, 64)
  expected = whole_scores()[:count]
  assert len(np.unique(expected[:, :2])) == 2 * count
  monkeypatch.setattr(score, 'MAX_TOKENS_PER_CALL', limit)
  actual = scores_of(jax.tree.map(lambda x: x[:count], rows))
  np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_parts_share_the_prompt(monkeypatch):
  rows, layout = some_rows(4)
  rows = rows._replace(positions=rows.positions + 5)
  prompt = np.arange(1, 6, dtype=np.int32)[None]
  mask = np.ones((1, 5), bool)
  fill = jax.jit(prefill, static_argnums=1)
  prefix = fill(params()['backbone'], MODEL, prompt, mask)
  real = layout.slots[layout.step_mask]
  expected = scores_of(rows, prefix).reshape(-1)[real]
  monkeypatch.setattr(score, 'MAX_TOKENS_PER_CALL', 2 * 64)
  actual = scores_of(rows, prefix).reshape(-1)[real]
  np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize(
  'name', ['positions', 'last', 'parents', 'numbers', 'step_begins']
)
def test_rows_of_unequal_shapes_are_refused(name):
  rows, _ = some_rows(2)
  broken = rows._replace(**{name: getattr(rows, name)[:1]})
  with pytest.raises(AssertionError, match=f'rows.{name}'):
    scores_of(broken)
