"""Policy losses by hand; gradients where the formula says what they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.rl import losses
from prm_jax.runtime.errors import UserError


def test_clipped_by_hand():
  ratio = np.array([[1.0, 1.5, 0.5, 1.5, 0.5]])
  advantages = jnp.array([[2.0, 1.0, 1.0, -1.0, -1.0]])
  loss, cut = losses.clipped(
    jnp.log(ratio), jnp.zeros((1, 5)), advantages, 0.2, 0.3
  )
  np.testing.assert_allclose(loss, [[-2.0, -1.3, -0.5, 1.5, 0.8]], rtol=1e-6)
  np.testing.assert_array_equal(cut, [[False, True, False, False, True]])


def test_the_clip_stops_the_gradient():
  def total(logprobs):
    old, advantages = jnp.zeros((1, 2)), jnp.ones((1, 2))
    return losses.clipped(logprobs, old, advantages)[0].sum()

  grad = jax.grad(total)(jnp.log(jnp.array([[1.1, 1.3]])))
  np.testing.assert_allclose(grad, [[-1.1, 0.0]], rtol=1e-6)


def test_at_the_sampling_policy_it_is_reinforce():
  logprobs = jnp.array([[-0.5, -1.0, -2.0]])
  advantages = jnp.array([[1.0, -2.0, 0.5]])
  ppo = jax.grad(lambda x: losses.clipped(x, logprobs, advantages)[0].sum())
  # Of -A log pi.
  np.testing.assert_allclose(ppo(logprobs), -advantages, rtol=1e-6)


def test_value_loss_by_hand():
  found = losses.value_loss(
    jnp.array([1.0, 1.0]), jnp.array([0.0, 1.1]), jnp.array([1.0, 0.0])
  )
  # The first is clipped to 0.2, far from its return; the second is not.
  np.testing.assert_allclose(found, [0.5 * 0.64, 0.5], rtol=1e-6)
  plain = losses.value_loss(jnp.ones(1), jnp.zeros(1), jnp.ones(1), clip=0)
  np.testing.assert_array_equal(plain, [0.0])


def test_kl_estimators():
  rng = np.random.default_rng(0)
  p, q = (jax.nn.log_softmax(jnp.asarray(rng.normal(size=6))) for _ in 'pq')
  exact = float((jnp.exp(p) * (p - q)).sum())
  expected = {
    name: float((jnp.exp(p) * losses.kl(p, q, name)).sum())
    for name in losses.KL_ESTIMATORS
  }
  assert expected['k3'] == pytest.approx(exact, rel=1e-5)
  assert (losses.kl(p, q, 'k3') >= 0).all()
  d = np.asarray(q - p)
  np.testing.assert_allclose(losses.kl(p, q, 'k2'), d**2 / 2, rtol=1e-6)
  with pytest.raises(UserError, match=r"kl.estimator='k1'"):
    losses.kl(p, q, 'k1')


def test_reductions_by_hand():
  values = jnp.array([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
  mask = jnp.array([[True, True, False], [True, False, False], [False] * 3])

  def reduced(how):
    return losses.reduce(values, mask, how, 3, 2, 5)

  assert reduced('token') == pytest.approx(7 / 3)
  assert reduced('sequence') == pytest.approx(5.5 / 2)
  assert reduced('constant') == pytest.approx(7 / (2 * 5))
  nothing = jnp.zeros((3, 3), bool)
  for how in losses.REDUCTIONS:
    assert losses.reduce(values, nothing, how, 1, 1, 5) == 0
  with pytest.raises(UserError, match=r"loss.reduce='mean'"):
    reduced('mean')


@pytest.mark.parametrize(
  ('function', 'shapes'),
  [
    (losses.clipped, [(2, 3), (2, 3), (2, 1)]),
    (losses.value_loss, [(2, 3), (3,), (2, 3)]),
    (losses.kl, [(2, 3), (2, 1)]),
  ],
)
def test_a_wrong_shape_is_named(function, shapes):
  """Also under jit, where broadcasting would hide it."""
  arrays = [jnp.ones(shape) for shape in shapes]
  for call in (function, jax.jit(function)):
    with pytest.raises(AssertionError, match=rf'{function.__name__}: \w+'):
      call(*arrays)


def test_a_wrong_shape_in_a_reduction_is_named():
  values, mask = jnp.ones((2, 3)), jnp.ones((2, 3), bool)
  with pytest.raises(AssertionError, match='reduce: mask'):
    losses.reduce(values, mask[:1], 'token', 6, 2, 3)
  with pytest.raises(AssertionError, match='reduce: tokens, chains'):
    losses.reduce(values, mask, 'token', jnp.ones(2), 2, 3)
