"""The reward function for other libraries: text in, a number per step."""

import math

import pytest

import prm_jax
from prm_jax import rl
from prm_jax.rl.rewards import RewardConfig
from prm_jax.runtime.errors import UserError
from tests.shared.published_models import write_model

PROBLEM = 'What is seven times three?'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('prm')
  write_model('rlhflow', folder)
  return folder


def test_rewards_are_the_scores(folder):
  rewards = rl.reward_fn(folder, style='rlhflow')
  steps = ['seven times three', 'is 21']
  scorer = prm_jax.load(folder, style='rlhflow')
  expected = scorer.score(PROBLEM, steps)
  pairs = [
    (PROBLEM, '\n'.join(steps)),
    (PROBLEM, ''),
    (PROBLEM, ' \n\nseven times three\n'),
    (PROBLEM, 'word ' * 4096),
    (
      [{'role': 'user', 'content': PROBLEM}],
      [{'role': 'assistant', 'content': '\n\n'.join(steps)}],
    ),
  ]
  found = rewards(pairs)
  assert found[0] == pytest.approx(expected, abs=1e-5)
  assert found[1] == []
  assert found[2] == pytest.approx(expected[:1], abs=1e-5)
  assert len(found[3]) == 1 and math.isnan(found[3][0])
  assert found[4] == pytest.approx(expected, abs=1e-5)
  assert rewards([]) == []


def test_broken_chains_are_counted(folder, caplog):
  """Their rewards are NaN, and `min` may hide a NaN."""
  rewards = rl.reward_fn(folder, style='rlhflow')
  rewards([(PROBLEM, 'is 21'), (PROBLEM, '')])
  assert not caplog.records
  rewards([(PROBLEM, 'word ' * 4096), (PROBLEM, 'is 21')])
  (record,) = caplog.records
  assert '1 of 2 chains have rewards that are NaN' in record.getMessage()
  assert 'do not fit max_length' in record.getMessage()


def test_another_form_and_separator(folder):
  clip = RewardConfig('clip', threshold=0.9, outcome_weight=1.0)
  rewards = rl.reward_fn(folder, ';', clip, 'rlhflow')
  plain = rl.reward_fn(folder, ';', style='rlhflow')
  pair = (PROBLEM, 'seven; times; three')
  [scores], [paid] = plain([pair]), rewards([pair])
  assert len(paid) == 3
  assert paid == pytest.approx([min(s - 0.9, 0) for s in scores], abs=1e-6)


def test_what_makes_no_rewards_is_refused():
  with pytest.raises(UserError, match="chains='wrong': there is no outcome"):
    rl.reward_fn('a PRM', config=RewardConfig(chains='wrong'))
  with pytest.raises(UserError, match="separator='': expected the text betw"):
    rl.reward_fn('a PRM', separator='')
