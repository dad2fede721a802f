"""Every form of reward by hand, and the invariants that keep it honest."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.errors import UserError
from prm_jax.rl import rewards
from prm_jax.rl.rewards import FORMS, RewardConfig

# Two chains: three steps, and one.
SCORES = jnp.array([[0.9, 0.4, 0.8, 0.7], [0.6, 0.3, 0.2, 0.1]])
MASK = jnp.array([[True, True, True, False], [True, False, False, False]])
START = jnp.array([0.5, 0.25])
OUTCOMES = jnp.array([1.0, 0.0])


@pytest.mark.parametrize(
  ('form', 'expected'),
  [
    ('raw', [[0.9, 0.4, 0.8, 0], [0.6, 0, 0, 0]]),
    ('total', [[0, 0, 2.1, 0], [0.6, 0, 0, 0]]),
    ('clip', [[0, -0.1, 0, 0], [0, 0, 0, 0]]),
    ('delta', [[0.5, -0.4, 0.8, 0], [0.6, 0, 0, 0]]),
    ('advantage', [[0.4, -0.5, 0.4, 0], [0.35, 0, 0, 0]]),
    ('potential', [[0.4, -0.5, -0.4, 0], [-0.25, 0, 0, 0]]),
    ('outcome', [[0, 0, 0, 0], [0, 0, 0, 0]]),
  ],
)
def test_forms_by_hand(form, expected):
  paid = rewards.step_rewards(SCORES, MASK, OUTCOMES, START, RewardConfig(form))
  np.testing.assert_allclose(paid, expected, atol=1e-6)


def test_min_form_by_hand():
  # softmax(-s / 0.5): exp(-1.8), exp(-0.8), exp(-1.6).
  weights = np.exp([-1.8, -0.8, -1.6])
  weights /= weights.sum()
  paid = rewards.min_form(SCORES, MASK, 0.5)
  np.testing.assert_allclose(
    paid[0], [*(weights * [0.9, 0.4, 0.8]), 0], rtol=1e-6
  )
  np.testing.assert_allclose(paid[1], [0.6, 0, 0, 0], rtol=1e-6)


def test_mixture_centre_and_steps_by_hand():
  config = RewardConfig(
    'raw', weight=2.0, outcome_weight=3.0, centre=0.5, normalise='steps'
  )
  paid = rewards.step_rewards(SCORES, MASK, OUTCOMES, START, config)
  expected = [
    [2 * 0.4 / 3, 2 * -0.1 / 3, 2 * 0.3 / 3 + 3, 0],
    [2 * 0.1, 0, 0, 0],
  ]
  np.testing.assert_allclose(paid, expected, rtol=1e-5, atol=1e-7)


def test_implicit_by_hand():
  # Prompt of 2, steps of 2 and 3 tokens, one behind the end.
  logprobs = jnp.array([[9.0, 9.0, -1.0, -2.0, -0.5, -0.5, -1.0, 7.0]])
  reference = jnp.array([[0.0, 0.0, -2.0, -2.5, -1.0, 0.0, -1.0, 0.0]])
  written = jnp.array([[False, False, True, True, True, True, True, True]])
  ends, mask = jnp.array([[3, 6, 0]]), jnp.array([[True, True, False]])
  paid = rewards.implicit(logprobs, reference, ends, mask, written, 0.1)
  np.testing.assert_allclose(paid, [[0.15, 0.0, 0.0]], atol=1e-6)


chains = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6)


def row(scores, places=8):
  """A chain as a padded row; what lies behind it is garbage."""
  filled = np.full((1, places), 0.77, np.float32)
  filled[0, : len(scores)] = scores
  mask = np.arange(places)[None] < len(scores)
  return jnp.asarray(filled), jnp.asarray(mask)


@given(chains)
def test_delta_telescopes(scores):
  paid = rewards.delta(*row(scores))
  to_go = np.cumsum(np.asarray(paid)[0, ::-1])[::-1]
  np.testing.assert_allclose(to_go[: len(scores)], scores, atol=1e-5)


@given(chains, st.floats(0, 1, width=32))
def test_advantages_telescope(scores, start):
  paid = rewards.advantage(*row(scores), jnp.array([start]))
  np.testing.assert_allclose(paid.sum(), scores[-1] - start, atol=1e-5)


@given(chains)
def test_min_form_sums_to_the_minimum(scores):
  paid = rewards.min_form(*row(scores), 1e-4)
  # Equals share the weight: their sum is still the minimum, up to T.
  np.testing.assert_allclose(paid.sum(), min(scores), atol=1e-3)
  mean = rewards.min_form(*row(scores), 1e5).sum()
  np.testing.assert_allclose(mean, np.mean(scores), atol=1e-4)


@given(chains, st.integers(0, 5), st.sampled_from(['clip', 'delta']))
def test_repeating_a_right_step_never_pays(scores, at, form):
  """A step that adds nothing scores 1, or as the step before it."""
  at = min(at, len(scores))
  again = scores[at - 1] if at else 1.0
  longer = [*scores[:at], again, *scores[at:]]
  config = RewardConfig(form, threshold=0.5)
  zero = jnp.zeros(1)

  def earned(chain):
    return float(rewards.step_rewards(*row(chain), zero, zero, config).sum())

  if form == 'delta' and at == 0:
    # The first score is the return: it is the repeated step's own.
    assert earned(longer) == pytest.approx(1.0, abs=1e-5)
    return
  assert earned(longer) <= earned(scores) + 1e-5


def test_raw_pays_for_repetition():
  """The failure that clip and delta are there for."""
  assert rewards.raw(*row([0.9] * 6)).sum() > rewards.raw(*row([0.9])).sum()


def test_potential_shaping_leaves_the_optimal_policy():
  """All policies of a small tree of choices, best with and without."""
  rng = np.random.default_rng(0)
  for discount in (1.0, 0.9):
    for _ in range(20):
      depth, branches = 3, 3
      paths = list(itertools.product(range(branches), repeat=depth))
      reward = rng.normal(size=len(paths))
      phi = {
        path[:d]: rng.uniform() for path in paths for d in range(depth + 1)
      }
      scores = jnp.array([[phi[p[:d]] for d in (1, 2, 3)] for p in paths])
      start = jnp.full(len(paths), phi[()])
      mask = jnp.ones_like(scores, bool)
      shaping = rewards.potential(scores, mask, start, discount)
      powers = discount ** np.arange(depth)
      returns = reward * powers[-1]
      shaped = returns + np.asarray(shaping) @ powers
      # The return of every path changes by the same: -phi_0.
      np.testing.assert_allclose(shaped - returns, -phi[()], atol=1e-5)
      # So the best choice at every node is the same one.
      assert np.argmax(shaped) == np.argmax(returns)
      for prefix in {path[:d] for path in paths for d in range(depth)}:
        below = [i for i, p in enumerate(paths) if p[: len(prefix)] == prefix]
        assert np.argmax(shaped[below]) == np.argmax(returns[below])


def test_a_shaping_that_keeps_its_last_potential_changes_the_best():
  """What `terminal` is for: phi behind the end is a reward of its own."""
  scores, mask = jnp.array([[0.1], [0.9]]), jnp.ones((2, 1), bool)
  start = jnp.zeros(2)
  returns = np.array([0.5, 0.0])
  kept = rewards.potential(scores, mask, start, 1.0, terminal=False)
  ended = rewards.potential(scores, mask, start, 1.0)
  assert np.argmax(returns + np.asarray(kept).sum(1)) == 1
  assert np.argmax(returns + np.asarray(ended).sum(1)) == 0


@pytest.mark.parametrize('form', FORMS)
def test_nothing_lands_elsewhere(form):
  config = RewardConfig(form, outcome_weight=1.0)
  ends = jnp.array([[4, 6, 9, 0], [3, 0, 0, 0]])
  function = jax.jit(rewards.step_rewards, static_argnums=4)
  paid = function(SCORES, MASK, OUTCOMES, START, config)
  tokens = rewards.to_tokens(paid, ends, MASK, 12)
  assert tokens.shape == (2, 12)
  others = np.asarray(tokens).copy()
  others[0, [4, 6, 9]] = others[1, 3] = 0
  assert not others.any()
  np.testing.assert_allclose(tokens.sum(1), paid.sum(1), rtol=1e-6)
  # What stands in masked places is not read.
  garbage = jnp.where(MASK, SCORES, jnp.nan)
  again = rewards.step_rewards(garbage, MASK, OUTCOMES, START, config)
  np.testing.assert_array_equal(again, paid)


@pytest.mark.parametrize('form', FORMS)
def test_a_chain_without_steps_is_paid_nothing(form):
  config = RewardConfig(form, outcome_weight=1.0)
  nothing = jnp.zeros((1, 4), bool)
  paid = rewards.step_rewards(
    SCORES[:1], nothing, OUTCOMES[:1], START[:1], config
  )
  assert not np.asarray(paid).any()


def test_gradients_of_a_chain_without_steps_are_finite():
  nothing = jnp.zeros((1, 4), bool)
  grad = jax.grad(lambda s: rewards.min_form(s, nothing, 0.1).sum())(SCORES[:1])
  assert np.isfinite(grad).all()


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'form': 'sum'}, "reward.form='sum': expected one of raw"),
    ({'temperature': 0}, 'reward.temperature=0: expected a number above 0'),
    ({'discount': 1.5}, 'reward.discount=1.5'),
    ({'normalise': 'tokens'}, "reward.normalise='tokens'"),
  ],
)
def test_bad_values(values, message):
  with pytest.raises(UserError, match=message):
    RewardConfig(**values)
