"""Reward functions in the forms of other libraries' loops.

Each is called as its library calls it, in the version that is named: TRL 1.16
(`GRPOTrainer._calculate_rewards`), verl 0.9.1 (`NaiveRewardManager`), tunix
0.1.7 (`rl/grpo`), MaxText (its RL's `reward_functions`).
"""

import math

import pytest

from prm_jax.rl import adapters
from prm_jax.runtime.errors import UserError

PAID = {
  'all right': [0.9, 0.5, 0.8],
  'nothing': [],
  'too long': [math.nan, math.nan],
}


def rewards(pairs):
  return [PAID[completion] for _, completion in pairs]


PROMPTS, COMPLETIONS = ['p'] * 3, [*PAID]


def test_trl_passes_columns_and_reads_none_as_no_reward():
  reward = adapters.trl(rewards, name='steps')
  found = reward(
    prompts=PROMPTS,
    completions=COMPLETIONS,
    completion_ids=[[1]] * 3,
    trainer_state=object(),
    answer=['4'] * 3,
  )
  assert found == [pytest.approx(0.5), 0.0, None]
  assert reward.__name__ == 'steps'


def test_tunix_and_maxtext_read_a_float_each():
  reward = adapters.tunix(rewards, 'mean', unread=-1.0)
  wanted = [pytest.approx(2.2 / 3), 0.0, -1.0]
  assert (
    reward(prompts=PROMPTS, completions=COMPLETIONS, answer=['4']) == wanted
  )
  assert reward(PROMPTS, COMPLETIONS, object(), answer=['4']) == wanted


def test_verl_calls_it_for_one_completion():
  compute_score = adapters.verl(rewards, 'last')
  found = compute_score(
    data_source='gsm8k',
    solution_str='all right',
    ground_truth='4',
    extra_info={'question': 'p', 'index': 3},
  )
  assert found == {
    'score': pytest.approx(0.8),
    'prm_lowest': 0.5,
    'prm_steps': 3.0,
  }
  # Numbers for every completion, which verl makes arrays of.
  unread = compute_score('gsm8k', 'too long', '4', {'question': 'p'})
  assert unread == {'score': 0.0, 'prm_lowest': 0.0, 'prm_steps': 2.0}
  with pytest.raises(UserError, match="expected the problem under 'question'"):
    compute_score('gsm8k', 'all right', '4', extra_info={'index': 3})


@pytest.mark.parametrize(
  ('how', 'expected'),
  [
    ('min', 0.5),
    ('prod', 0.36),
    ('mean', 2.2 / 3),
    ('sum', 2.2),
    ('last', 0.8),
    ('max', 0.9),
  ],
)
def test_one_number_for_a_chain(how, expected):
  found = adapters.chain_reward(PAID['all right'], how)
  assert found == pytest.approx(expected, rel=1e-6)


def test_a_product_of_rewards_may_be_negative():
  assert adapters.chain_reward([-0.5, 0.5], 'prod') == -0.25


def test_an_unknown_aggregate_is_one_line():
  with pytest.raises(UserError, match="how='least': expected one of min"):
    adapters.trl(rewards, 'least')


@pytest.mark.parametrize(
  ('pieces', 'paid', 'expected'),
  [
    (['a', 'b', '\n', 'c'], [1.0, 2.0], [0, 1.0, 0, 2.0]),
    # A token may hold the end of a step and what follows it.
    (['ab', 'c\n', 'd'], [1.0, 2.0], [0, 1.0, 2.0]),
    (['a\nb\nc'], [1.0, 2.0, 3.0], [6.0]),
    # Blank lines are no steps.
    (['\n', 'a', '\n\n', 'b', '\n'], [1.0, 2.0], [0, 1.0, 0, 2.0, 0]),
    ([], [], []),
  ],
)
def test_rewards_of_tokens(pieces, paid, expected):
  assert adapters.by_token(paid, pieces) == expected


def test_rewards_of_another_split_are_refused():
  with pytest.raises(UserError, match='the completion has 2 steps'):
    adapters.by_token([1.0], ['a', '\n', 'b'])
