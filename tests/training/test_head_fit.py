"""Heads that are fitted alone: optima by closed form, and what they read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.models import HeadConfig, head_logits, step_probabilities
from prm_jax.training.head_fit import StepData, fit_head

LOGIT = HeadConfig('logit', likelihood=True)


def data_of(states, likelihood, labels, weights=None):
  labels = jnp.asarray(labels, jnp.float32)
  weights = jnp.ones(len(labels)) if weights is None else jnp.asarray(weights)
  return StepData(
    jnp.asarray(states, jnp.float32),
    jnp.asarray(likelihood, jnp.float32),
    labels,
    weights,
    jnp.zeros(len(labels)),
  )


def score(params, data, head):
  logits = head_logits(params, data.states[None], data.likelihood[None])
  return np.asarray(step_probabilities(logits, head)[0])


def fit(data, head=LOGIT, states=True, loss='bce', decay=0.0):
  return fit_head(jax.random.key(0), data, head, states, loss, decay)


@pytest.mark.parametrize(
  ('head', 'loss'),
  [
    (LOGIT, 'bce'),
    (HeadConfig('two_class', likelihood=True), 'cross_entropy'),
    (LOGIT, 'mse'),
  ],
)
def test_a_head_finds_the_shares_of_two_groups(head, loss):
  """A group's best probability is its mean target, soft ones included."""
  group = np.repeat([0.0, 1.0], [4, 6])[:, None]
  targets = [1, 0, 0, 0, 1, 1, 0.5, 0.5, 1, 0]
  data = data_of(group, np.zeros((10, 2)), targets)
  found = score(fit(data, head, loss=loss), data, head)
  np.testing.assert_allclose(found, np.repeat([0.25, 4 / 6], [4, 6]), atol=1e-3)
  # With a huge decay only the constant is left.
  flat = score(fit(data, head, loss=loss, decay=1e5), data, head)
  np.testing.assert_allclose(flat, 0.5, atol=1e-3)


def random_data(count=400):
  rng = np.random.default_rng(0)
  states = rng.normal(size=(count, 3)) * [1.0, 20.0, 0.1] + [0.0, 5.0, 3.0]
  likelihood = -rng.exponential(5.0, size=(count, 2))
  log_odds = states[:, 0] + 0.3 * likelihood[:, 0] + 2
  labels = rng.random(count) < 1 / (1 + np.exp(-log_odds))
  return data_of(states, likelihood, labels)


def test_the_slope_is_0_at_the_optimum():
  """Of the loss with its decay, in units of the features' deviations."""
  data, decay = random_data(), 0.05
  params = fit(data, decay=decay)
  x = np.c_[data.states, data.likelihood]
  kernel = np.r_[params['kernel'], params['likelihood_kernel']][:, 0]
  missed = score(params, data, LOGIT) - np.asarray(data.labels)
  np.testing.assert_allclose(missed.mean(), 0, atol=1e-4)
  centred = x - x.mean(0)
  slope = (missed[:, None] * centred).mean(0) / x.std(0)
  np.testing.assert_allclose(slope, -decay * kernel * x.std(0), atol=1e-4)


def test_units_of_the_features_do_not_matter():
  data = random_data()
  scaled = data._replace(states=data.states * 7 - 2)
  a, b = (score(fit(x, decay=0.1), x, LOGIT) for x in (data, scaled))
  np.testing.assert_allclose(a, b, atol=1e-3)


def test_a_head_reads_only_what_it_should():
  data = random_data()
  alone = fit(data, states=False)
  assert (alone['kernel'] == 0).all()
  assert (np.abs(alone['likelihood_kernel']) > 0).all()
  states = fit(data, HeadConfig('logit'))
  assert 'likelihood_kernel' not in states
  assert (np.abs(states['kernel']) > 0).all()


def test_steps_of_weight_0_say_nothing():
  data = random_data()
  kept = np.arange(400) % 3 > 0
  masked = data._replace(weights=jnp.asarray(kept, jnp.float32))
  spoilt = masked._replace(
    labels=jnp.where(kept, data.labels, 1 - data.labels),
    states=jnp.where(kept[:, None], data.states, 1e4),
  )
  fewer = StepData(*(x[kept] for x in data))
  expected = score(fit(fewer, decay=0.1), fewer, LOGIT)
  for each in (masked, spoilt):
    found = score(fit(each, decay=0.1), each, LOGIT)[kept]
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.slow
def test_a_hidden_layer_learns_what_a_linear_head_cannot():
  rng = np.random.default_rng(0)
  states = rng.choice([-1.0, 1.0], size=(200, 2)) + np.array([4.0, 0.0])
  labels = (states[:, 0] > 4) ^ (states[:, 1] > 0)
  data = data_of(states, np.zeros((200, 2)), labels)
  deep = HeadConfig('two_class', hidden=16, likelihood=True)
  found = score(fit(data, deep, loss='cross_entropy', decay=1e-4), data, deep)
  assert ((found > 0.5) == labels).all()
  flat = score(fit(data, decay=1e-4), data, LOGIT)
  assert ((flat > 0.5) == labels).mean() < 0.8


def test_a_constant_up_to_rounding_is_not_magnified():
  data = random_data()
  constant = jnp.full((400, 1), 3.3)
  more = data._replace(states=jnp.c_[data.states, constant])
  kernel = fit(more, decay=0.1)['kernel']
  assert abs(float(kernel[-1, 0])) < 1e-3
