"""Reward functions in the forms of other libraries' loops.

Each is called as its library calls it, in the version that is named: TRL 1.16
(`GRPOTrainer._calculate_rewards`), verl 0.9.1 (`NaiveRewardManager`), tunix
0.1.7 (`rl/grpo`), MaxText (its RL's `reward_functions`).
"""

import math

import pytest

from prm_jax.rl import adapters
from prm_jax.rl.credit import AdvantageConfig
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
  with pytest.raises(UserError, match="separator='': expected the text"):
    adapters.by_token([1.0], ['a'], separator='')


# The end of a line belongs to the step that it ends.
PIECES = [['a', '\n', 'c', '\n', ''], ['d']]


def test_tokens_are_credited_with_their_step_beside_the_groups():
  found = adapters.token_advantages([[1.0, 0.0], [0.0]], PIECES, 2)
  # 1 and 0 at the first position differ by 1/2 from their mean, which is also
  # the deviation; the second step has nothing beside it.
  share = 0.5 / (0.5 + 0.02)
  assert found[0] == pytest.approx([share, share, 0, 0, 0], abs=1e-6)
  assert found[1] == pytest.approx([-share], abs=1e-6)


def test_other_ways_to_compare_steps():
  config = AdvantageConfig(estimator='rloo', process='return')
  found = adapters.token_advantages(
    [[1.0, 0.5], [0.25]], PIECES, 2, config=config
  )
  # What is paid from each position on: 1.5 and 0.5, and 0.25 and nothing.
  assert found[0] == pytest.approx([1.25, 1.25, 0.5, 0.5, 0])
  assert found[1] == pytest.approx([-1.25])


def test_a_group_that_the_prm_cannot_read_teaches_nothing():
  pairs = [[math.nan], [1.0], [1.0], [0.0]]
  found = adapters.token_advantages(pairs, [['a']] * 4, 2)
  assert found[:2] == [[0.0], [0.0]]
  assert found[2][0] > 0 > found[3][0]


def test_completions_without_steps_or_tokens():
  found = adapters.token_advantages([[], [1.0]], [[], ['a']], 2)
  assert found[0] == []
  assert adapters.token_advantages([[], []], [['', '\n'], []], 2) == [
    [0.0, 0.0],
    [],
  ]
  assert adapters.token_advantages([], [], 2) == []


@pytest.mark.parametrize(
  ('size', 'pieces', 'config', 'why'),
  [
    (2, 3, {}, 'size=2: expected a divisor of the 3 completions'),
    (0, 3, {}, 'size=0: expected a divisor of the 3 completions'),
    (3, 2, {}, 'pieces=2: expected those of 3 completions'),
    (3, 3, {'estimator': 'gae'}, "config.estimator='gae': expected 'grpo'"),
    (3, 3, {'keep': 0.5}, 'config.keep=0.5: expected 1'),
  ],
)
def test_what_cannot_be_compared_is_one_line(size, pieces, config, why):
  with pytest.raises(UserError, match=why):
    adapters.token_advantages(
      [[1.0]] * 3, [['a']] * pieces, size, config=AdvantageConfig(**config)
    )


WORDS = {1: 'a', 2: 'b', 3: '\n', 4: ''}


def test_the_text_that_a_token_adds():
  # Words with blanks between them, but not around the end of a line.
  def decode(tokens):
    text = ' '.join(WORDS[t] for t in tokens if WORDS[t])
    return text.replace(' \n', '\n').replace('\n ', '\n')

  tokens = [1, 2, 3, 1, 4]
  pieces = adapters.token_texts(tokens, decode)
  assert pieces == ['a', ' b', '\n', 'a', '']
  assert ''.join(pieces) == decode(tokens)


@pytest.mark.parametrize('text', ['xé\ny', 'a\n\u3000\nb', 'ки', 'é'])
def test_the_token_that_completes_a_character_has_it(text):
  def decode(tokens):
    return bytes(tokens).decode(errors='replace')

  pieces = adapters.token_texts(text.encode(), decode)
  assert len(pieces) == len(text.encode())
  assert ''.join(pieces) == text
  assert [piece for piece in pieces if piece] == list(text)


def test_a_character_that_never_ends_is_there():
  def decode(tokens):
    return bytes(tokens).decode(errors='replace')

  tokens = 'xé'.encode()[:-1]
  assert ''.join(adapters.token_texts(tokens, decode)) == decode(tokens)
