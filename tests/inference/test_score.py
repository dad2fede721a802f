"""Tests aggregates by hand, and scores in parts."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.inference import score
from prm_jax.inference.packing import pack_rows
from prm_jax.inference.score import (
  AGGREGATES,
  aggregate,
)
from prm_jax.models import (
  HeadConfig,
  TransformerConfig,
  forward,
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
  rows, layout, _ = pack_rows(made, 1)
  return rows, layout


def scores_of(rows):
  run = functools.partial(score.row_scores, model=MODEL, head=HEAD)
  return np.asarray(jax.jit(run)(params(), rows))


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


@pytest.mark.parametrize(
  'name', ['positions', 'last', 'parents', 'kinds', 'step_begins']
)
def test_rows_of_unequal_shapes_are_refused(name):
  rows, _ = some_rows(2)
  broken = rows._replace(**{name: getattr(rows, name)[:1]})
  with pytest.raises(AssertionError, match=f'rows.{name}'):
    scores_of(broken)
