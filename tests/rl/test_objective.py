"""The policy's loss on a small model, whole and in microbatches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prm_jax.models import HeadConfig, TransformerConfig, forward, lm_logits
from prm_jax.rl import losses
from prm_jax.rl.objective import (
  Experience,
  Minibatch,
  PolicyLossConfig,
  make_objective,
  view_tokens,
)
from prm_jax.rl.trees import lay_out
from prm_jax.runtime.errors import UserError
from prm_jax.training.loop import make_step
from prm_jax.training.train_state import NO_LORA, make_init, split_params
from tests.shared.packed import trees_of

pytestmark = pytest.mark.once

MODEL = TransformerConfig(
  vocab_size=11, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=24
)
VALUE = HeadConfig('regression')
B, T, MAX_TOKENS = 4, 9, 7
LENGTHS = np.array([9, 7, 5, 9])


def make_batch(params):
  rng = np.random.default_rng(0)
  tokens = jnp.asarray(rng.integers(0, 11, (B, T)), jnp.int32)
  trees = jax.tree.map(jnp.asarray, trees_of(tokens, LENGTHS))
  written = (np.arange(T) >= 2) & (np.arange(T) < LENGTHS[:, None])
  seen = view_tokens(params, trees, MODEL)

  def noise(scale):
    return jnp.asarray(scale * rng.normal(size=(B, T)), jnp.float32)

  chains = Experience(
    jnp.asarray(written),
    seen.logprobs + noise(0.3),
    seen.logprobs + noise(0.2),
    noise(1.0),
    noise(1.0),
    noise(1.0),
  )
  return Minibatch(trees, chains)


def changed(batch, **arrays):
  """Returns the batch with other arrays of its chains."""
  return batch._replace(chains=batch.chains._replace(**arrays))


@pytest.fixture(scope='module')
def state():
  init = make_init(MODEL, VALUE, optax.sgd(1e-2))
  return jax.jit(init)(jax.random.key(0))


@pytest.fixture(scope='module')
def batch(state):
  return make_batch(state.params)


def test_the_view_matches_the_forward_pass(state, batch):
  seen = view_tokens(state.params, batch.trees, MODEL)
  positions = jnp.broadcast_to(jnp.arange(T), (B, T))
  tokens, last = batch.trees.tokens, batch.trees.last
  hidden = forward(state.params['backbone'], MODEL, tokens, positions, last)
  logits = lm_logits(state.params['backbone'], MODEL, hidden)
  for b, t in ((0, 1), (2, 4), (3, 8)):
    row = jax.nn.log_softmax(logits[b, t - 1])
    token = tokens[b, t]
    assert seen.logprobs[b, t] == pytest.approx(float(row[token]), abs=1e-5)
    entropy = -(jnp.exp(row) * row).sum()
    assert seen.entropy[b, t] == pytest.approx(float(entropy), abs=1e-5)
    head = state.params['head']
    value = hidden[b, t - 1] @ head['kernel'][:, 0] + head['bias'][0]
    assert seen.values[b, t] == pytest.approx(float(value), abs=1e-5)
  for each in seen:
    assert not np.asarray(each)[:, 0].any()


@pytest.mark.parametrize('reduce', losses.REDUCTIONS)
def test_the_loss_is_the_sum_of_its_parts(state, batch, reduce):
  config = PolicyLossConfig(
    clip_high=0.3,
    reduce=reduce,
    kl_weight=0.1,
    entropy_weight=0.02,
    value_weight=0.5,
  )
  objective = make_objective(MODEL, config, MAX_TOKENS)
  by = objective.norms(batch)
  total, values = objective.loss(state.params, batch, by)
  seen = view_tokens(state.params, batch.trees, MODEL)
  chains, written = batch.chains, batch.chains.written

  def reduced(x):
    return losses.reduce(x, written, reduce, written.sum(), B, MAX_TOKENS)

  policy, cut = losses.clipped(
    seen.logprobs, chains.sampled_logprobs, chains.advantages, 0.2, 0.3
  )
  divergence = losses.kl(seen.logprobs, chains.reference_logprobs)
  value = losses.value_loss(seen.values, chains.old_values, chains.returns)
  value = jnp.where(written, value, 0).sum() / written.sum()
  expected = reduced(policy) + 0.1 * reduced(divergence)
  expected += 0.5 * value - 0.02 * reduced(seen.entropy)
  assert total == pytest.approx(float(expected), rel=1e-5)
  assert values['loss'] == total
  assert values['value_loss'] == pytest.approx(float(value), rel=1e-5)
  assert values['clipped'] == pytest.approx(
    float((cut & written).sum() / written.sum()), rel=1e-5
  )
  gone = (seen.logprobs - chains.sampled_logprobs)[written]
  for name, expected in (
    ('kl_to_sampled', jnp.expm1(gone) - gone),
    ('ratio', jnp.exp(gone)),
    ('entropy', seen.entropy[written]),
  ):
    assert values[name] == pytest.approx(float(expected.mean()), rel=1e-5)


def test_tokens_that_were_not_written_change_nothing(state, batch):
  objective = make_objective(MODEL, PolicyLossConfig(kl_weight=0.1), MAX_TOKENS)

  def grads_of(some):
    def loss(params):
      return objective.loss(params, some, objective.norms(some))[0]

    return jax.jit(jax.grad(loss))(state.params)

  chains = batch.chains
  other = changed(
    batch,
    **{
      name: jnp.where(chains.written, getattr(chains, name), 1e3)
      for name in (
        'sampled_logprobs',
        'reference_logprobs',
        'advantages',
        'returns',
        'old_values',
      )
    },
  )
  for a, b in zip(
    jax.tree.leaves(grads_of(batch)),
    jax.tree.leaves(grads_of(other)),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)


def step_of(config, microbatches):
  return jax.jit(
    make_step(
      make_objective(MODEL, config, MAX_TOKENS),
      lambda params: split_params(params, VALUE, NO_LORA, lm_loss=True),
      MODEL,
      optax.sgd(1e-2),
      optax.constant_schedule(1e-2),
      microbatches,
    )
  )


@pytest.mark.parametrize('reduce', losses.REDUCTIONS)
def test_microbatches_add_up_to_the_batch(state, batch, reduce):
  config = PolicyLossConfig(reduce=reduce, kl_weight=0.1)
  whole, metrics = step_of(config, 1)(state, batch)
  trees = lay_out(np.asarray(batch.trees.tokens), LENGTHS, 2)
  cut = batch._replace(trees=trees)
  parts, summed = step_of(config, 2)(state, cut)
  assert metrics.keys() == summed.keys()
  for name, value in metrics.items():
    close = pytest.approx(float(summed[name]), rel=1e-4, abs=1e-6)
    assert value == close, name
  for a, b in zip(
    jax.tree.leaves(whole.params), jax.tree.leaves(parts.params), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_nothing_is_learned_from_a_batch_without_written_tokens(state, batch):
  nothing = changed(
    batch, written=jnp.zeros((B, T), bool), advantages=jnp.zeros((B, T))
  )
  config = PolicyLossConfig(kl_weight=0.1, entropy_weight=0.1)
  after, metrics = step_of(config, 1)(state, nothing)
  assert metrics['loss'] == metrics['grad_norm'] == 0
  assert after.skipped == 0
  for a, b in zip(
    jax.tree.leaves(after.params), jax.tree.leaves(state.params), strict=True
  ):
    np.testing.assert_array_equal(a, b)


def test_a_nan_never_becomes_an_update(state, batch):
  advantages = batch.chains.advantages.at[0, 3].set(jnp.nan)
  broken = changed(batch, advantages=advantages)
  after, metrics = step_of(PolicyLossConfig(), 1)(state, broken)
  assert after.skipped == metrics['skipped'] == 1
  for a, b in zip(
    jax.tree.leaves(after.params), jax.tree.leaves(state.params), strict=True
  ):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'clip_low': 0}, r'clip_low=0: expected a number in \(0, 1\]'),
    ({'reduce': 'mean'}, "reduce='mean': expected one of token"),
    ({'kl_weight': -1}, 'kl_weight=-1: expected >= 0'),
    ({'kl_estimator': 'k4'}, "kl_estimator='k4': expected one of k2, k3"),
  ],
)
def test_bad_values_are_refused(values, message):
  with pytest.raises(UserError, match=message):
    PolicyLossConfig(**values)
