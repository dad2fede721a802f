"""The sizes that follow from an RL run's schedule, and what is refused."""

import pytest

from prm_jax.rl.schedule import RlLoopConfig
from prm_jax.runtime.errors import UserError


def test_sizes_by_hand():
  config = RlLoopConfig(
    updates=5, problems=6, samples=4, epochs=2, minibatches=3, microbatches=2
  )
  assert config.chains == 24
  assert config.rows == 4
  assert config.steps == 30
  config.check_devices(4)
  with pytest.raises(UserError, match=r'config\.train\.microbatches=2: a mini'):
    config.check_devices(3)


def test_every_fault_is_reported_at_once():
  with pytest.raises(UserError) as error:
    RlLoopConfig(
      problems=2,
      samples=2,
      minibatches=3,
      evaluate_every=2,
      checkpoint_every=7,
    )
  assert str(error.value).split('\n') == [
    'checkpoint_every=7: expected a multiple of evaluate_every=2',
    'minibatches=3: expected a divisor of problems x samples = 4 chains',
  ]


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'updates': 0}, 'updates=0: expected >= 1'),
    ({'staleness': -1}, 'staleness=-1: expected >= 0'),
    ({'kl_stop': -0.1}, r'kl_stop=-0\.1: expected >= 0'),
  ],
)
def test_bad_values_are_refused(values, message):
  with pytest.raises(UserError, match=message):
    RlLoopConfig(**values)
