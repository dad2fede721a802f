"""Estimators by hand, and the scan of GAE against the plain recursion."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.rl import advantages


def test_rewards_to_go_by_hand():
  rewards = jnp.array([[1.0, 2.0, 4.0], [0.0, 0.0, 1.0]])
  np.testing.assert_allclose(
    advantages.rewards_to_go(rewards), [[7, 6, 4], [1, 1, 1]]
  )
  np.testing.assert_allclose(
    advantages.rewards_to_go(rewards, 0.5), [[3, 4, 4], [0.25, 0.5, 1]]
  )


def test_leave_one_out_by_hand():
  returns = jnp.array([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
  np.testing.assert_allclose(
    advantages.leave_one_out(returns, 3), [1, -0.5, -0.5, 0, 0, 0]
  )
  np.testing.assert_allclose(advantages.leave_one_out(returns, 1), returns)
  # Independent of the sample itself: unbiased as a baseline.
  changed = returns.at[0].set(9.0)
  a, b = (advantages.leave_one_out(x, 3) for x in (returns, changed))
  assert a[0] - returns[0] == b[0] - changed[0]


def test_group_relative_by_hand():
  returns = jnp.array([1.0, 0.0, 0.0, 1.0, 5.0, 5.0, 5.0, 5.0])
  found = advantages.group_relative(returns, 4, eps=0.0)
  # Deviation of (1, 0, 0, 1): sqrt(1 / 3); the equal group has 0 / 0 or 0.
  np.testing.assert_allclose(
    found[:4], 0.5 / np.sqrt(1 / 3) * np.array([1, -1, -1, 1]), rtol=1e-6
  )
  np.testing.assert_array_equal(
    advantages.group_relative(returns, 4)[4:], np.zeros(4)
  )
  np.testing.assert_allclose(
    advantages.group_relative(returns, 4, scale=False)[:4],
    [0.5, -0.5, -0.5, 0.5],
  )


REWARDS = jnp.array([[1.0, 0.0], [0.0, 7.0]])
MASK = jnp.array([[True, True], [True, False]])


def test_steps_relative_by_hand():
  found = advantages.steps_relative(REWARDS, MASK, 2, eps=0.0)
  # Steps 1, 0, 0: mean 1/3, deviation sqrt(1/3).
  expected = np.array([[2 / 3, -1 / 3], [-1 / 3, 0]]) / np.sqrt(1 / 3)
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  equal = advantages.steps_relative(jnp.ones((2, 2)), MASK, 2)
  np.testing.assert_array_equal(equal, np.zeros((2, 2)))


def test_steps_relative_to_their_position_by_hand():
  found = advantages.steps_relative(REWARDS, MASK, 2, True, scale=False)
  # The second step stands alone.
  np.testing.assert_allclose(found, [[0.5, 0], [-0.5, 0]])
  scaled = advantages.steps_relative(REWARDS, MASK, 2, True, eps=0.0)
  np.testing.assert_allclose(scaled, [[1, 0], [-1, 0]])


def test_steps_leave_one_out_by_hand():
  found = advantages.steps_leave_one_out(REWARDS, MASK, 2, False)
  np.testing.assert_allclose(found, [[1, 0], [-0.5, 0]])
  found = advantages.steps_leave_one_out(REWARDS, MASK, 2, True)
  np.testing.assert_allclose(found, [[1, 0], [-1, 0]])
  three = jnp.array([[3.0], [1.0], [2.0]])
  found = advantages.steps_leave_one_out(
    three, jnp.ones((3, 1), bool), 3, False
  )
  np.testing.assert_array_equal(
    found[:, 0], advantages.leave_one_out(three[:, 0], 3)
  )


def test_whiten_by_hand():
  values = jnp.array([[1.0, 3.0, 100.0]])
  mask = jnp.array([[True, True, False]])
  found = advantages.whiten(values, mask)
  np.testing.assert_allclose(found, [[-1, 1, 0]], rtol=1e-6)
  equal = advantages.whiten(jnp.full((1, 3), 5.0), mask)
  np.testing.assert_array_equal(equal, np.zeros((1, 3)))
  nothing = advantages.whiten(values, jnp.zeros((1, 3), bool))
  np.testing.assert_array_equal(nothing, np.zeros((1, 3)))


def recursion(rewards, values, mask, discount, trace):
  """Equation 16 of the paper, from the back."""
  B, T = rewards.shape
  found = np.zeros((B, T))
  for b in range(B):
    following, after = 0.0, 0.0
    for t in reversed(range(T)):
      if not mask[b, t]:
        continue
      delta = rewards[b, t] + discount * after - values[b, t]
      following = delta + discount * trace * following
      found[b, t], after = following, values[b, t]
  return found


@pytest.mark.parametrize(('discount', 'trace'), [(1, 1), (1, 0), (0.9, 0.95)])
def test_gae_is_the_recursion(discount, trace):
  rng = np.random.default_rng(0)
  rewards, values = rng.normal(size=(2, 5, 17)).astype(np.float32)
  lengths, starts = rng.integers(1, 9, 5), rng.integers(0, 8, 5)
  places = np.arange(17)
  mask = (starts[:, None] <= places) & (places < (starts + lengths)[:, None])
  rewards = np.where(mask, rewards, 0.0)
  found, returns = advantages.gae(
    jnp.asarray(rewards),
    jnp.asarray(values),
    jnp.asarray(mask),
    discount,
    trace,
  )
  expected = recursion(rewards, values, mask, discount, trace)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  np.testing.assert_allclose(
    returns, np.where(mask, expected + values, 0.0), atol=1e-5
  )
  if trace == 1 and discount == 1:
    # Then it is the Monte Carlo return, whatever the values are.
    to_go = np.cumsum(rewards[:, ::-1], 1)[:, ::-1]
    np.testing.assert_allclose(returns, np.where(mask, to_go, 0), atol=1e-5)


@pytest.mark.parametrize(
  ('function', 'shapes', 'more'),
  [
    (advantages.rewards_to_go, [(3,)], ()),
    (advantages.leave_one_out, [(4, 1, 1)], (2,)),
    (advantages.group_relative, [(4, 1)], (2,)),
    (advantages.steps_leave_one_out, [(4, 3), (3,)], (2, True)),
    (advantages.steps_relative, [(4, 3), (4, 1)], (2, True)),
    (advantages.returns_relative, [(4, 3), (4, 1)], (2,)),
    (advantages.whiten, [(4, 3), (1, 3)], ()),
    (advantages.gae, [(4, 3), (4, 1), (4, 3)], ()),
  ],
)
def test_a_wrong_shape_is_named(function, shapes, more):
  """Also under jit, where broadcasting would hide it."""
  arrays = [jnp.ones(shape) for shape in shapes]
  for call in (function, jax.jit(lambda *arrays: function(*arrays, *more))):
    given = more if call is function else ()
    with pytest.raises(AssertionError, match=rf'{function.__name__}: \w+'):
      call(*arrays, *given)


def test_chains_that_do_not_divide_into_groups_are_named():
  with pytest.raises(AssertionError, match='group: chains, group size'):
    advantages.group(jnp.ones(5), 2)


@pytest.mark.parametrize('size', [2, 3, 5, 6, 8, 16])
def test_equal_rewards_give_exactly_nothing(size):
  """Also compiled, where rounding would leave what a deviation makes large."""
  returns = jnp.repeat(jnp.array([0.3, 1.0, -7.1]), size)
  rewards = jnp.repeat(returns[:, None], 4, 1)
  mask = jnp.arange(4) < 1 + jnp.arange(3 * size)[:, None] % 4
  found = [
    jax.jit(lambda x: advantages.leave_one_out(x, size))(returns),
    jax.jit(lambda x: advantages.leave_one_out(x, size))(rewards),
    jax.jit(lambda x: advantages.group_relative(x, size, eps=1e-8))(returns),
    jax.jit(
      lambda x: advantages.returns_relative(x, mask | True, size, eps=1e-8)
    )(rewards),
  ]
  relative = functools.partial(advantages.steps_relative, eps=1e-8)
  found += [
    jax.jit(
      functools.partial(function, mask=mask, size=size, by_position=by_position)
    )(rewards)
    for function in (advantages.steps_leave_one_out, relative)
    for by_position in (False, True)
  ]
  for x in found:
    assert not np.asarray(x).any()
