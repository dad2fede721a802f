"""Step heads by hand: what is read where, and how it becomes a probability."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import (
  HeadConfig,
  init_head,
  step_logits,
  step_probabilities,
)
from prm_jax.models.config import HEADS
from prm_jax.runtime.errors import UserError


def test_step_logits_read_at_step_ends():
  # Two rows of three tokens, D = 2, C = 1: 10 h_0 + h_1 + 100
  hidden = jnp.array(
    [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 1], [2, 3]]], jnp.float32
  )
  params = {'kernel': jnp.array([[10.0], [1.0]]), 'bias': jnp.array([100.0])}
  step_ends = jnp.array([[0, 2], [1, 1]])
  actual = step_logits(params, hidden, step_ends)
  np.testing.assert_allclose(actual, [[[112], [156]], [[191], [191]]])


def test_a_hidden_layer_by_hand():
  # relu(h_0 - 2, 3 - h_0) at h_0 = 5 and 1: (3, 0) and (0, 2)
  params = {
    'hidden_kernel': jnp.array([[1.0, -1.0]]),
    'hidden_bias': jnp.array([-2.0, 3.0]),
    'kernel': jnp.array([[10.0], [1.0]]),
    'bias': jnp.array([0.5]),
  }
  hidden = jnp.array([[[5.0], [1.0]]])
  actual = step_logits(params, hidden, jnp.array([[0, 1]]))
  np.testing.assert_allclose(actual, [[[30.5], [2.5]]])


def test_a_hidden_layer_is_part_of_a_new_head():
  head = HeadConfig('two_class', hidden=7)
  params = init_head(jax.random.key(0), 5, head)
  shapes = {name: leaf.shape for name, leaf in params.items()}
  assert shapes == {
    'hidden_kernel': (5, 7),
    'hidden_bias': (7,),
    'kernel': (7, 2),
    'bias': (2,),
  }
  assert jnp.abs(params['kernel']).min() > 0
  with pytest.raises(UserError, match='hidden=-1: expected >= 0'):
    HeadConfig(hidden=-1)


@pytest.mark.parametrize('kind', HEADS)
def test_step_logits_are_a_linear_map(kind):
  rng = np.random.default_rng(0)
  hidden = rng.normal(size=(2, 7, 5))
  step_ends = rng.integers(0, 7, (2, 4))
  kernel = rng.normal(size=(5, HEADS[kind]))
  bias = np.arange(1.0, HEADS[kind] + 1)
  params = {'kernel': jnp.asarray(kernel), 'bias': jnp.asarray(bias)}
  actual = step_logits(
    params, jnp.asarray(hidden, jnp.float32), jnp.asarray(step_ends)
  )
  for b in range(2):
    for p in range(4):
      expected = hidden[b, step_ends[b, p]] @ kernel + bias
      np.testing.assert_allclose(actual[b, p], expected, rtol=1e-5, atol=1e-6)


def test_step_logits_of_bfloat16_are_float32():
  hidden = jnp.ones((1, 2, 4), jnp.bfloat16)
  params = {'kernel': jnp.full((4, 1), 1 / 3), 'bias': jnp.zeros(1)}
  logits = step_logits(params, hidden, jnp.array([[1]]))
  assert logits.dtype == jnp.float32
  # 4/3 in bfloat16 would be 1.3359
  np.testing.assert_allclose(logits, [[[4 / 3]]], rtol=1e-6)


def test_probabilities_by_hand():
  def read(kind, *outputs):
    logits = jnp.array([[outputs]])
    return float(step_probabilities(logits, HeadConfig(kind))[0, 0])

  ln = math.log
  assert read('logit', ln(3)) == pytest.approx(0.75)
  assert read('logit', -200.0) == pytest.approx(0, abs=1e-30)
  # exp: 1, 3 -> (wrong, right) = 1/4, 3/4
  assert read('two_class', 0.0, ln(3)) == pytest.approx(0.75)
  # exp: 1, 2, 5 -> neutral 2/8 and right 5/8 both are without error
  assert read('three_class', 0.0, ln(2), ln(5)) == pytest.approx(7 / 8)
  assert read('regression', 0.3) == pytest.approx(0.3)
  assert read('regression', -0.2) == 0.0
  assert read('regression', 1.7) == 1.0


@pytest.mark.parametrize('kind', HEADS)
def test_probabilities_never_leave_their_range(kind):
  """Not by a rounding either: evaluations refuse a score of 1.0000001."""
  rng = np.random.default_rng(0)
  logits = jnp.asarray(4 * rng.normal(size=(100, 5000, HEADS[kind])))
  actual = np.asarray(step_probabilities(logits, HeadConfig(kind)))
  assert actual.shape == (100, 5000)
  assert actual.min() >= 0
  assert actual.max() <= 1


@pytest.mark.parametrize('kind', HEADS)
def test_initial_head(kind):
  head = HeadConfig(kind)
  params = init_head(jax.random.key(0), 4096, head)
  assert params['kernel'].shape == (4096, head.outputs)
  np.testing.assert_allclose(params['kernel'].std(), 1 / 64, rtol=0.05)
  np.testing.assert_array_equal(params['bias'], np.zeros(head.outputs))


def test_unknown_head():
  with pytest.raises(UserError, match="kind='linear': expected one of l"):
    HeadConfig('linear')
