"""Every form of reward by hand, and the invariants that it must keep."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.rl import rewards
from prm_jax.rl.rewards import FORMS, RewardConfig
from prm_jax.runtime.errors import UserError

# Two chains: three steps, and one.
SCORES = jnp.array([[0.9, 0.4, 0.8, 0.7], [0.6, 0.3, 0.2, 0.1]])
MASK = jnp.array([[True, True, True, False], [True, False, False, False]])
START = jnp.array([0.5, 0.25])


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
  config = RewardConfig(form, centre=0.0)
  paid = rewards.process_rewards(SCORES, MASK, START, config)
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


def test_min_form_blames_the_wrong_step():
  """As PURE's: signed scores at T = 0.1 are these, halved, at 0.05."""
  scores, mask = row([0.95, 0.02, 0.5])
  paid = rewards.process_rewards(
    scores, mask, jnp.zeros(1), RewardConfig('min_form')
  )
  signed = 2 * np.array([0.95, 0.02, 0.5]) - 1
  weights = np.exp(-signed / 0.1) / np.exp(-signed / 0.1).sum()
  np.testing.assert_allclose(2 * paid[0, :3], weights * signed, atol=1e-6)
  assert paid[0, 1] < -0.47 and abs(paid[0, 0]) < 1e-6


def test_centre_and_steps_by_hand():
  config = RewardConfig('raw', centre=0.5, normalise='steps')
  paid = rewards.process_rewards(SCORES, MASK, START, config)
  expected = [[0.4 / 3, -0.1 / 3, 0.3 / 3, 0], [0.1, 0, 0, 0]]
  np.testing.assert_allclose(paid, expected, rtol=1e-5, atol=1e-7)


def test_clip_is_not_centred():
  config = RewardConfig('clip', centre=0.5, threshold=0.5)
  paid = rewards.process_rewards(SCORES, MASK, START, config)
  np.testing.assert_allclose(paid[0], [0, -0.1, 0, 0], atol=1e-6)


def test_implicit_by_hand():
  # Prompt of 2, steps of 2 and 3 tokens, one after the end.
  logprobs = jnp.array([[9.0, 9.0, -1.0, -2.0, -0.5, -0.5, -1.0, 7.0]])
  reference = jnp.array([[0.0, 0.0, -2.0, -2.5, -1.0, 0.0, -1.0, 0.0]])
  written = jnp.array([[False, False, True, True, True, True, True, True]])
  ends, mask = jnp.array([[3, 6, 0]]), jnp.array([[True, True, False]])
  paid = rewards.implicit(logprobs, reference, ends, mask, written, 0.1)
  np.testing.assert_allclose(paid, [[0.15, 0.0, 0.0]], atol=1e-6)


chains = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6)


def row(scores, places=8):
  """A chain as a padded row; the padding is garbage."""
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
  # Equal scores share the weight: their sum is still the minimum, up to T.
  np.testing.assert_allclose(paid.sum(), min(scores), atol=1e-3)
  mean = rewards.min_form(*row(scores), 1e5).sum()
  np.testing.assert_allclose(mean, np.mean(scores), atol=1e-4)


@given(chains, st.integers(1, 6), st.sampled_from(['clip', 'delta']))
def test_repeating_a_step_never_pays(scores, at, form):
  """The repeated step scores as the step before it."""
  at = min(at, len(scores))
  longer = [*scores[:at], scores[at - 1], *scores[at:]]
  config = RewardConfig(form, centre=0.0, threshold=0.5)

  def earned(chain):
    paid = rewards.process_rewards(*row(chain), jnp.zeros(1), config)
    return float(paid.sum())

  assert earned(longer) <= earned(scores) + 1e-5


@given(chains)
def test_a_trivial_first_step_pays_by_delta_alone(scores):
  """The return of delta is the first score; that of clip does not rise."""
  longer = [1.0, *scores]
  assert rewards.delta(*row(longer)).sum() == pytest.approx(1.0, abs=1e-5)
  paid = [rewards.clip(*row(chain), 0.5).sum() for chain in (longer, scores)]
  np.testing.assert_allclose(*paid, atol=1e-6)


def test_raw_pays_for_repetition():
  """Clip and delta exist because of this failure."""
  assert rewards.raw(*row([0.9] * 6)).sum() > rewards.raw(*row([0.9])).sum()


POTENTIAL = RewardConfig('potential', centre=0.0)


def test_potential_shaping_leaves_the_optimal_policy():
  """The best choices in a small tree are the same with and without it."""
  rng = np.random.default_rng(0)
  for _ in range(20):
    depth, branches = 3, 3
    paths = list(itertools.product(range(branches), repeat=depth))
    returns = rng.normal(size=len(paths))
    phi = {path[:d]: rng.uniform() for path in paths for d in range(depth + 1)}
    scores = jnp.array([[phi[p[:d]] for d in (1, 2, 3)] for p in paths])
    start = jnp.full(len(paths), phi[()])
    mask = jnp.ones_like(scores, bool)
    shaping = rewards.process_rewards(scores, mask, start, POTENTIAL)
    shaped = returns + np.asarray(shaping).sum(1)
    # The return of every path changes by the same: -phi_0.
    np.testing.assert_allclose(shaped - returns, -phi[()], atol=1e-5)
    # So the best choice at every node is the same one.
    assert np.argmax(shaped) == np.argmax(returns)
    for prefix in {path[:d] for path in paths for d in range(depth)}:
      below = [i for i, p in enumerate(paths) if p[: len(prefix)] == prefix]
      assert np.argmax(shaped[below]) == np.argmax(returns[below])


def test_a_shaping_that_keeps_its_last_potential_changes_the_best():
  """Without the payment at the end, the last phi would be a reward."""
  scores, mask = jnp.array([[0.1], [0.9]]), jnp.ones((2, 1), bool)
  start = jnp.zeros(2)
  returns = np.array([0.5, 0.0])
  kept = rewards.advantage(scores, mask, start)
  ended = rewards.process_rewards(scores, mask, start, POTENTIAL)
  assert np.argmax(returns + np.asarray(kept).sum(1)) == 1
  assert np.argmax(returns + np.asarray(ended).sum(1)) == 0


@pytest.mark.parametrize('form', FORMS)
def test_only_tokens_that_end_steps_are_paid(form):
  config = RewardConfig(form)
  ends = jnp.array([[4, 6, 9, 0], [3, 0, 0, 0]])
  function = jax.jit(rewards.process_rewards, static_argnums=3)
  paid = function(SCORES, MASK, START, config)
  tokens = rewards.to_tokens(paid, ends, MASK, 12)
  assert tokens.shape == (2, 12)
  others = np.asarray(tokens).copy()
  others[0, [4, 6, 9]] = others[1, 3] = 0
  assert not others.any()
  np.testing.assert_allclose(tokens.sum(1), paid.sum(1), rtol=1e-6)
  # Masked places are not read.
  garbage = jnp.where(MASK, SCORES, jnp.nan)
  again = rewards.process_rewards(garbage, MASK, START, config)
  np.testing.assert_array_equal(again, paid)


@pytest.mark.parametrize('form', FORMS)
def test_a_chain_without_steps_is_paid_nothing(form):
  nothing = jnp.zeros((1, 4), bool)
  paid = rewards.process_rewards(
    SCORES[:1], nothing, START[:1], RewardConfig(form)
  )
  assert not np.asarray(paid).any()


def test_gradients_of_a_chain_without_steps_are_finite():
  nothing = jnp.zeros((1, 4), bool)
  grad = jax.grad(lambda s: rewards.min_form(s, nothing, 0.1).sum())(SCORES[:1])
  assert np.isfinite(grad).all()


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'form': 'sum'}, "form='sum': expected one of raw"),
    ({'temperature': 0}, 'temperature=0: expected a number above 0'),
    ({'normalise': 'tokens'}, "normalise='tokens': expected one of none"),
    ({'kl_weight': -1}, 'kl_weight=-1: expected >= 0'),
  ],
)
def test_bad_values_are_refused(values, message):
  with pytest.raises(UserError, match=message):
    RewardConfig(**values)


@pytest.mark.parametrize(
  ('function', 'shapes'),
  [
    (rewards.raw, [(2, 3), (3,)]),
    (rewards.total, [(2, 3), (2, 1)]),
    (rewards.min_form, [(2, 3), (1, 3), ()]),
    (rewards.clip, [(3,), (3,), ()]),
    (rewards.delta, [(2, 3), (2, 4)]),
    (rewards.advantage, [(2, 3), (2, 3), (2, 1)]),
    (rewards.potential_end, [(2, 3), (2, 3), ()]),
    (rewards.implicit, [(2, 5), (5,), (2, 3), (2, 3), (2, 5), ()]),
    (rewards.implicit, [(2, 5), (2, 5), (1, 3), (2, 3), (2, 5), ()]),
    (rewards.at_last, [(3,), (2, 3)]),
  ],
)
def test_a_wrong_shape_is_named(function, shapes):
  """Also under jit, where broadcasting would hide it."""
  arrays = [jnp.ones(shape, bool) for shape in shapes]
  for call in (function, jax.jit(function)):
    with pytest.raises(AssertionError, match=rf'{function.__name__}: \w+'):
      call(*arrays)


def test_a_wrong_shape_of_all_rewards_is_named():
  config = RewardConfig()
  with pytest.raises(AssertionError, match='process_rewards: start'):
    rewards.process_rewards(SCORES, MASK, jnp.ones(1), config)
  with pytest.raises(AssertionError, match='process_rewards: mask'):
    rewards.process_rewards(SCORES, MASK[0], START, config)
  with pytest.raises(AssertionError, match='to_tokens: step_ends, mask'):
    rewards.to_tokens(SCORES, jnp.ones(4, int), MASK, 12)
