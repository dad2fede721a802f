"""What the learner makes of rated chains, by hand, and in which order."""

import types

import numpy as np

from prm_jax.data.tokenizer import STEP_END
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.loop import Learner, Terms
from prm_jax.rl.objective import PolicyLossConfig
from prm_jax.rl.rewards import RewardConfig
from prm_jax.rl.schedule import RlLoopConfig
from prm_jax.rl.trees import ONE_DEVICE
from tests.rl.written_chains import (
  LAST,
  STEP,
  WHOLE,
  FixedPrm,
  rate,
  sample_of,
)
from tests.shared.tiny_sampling import one_device

# A right chain of 13 tokens, and one of 6 that never ends.
PAIR = [sample_of(WHOLE), sample_of([*LAST, STEP_END])]


def make_learner(reward, step_fn=None, **config):
  terms = Terms(reward, AdvantageConfig('rloo'), PolicyLossConfig())
  config = RlLoopConfig(**config)
  return Learner(config, terms, step_fn, None, one_device(), ONE_DEVICE, 0)


def test_a_chain_likelier_than_to_the_reference_is_worth_less():
  rated = rate(PAIR)
  # Nats per token, of the prompt's too, which do not count.
  above = np.array([[0.01], [-0.02]], np.float32)
  reference = rated.rows.sampled_logprobs - above
  rows = rated.rows._replace(reference_logprobs=reference)
  reward = RewardConfig('outcome', outcome_weight=1.0, kl_weight=2.0)
  learner = make_learner(reward, problems=1, samples=2)
  found = learner.experience(None, rated._replace(rows=rows), 1)
  # Returns 1 - 2 * 13 * 0.01 and 0 + 2 * 6 * 0.02.
  for row, expected in enumerate((0.74 - 0.24, 0.24 - 0.74)):
    advantages = found.advantages[row, rows.written[row]]
    np.testing.assert_allclose(advantages, expected, atol=1e-6)


def test_the_weight_of_steps_decays_to_its_last_part():
  rated = rate(PAIR, FixedPrm(**{'1': 0.9, '3': 0.2}))
  reward = RewardConfig('raw', decay=True)
  learner = make_learner(reward, updates=4, problems=1, samples=2)
  first, last = (
    learner.experience(None, rated, update).advantages for update in (1, 4)
  )
  assert first.any()
  np.testing.assert_allclose(last, first / 4, rtol=1e-6)


def test_the_longest_streak_of_an_update_is_reported():
  """Of steps that were skipped: it may end before the update does."""
  in_a_row = iter([3, 4, 0, 1])  # 2 were skipped before the update

  def step_fn(state, minibatch):
    del minibatch
    return state, {'lr': 0.0, 'skipped': 0, 'skipped_in_a_row': next(in_a_row)}

  reward = RewardConfig('outcome', outcome_weight=1.0)
  sizes = {'problems': 1, 'samples': 2, 'epochs': 2, 'minibatches': 2}
  learner = make_learner(reward, step_fn, **sizes)
  start = types.SimpleNamespace(params=None)
  _, metrics, _ = learner.learn(start, rate(PAIR), 1)
  assert metrics['skipped_in_a_row'] == 4


def test_every_epoch_has_an_order_of_its_own():
  lengths = list(range(1, 9))
  rated = rate([sample_of(WHOLE[:length]) for length in lengths])
  order = []

  def step_fn(state, minibatch):
    order.append(int(minibatch.chains.written.sum()))
    return state, dict.fromkeys(('lr', 'skipped', 'skipped_in_a_row'), 0.0)

  reward = RewardConfig('outcome', outcome_weight=1.0)
  sizes = {'problems': 8, 'samples': 1, 'epochs': 2, 'minibatches': 8}
  learner = make_learner(reward, step_fn, **sizes)
  learner.learn(types.SimpleNamespace(params=None), rated, 1)
  assert sorted(order[:8]) == sorted(order[8:]) == lengths
  assert order[:8] != order[8:]


def test_minibatches_in_which_nothing_is_read_lower_no_mean():
  """The group of two wrong chains has no advantage, so it is not read."""
  idle = [sample_of([*LAST, STEP_END]), sample_of([*STEP, STEP_END])]

  def step_fn(state, minibatch):
    read = float((minibatch.trees.nodes >= 0).any())
    others = dict.fromkeys(('loss', 'lr', 'skipped', 'skipped_in_a_row'), read)
    return state, others | {'entropy': 0.3 * read, 'ratio': read}

  reward = RewardConfig('outcome', outcome_weight=1.0)
  sizes = {'problems': 2, 'samples': 2, 'minibatches': 2}
  learner = make_learner(reward, step_fn, **sizes)
  start = types.SimpleNamespace(params=None)
  _, metrics, _ = learner.learn(start, rate([*PAIR, *idle]), 1)
  assert (metrics['entropy'], metrics['ratio']) == (0.3, 1)
  assert metrics['loss'] == 0.5
  _, metrics, _ = learner.learn(start, rate([*idle, *idle]), 1)
  assert metrics['loss'] == 0
  assert not metrics.keys() & {'entropy', 'ratio', 'kl_to_sampled'}
