"""Expected gradients on tasks so small that all groups of chains are listed."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.rl import credit, rewards
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.findings import Findings
from prm_jax.rl.rewards import RewardConfig

END = 2
ACTIONS = 3  # two steps and the end
LONGEST = 2
# Chains of at most two steps, each a tuple of its steps.
CHAINS = tuple(
  itertools.chain(
    *(itertools.product(range(END), repeat=n) for n in range(LONGEST + 1))
  )
)
FORMS = {
  'raw': RewardConfig('raw'),
  'raw by steps': RewardConfig('raw', normalise='steps'),
  'total': RewardConfig('total'),
  'min_form': RewardConfig('min_form', temperature=0.3),
  'clip': RewardConfig('clip'),
  'delta': RewardConfig('delta'),
  'advantage': RewardConfig('advantage'),
  'advantage by steps': RewardConfig('advantage', normalise='steps'),
  'potential': RewardConfig('potential'),
}
rng = np.random.default_rng(0)
SCORES = {chain: rng.random() for chain in CHAINS}
OUTCOMES = {chain: float(rng.random() < 0.5) for chain in CHAINS}
LOGITS = rng.normal(size=(len(CHAINS), ACTIONS)).astype(np.float32)


def states(chain):
  """The state before each decision, the last of which ends the chain."""
  return [CHAINS.index(chain[:t]) for t in range(len(chain) + 1)]


def log_probabilities(logits):
  """Decisions' log-probabilities [S, A]; the longest chains can only end."""
  full = np.array([len(chain) == LONGEST for chain in CHAINS])
  steps = np.arange(ACTIONS) != END
  shut = full[:, None] & steps
  return jax.nn.log_softmax(jnp.where(shut, -1e9, logits))


def log_probability(logits, chain):
  table = log_probabilities(logits)
  return sum(
    table[state, action]
    for state, action in zip(states(chain), (*chain, END), strict=True)
  )


def findings(chains):
  """Scores of chains whose decisions are a token each."""
  mask = np.array([[t < len(c) for t in range(LONGEST)] for c in chains])
  scores = [
    [SCORES[c[: t + 1]] if t < len(c) else 0.0 for t in range(LONGEST)]
    for c in chains
  ]
  written = np.arange(LONGEST + 1) <= mask.sum(1)[:, None]
  return Findings(
    np.array(scores, np.float32),
    mask,
    np.where(mask, np.arange(LONGEST), 0),
    np.array([OUTCOMES[c] for c in chains], np.float32),
    written,
    np.zeros(written.shape, np.float32),
  )


def expected_gradient(size, reward, config):
  """The gradient of the logits, over all groups of one problem."""
  groups = list(itertools.product(range(len(CHAINS)), repeat=size))
  found = findings([CHAINS[i] for group in groups for i in group])
  values = np.zeros(found.written.shape, np.float32)
  coefficients, returns = credit.token_advantages(
    found, values, 1.0, size, reward, config
  )
  if config.estimator == 'gae':
    # Before they are whitened, which mixes all chains of a batch.
    coefficients = returns
  weights = np.zeros((len(CHAINS), LONGEST + 1))

  def chances(logits):
    logs = [log_probability(logits, chain) for chain in CHAINS]
    return jnp.exp(jnp.stack(logs))

  each = np.asarray(chances(LOGITS), np.float64)
  for g, group in enumerate(groups):
    chance = np.prod(each[list(group)])
    for i, chain in enumerate(group):
      weights[chain] += chance * np.asarray(coefficients)[g * size + i]

  def surrogate(logits):
    table = log_probabilities(logits)
    return sum(
      weights[c, t] * table[state, action]
      for c, chain in enumerate(CHAINS)
      for t, (state, action) in enumerate(
        zip(states(chain), (*chain, END), strict=True)
      )
    )

  def wanted(logits, reward_of):
    return size * (chances(logits) * np.array(reward_of, np.float32)).sum()

  return jax.grad(surrogate)(LOGITS), lambda of: jax.grad(wanted)(LOGITS, of)


def sums(reward):
  """What each chain is paid in all."""
  found = findings(CHAINS)
  start = jnp.full(len(CHAINS), reward.centre)
  paid = rewards.process_rewards(found.scores, found.step_mask, start, reward)
  process = np.where(found.step_mask, paid, 0.0).sum(1)
  if reward.form == 'potential':
    process = np.zeros(len(CHAINS))
  return reward.weight * process + reward.outcome_weight * found.outcomes


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('size', [2, 3])
def test_returns_give_the_gradient_of_what_chains_are_paid(form, size):
  config = AdvantageConfig('rloo', 'return')
  reward = FORMS[form]
  found, gradient = expected_gradient(size, reward, config)
  expected = gradient(sums(reward))
  np.testing.assert_allclose(found, expected, atol=2e-6)
  assert form == 'potential' or np.abs(expected).max() > 0.01
  # Without the division, grpo's gradient is a constant times this one.
  config = AdvantageConfig('grpo', 'return', scale=False)
  found, _ = expected_gradient(size, reward, config)
  np.testing.assert_allclose(found, (size - 1) / size * expected, atol=2e-6)


@pytest.mark.parametrize(
  ('config', 'factor'),
  [
    (AdvantageConfig('rloo'), 1),
    (AdvantageConfig('grpo', scale=False), 0.5),
    (AdvantageConfig('gae', trace=1.0), 1),
  ],
)
def test_a_potential_leaves_the_gradient_of_outcomes(config, factor):
  both = RewardConfig('potential', weight=2.0, outcome_weight=1.0)
  found, gradient = expected_gradient(2, both, config)
  expected = gradient([OUTCOMES[chain] for chain in CHAINS])
  assert np.abs(expected).max() > 0.01
  np.testing.assert_allclose(found, factor * expected, atol=2e-6)


# One step, and then an end or one step more, where all chains are paid the
# same: scores of the first and the second step.
TOY = {
  'raw': (RewardConfig('raw'), 0.75, 0.5),
  'raw by steps': (RewardConfig('raw', normalise='steps'), 0.75, 0.75),
  'clip': (RewardConfig('clip'), 0.25, 0.5),
  'total': (RewardConfig('total'), 0.75, 0.5),
  'min_form': (RewardConfig('min_form'), 0.75, 0.75),
  'delta': (RewardConfig('delta'), 0.75, 0.25),
  'advantage': (RewardConfig('advantage'), 0.75, 0.75),
  'potential': (RewardConfig('potential'), 0.75, 0.25),
}


def gradient_of_stopping(reward, config, first, second, stop=0.4, size=3):
  """The expected gradient of the logit of an end after the first step."""
  scores = np.array([[first, 0], [first, second]], np.float32)
  mask = np.array([[True, False], [True, True]])
  written = np.array([[True, True, False], [True, True, True]])
  groups = np.array(list(itertools.product(range(2), repeat=size)))
  chains = groups.reshape(-1)
  found = Findings(
    scores[chains],
    mask[chains],
    np.where(mask, np.arange(2), 0)[chains],
    np.zeros(len(chains), np.float32),
    written[chains],
    np.zeros((len(chains), 3), np.float32),
  )
  values = np.zeros((len(chains), 3), np.float32)
  if config.estimator == 'gae':
    # The values that a value head would learn: what follows is known.
    exact = dataclasses.replace(config, trace=1.0)
    _, values = credit.token_advantages(found, values, 1.0, size, reward, exact)
    values = np.asarray(values)
  paid, _ = credit.token_advantages(found, values, 1.0, size, reward, config)
  decision = np.asarray(paid)[:, 1].reshape(groups.shape)
  chance = np.where(groups == 0, stop, 1 - stop).prod(1)
  gradient = np.where(groups == 0, 1 - stop, -stop)
  return float((chance * (decision * gradient).sum(1)).sum())


def takes_return(form, process):
  """Says whether chains of equal sums have to be equally good."""
  return process != 'auto' or form not in ('raw', 'clip', 'advantage')


@pytest.mark.parametrize(
  ('form', 'config'),
  [
    (form, config)
    for form in TOY
    for config in (
      AdvantageConfig('rloo'),
      AdvantageConfig('grpo'),
      AdvantageConfig('rloo', 'return'),
      AdvantageConfig('grpo', 'return'),
      AdvantageConfig('rloo', 'chain'),
      AdvantageConfig('grpo', 'chain'),
    )
    if takes_return(form, config.process)
  ],
  ids=str,
)
def test_chains_that_are_paid_the_same_are_equally_good(form, config):
  reward, *scores = TOY[form]
  assert abs(gradient_of_stopping(reward, config, *scores)) < 1e-6


def test_a_potential_is_the_same_to_ppo():
  reward, *scores = TOY['potential']
  config = AdvantageConfig('gae')
  assert abs(gradient_of_stopping(reward, config, *scores)) < 1e-6


def test_to_go_taxes_steps():
  """Which is why potentials are not paid so by default."""
  reward, *scores = TOY['potential']
  config = AdvantageConfig('rloo', 'to_go', 'group')
  assert gradient_of_stopping(reward, config, *scores) > 0.05
