"""Advantages of tokens by hand, from scores and outcomes."""

import jax.numpy as jnp
import numpy as np
import pytest

from prm_jax.rl import credit
from prm_jax.rl.credit import AdvantageConfig
from prm_jax.rl.findings import Findings, consistent, learned_from, usable
from prm_jax.rl.rewards import CHAINS, FORMS, RewardConfig
from prm_jax.runtime.errors import UserError

# Two chains of one problem: a prompt of one token, steps of two tokens each
# (the second chain has one), an end.
ENDS = np.array([[2, 4, 0], [2, 0, 0]])
MASK = np.array([[True, True, False], [True, False, False]])
WRITTEN = np.array([[0, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0, 0]], bool)
SCORES = np.array([[0.9, 0.5, 7.0], [0.1, np.nan, np.nan]], np.float32)
FINDINGS = Findings(
  SCORES,
  MASK,
  ENDS,
  np.array([1.0, 0.0], np.float32),
  WRITTEN,
  np.zeros((2, 7), np.float32),
)
BASELINE = dict.fromkeys(credit.PROCESS, 'position') | {'to_go': 'group'}
NO_VALUES = np.zeros((2, 7), np.float32)
BOTH = RewardConfig('raw', outcome_weight=1.0, centre=0.0)


def found(config, reward=BOTH, findings=FINDINGS, size=2, share=1.0):
  advantages, returns = credit.token_advantages(
    findings, NO_VALUES, share, size, reward, config
  )
  assert not np.asarray(returns)[:, :].any() or config.estimator == 'gae'
  return np.asarray(advantages)


def test_the_step_of_each_token():
  steps = credit.step_of_tokens(jnp.asarray(ENDS), jnp.asarray(MASK), 7)
  # The prompt's token counts as the first step's; it is not learned from.
  np.testing.assert_array_equal(
    steps, [[0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1, 1]]
  )
  values = jnp.array([[5.0, 6.0], [7.0, 0.0]])
  np.testing.assert_array_equal(
    credit.spread(values, steps),
    [[5, 5, 5, 6, 6, 0, 0], [7, 7, 7, 0, 0, 0, 0]],
  )


@pytest.mark.parametrize(
  ('process', 'baseline', 'first', 'second'),
  [
    # Mean of the first steps 0.5; the second step stands alone.
    ('step', 'position', [0.4, 0.4, 0, 0, 0], [-0.4, -0.4, 0]),
    # Mean of all steps 0.5.
    ('step', 'group', [0.4, 0.4, 0, 0, 0], [-0.4, -0.4, 0]),
    ('to_go', 'group', [0.4, 0.4, 0, 0, 0], [-0.4, -0.4, 0]),
    # Returns 1.4, 0.5, 0 and 0.1, 0; the second chain has ended at the third.
    ('return', 'position', [0.65, 0.65, 0.25, 0.25, 0], [-0.65, -0.65, -0.25]),
    # 1.4 and 0.1, their mean 0.75, for all tokens.
    ('chain', 'group', [0.65] * 5, [-0.65] * 3),
  ],
)
def test_grpo_without_scale_by_hand(process, baseline, first, second):
  config = AdvantageConfig('grpo', process, baseline, scale=False)
  # The outcome: 1 and 0, their mean 0.5.
  expected = np.zeros((2, 7))
  expected[0, 1:6] = 0.5 + np.array(first)
  expected[1, 1:4] = -0.5 + np.array(second)
  np.testing.assert_allclose(found(config), expected, atol=1e-6)


def test_to_go_adds_what_follows():
  scores = np.array([[0.8, 0.6], [0.2, 0.0]], np.float32)
  findings = FINDINGS._replace(
    scores=scores,
    step_mask=np.ones((2, 2), bool),
    step_ends=np.array([[2, 4], [2, 4]]),
    written=np.array([[0, 1, 1, 1, 1, 0, 0]] * 2, bool),
  )
  only = RewardConfig('raw')
  # The mean of all steps is 0.4.
  config = AdvantageConfig('grpo', 'to_go', 'group', scale=False)
  np.testing.assert_allclose(
    found(config, only, findings)[:, 1:5],
    [[0.6, 0.6, 0.2, 0.2], [-0.6, -0.6, -0.4, -0.4]],
    atol=1e-6,
  )
  # Returns 1.4 and 0.6 beside 0.2 and 0.
  config = AdvantageConfig('grpo', 'return', scale=False)
  np.testing.assert_allclose(
    found(config, only, findings)[:, 1:5],
    [[0.6, 0.6, 0.3, 0.3], [-0.6, -0.6, -0.3, -0.3]],
    atol=1e-6,
  )


def test_the_end_is_paid_with_a_potential():
  """Two chains of unequal lengths; their values before a step are compared."""
  config = AdvantageConfig('rloo')
  reward = RewardConfig('potential', centre=0.0)
  found_ = found(config, reward)
  # Values before each position: 0.5, 0.9, 0.5 beside 0.5, 0.1 and nothing.
  expected = np.zeros((2, 7))
  expected[0, 1:6] = 0, 0, -0.8, -0.8, -0.5
  expected[1, 1:4] = 0, 0, 0.8
  np.testing.assert_allclose(found_, expected, atol=1e-6)
  config = AdvantageConfig('grpo', 'return', eps=1e-6)
  # Deviation of 0, 0.4, -0.4, -0.25 and 0 from their positions' means.
  deviation = ((2 * 0.4**2 + 0.25**2) / 4) ** 0.5
  expected[0, 1:6] = 0, 0, -0.4, -0.4, -0.25
  expected[1, 1:4] = 0, 0, 0.4
  np.testing.assert_allclose(
    found(config, reward), expected / deviation, atol=1e-5
  )


def test_rloo_by_hand():
  config = AdvantageConfig('rloo', 'step', 'position')
  expected = np.zeros((2, 7))
  expected[0, 1:6] = 1.0 + np.array([0.8, 0.8, 0, 0, 0])
  expected[1, 1:4] = -1.0 + np.array([-0.8, -0.8, 0])
  np.testing.assert_allclose(found(config), expected, atol=1e-6)


def test_grpo_divides_by_deviations():
  config = AdvantageConfig('grpo', 'step', 'position', scale=True)
  advantages = found(config, RewardConfig('outcome', outcome_weight=1.0))
  # Deviation of (1, 0): sqrt(1 / 2).
  expected = 0.5 / (0.5**0.5 + 0.02)
  np.testing.assert_allclose(advantages[0, 1:6], expected, rtol=1e-5)
  np.testing.assert_allclose(advantages[1, 1:4], -expected, rtol=1e-5)


@pytest.mark.parametrize('estimator', ['rloo', 'grpo'])
@pytest.mark.parametrize('process', credit.PROCESS)
def test_weights_multiply_their_part(estimator, process):
  """Twice the weight gives twice that part's advantage, scaled or not."""
  config = AdvantageConfig(estimator, process, BASELINE[process])
  parts = [
    found(config, RewardConfig('raw', weight, outcome_weight))
    for weight, outcome_weight in ((1, 0), (0, 1), (10, 0.5))
  ]
  assert parts[0].any() and parts[1].any()
  np.testing.assert_allclose(
    parts[2], 10 * parts[0] + 0.5 * parts[1], rtol=1e-5, atol=1e-6
  )


def test_almost_equal_scores_give_small_advantages():
  scores = np.full((2, 3), 0.9995, np.float32)
  scores[0, 0] += 3e-4
  advantages = found(
    AdvantageConfig(), RewardConfig('raw'), FINDINGS._replace(scores=scores)
  )
  assert 0 < np.abs(advantages).max() < 0.01


def test_a_chain_without_steps_is_no_better_than_the_worst():
  """Clip only punishes, so writing no step would be best."""
  scores = np.array([[0.4, 0.1], [0.3, 0.0], [0.0, 0.0]], np.float32)
  findings = Findings(
    scores,
    np.array([[True, True], [True, False], [False, False]]),
    np.array([[2, 4], [2, 0], [0, 0]]),
    np.zeros(3, np.float32),
    np.ones((3, 5), bool),
    np.zeros((3, 5), np.float32),
  )
  config = AdvantageConfig('rloo', 'chain')
  reward = RewardConfig('clip')
  paid = credit.token_advantages(
    findings, np.zeros((3, 5)), 1.0, 3, reward, config
  )
  # Sums -0.5 and -0.2; the lowest for the third.
  np.testing.assert_allclose(paid[0][:, 0], [-0.15, 0.3, -0.15], atol=1e-6)


def test_gae_by_hand():
  config = AdvantageConfig('gae', discount=1.0, trace=1.0)
  values = np.full((2, 7), 0.25, np.float32)
  advantages, returns = credit.token_advantages(
    FINDINGS, values, 1.0, 2, BOTH, config
  )
  # Rewards 0.9 at token 2, 0.5 at 4, 1 for the end at 5; 0.1 at 2.
  np.testing.assert_allclose(
    returns,
    [[0, 2.4, 2.4, 1.5, 1.5, 1, 0], [0, 0.1, 0.1, 0, 0, 0, 0]],
    atol=1e-6,
  )
  punished = FINDINGS._replace(penalties=np.zeros((2, 7), np.float32))
  punished.penalties[0, 1:3] = 0.2
  _, less = credit.token_advantages(punished, values, 1.0, 2, BOTH, config)
  lost = [[0, 0.4, 0.2, 0, 0, 0, 0], [0] * 7]
  np.testing.assert_allclose(returns - less, lost, atol=1e-6)
  raw = np.where(WRITTEN, np.asarray(returns) - 0.25, 0)
  values = raw[WRITTEN]
  expected = np.where(WRITTEN, (raw - values.mean()) / values.std(), 0)
  np.testing.assert_allclose(advantages, expected, atol=1e-4)


def test_with_a_potential_returns_differ_by_outcomes_alone():
  """For chains of any length; a chain's own first step is not in its baseline.

  There are four chains of each of two problems; of the second one has a step.
  """
  lengths = np.array([2, 1, 0, 2, 0, 0, 1, 0])
  mask = np.arange(2) < lengths[:, None]
  scores = np.array(
    [[0.9, 0.1], [0.3, 0], [0, 0], [0.6, 0.7]] + [[0, 0]] * 2 + [[0.8, 0]] * 2,
    np.float32,
  )
  findings = Findings(
    scores,
    mask,
    np.where(mask, [1, 3], 0),
    np.array([1, 0, 0, 1, 0, 0, 1, 0], np.float32),
    np.arange(5) < 2 * lengths[:, None] + 1,  # and the end
    np.zeros((8, 5), np.float32),
  )
  config = AdvantageConfig('gae', trace=1.0)
  reward = RewardConfig('potential', weight=2.0, outcome_weight=3.0, centre=0.5)
  _, returns = credit.token_advantages(
    findings, np.zeros((8, 5)), 1.0, 4, reward, config
  )
  others = [0.45, 0.75, 0.6, 0.6, 0.8, 0.8, 0.5, 0.8]
  expected = 3 * findings.outcomes - 2 * (np.array(others) - 0.5)
  np.testing.assert_allclose(returns[:, 0], expected, atol=1e-6)
  # 0.9 for the first step, -1.6 for the second, 0.8 and the outcome at the end.
  np.testing.assert_allclose(returns[0], [3.1, 3.1, 2.2, 2.2, 3.8], atol=1e-6)
  paid = credit.process_returns(
    scores, mask, findings.outcomes, 4, reward, config
  )
  assert not np.asarray(paid).any()


# A potential's returns differ by outcomes alone; see the test of it above.
@pytest.mark.parametrize('form', sorted({*FORMS} - {'potential', 'outcome'}))
@pytest.mark.parametrize('size', [1, 2, 4])
@pytest.mark.parametrize('chains', CHAINS)
def test_gae_pays_by_steps_whatever_the_process(form, size, chains):
  """The watch says of each chain what GAE pays it."""
  mask = jnp.arange(3) < jnp.array([3, 3, 2, 1])[:, None]
  scores = jnp.array(
    [[0.9, 0.9, 0.9], [0.2, 0.9, 0.9], [0.2, 0.3, 0], [0.6] * 3]
  )
  findings = Findings(
    scores,
    mask,
    jnp.where(mask, jnp.array([1, 3, 5]), 0),
    jnp.array([1.0, 0.0, 0.0, 1.0]),
    jnp.arange(7) <= 2 * mask.sum(1, keepdims=True),  # and the end
    jnp.zeros((4, 7)),
  )
  reward = RewardConfig(form, chains=chains)
  paid = {
    process: credit.process_returns(
      scores,
      mask,
      findings.outcomes,
      size,
      reward,
      AdvantageConfig('gae', process),
    )
    for process in ('auto', 'chain')
  }
  np.testing.assert_array_equal(paid['chain'], paid['auto'])
  config = AdvantageConfig('gae', trace=1.0)
  _, returns = credit.token_advantages(
    findings, jnp.zeros((4, 7)), 1.0, size, reward, config
  )
  np.testing.assert_allclose(paid['auto'], returns[:, 0], atol=1e-6)
  assert chains != 'wrong' or not np.asarray(paid['auto'])[[0, 3]].any()
  assert paid['auto'][2] != 0
  if (form, size, chains) == ('advantage', 1, 'all'):
    # The last score above `centre`, which stands for the value before.
    np.testing.assert_allclose(paid['auto'], [0.4, 0.4, -0.2, 0.1], atol=1e-6)


@pytest.mark.parametrize('form', ['advantage', 'min_form', 'delta'])
def test_the_watch_says_what_returns_are_made_of(form):
  """Between chains of a group it differs as the advantages do."""
  scores = jnp.array([[0.2, 0.9], [0.9, 0.9], [0.6, 0.3], [0.4, 0.5]])
  mask, right = jnp.ones((4, 2), bool), jnp.zeros(4)
  reward = RewardConfig(form, weight=1.0, outcome_weight=0.0, centre=0.5)
  config = AdvantageConfig('rloo', 'return')
  paid = credit.process_returns(scores, mask, right, 2, reward, config)
  findings = credit.Findings(
    scores,
    mask,
    jnp.tile(jnp.array([1, 3]), (4, 1)),
    right,
    jnp.ones((4, 4), bool),
    jnp.zeros((4, 4)),
  )
  advantages, _ = credit.token_advantages(
    findings, jnp.zeros((4, 4)), 1.0, 2, reward, config
  )
  # Of two chains, what the first step's is ahead of the other's.
  gaps = np.asarray(paid).reshape(2, 2) @ [1, -1]
  np.testing.assert_allclose(advantages[::2, 0], gaps, atol=1e-6)


@pytest.mark.parametrize(
  ('estimator', 'expected'),
  # A right and a wrong chain, and 0.4 between their penalties, never scaled.
  [('rloo', 1 - 0.4), ('grpo', 0.5 / (0.5**0.5 + 0.02) - 0.4)],
)
def test_penalties_are_subtracted_from_the_return(estimator, expected):
  penalties = np.zeros((2, 7), np.float32)
  penalties[0, 1:3] = 0.2
  penalties[0, 0] = penalties[0, 6] = 9.0  # not written
  config = AdvantageConfig(estimator, 'chain', scale=True)
  advantages = found(
    config,
    RewardConfig('outcome', outcome_weight=1.0),
    FINDINGS._replace(penalties=penalties),
  )
  np.testing.assert_allclose(advantages[0, 1:6], expected, atol=1e-6)
  np.testing.assert_allclose(advantages[1, 1:4], -expected, atol=1e-6)


@pytest.mark.parametrize('estimator', credit.ESTIMATORS)
@pytest.mark.parametrize('process', credit.PROCESS)
def test_equal_rewards_and_broken_scores(estimator, process):
  """Three groups: an ordinary one, an equal one, one with a NaN."""
  three = Findings(*(np.concatenate([x] * 3) for x in FINDINGS))
  scores = three.scores.copy()
  for rows in (slice(2, 4),):
    three.written[rows] = WRITTEN[1]
    three.step_mask[rows] = MASK[1]
    scores[rows] = SCORES[1]
    three.outcomes[rows] = 1.0
  scores[4, 1] = np.nan
  findings = three._replace(scores=scores)
  config = AdvantageConfig(estimator, process, BASELINE[process])
  values = np.zeros((6, 7), np.float32)
  advantages, returns = credit.token_advantages(
    findings, values, 1.0, 2, BOTH, config
  )
  assert np.isfinite(advantages).all() and np.isfinite(returns).all()
  assert np.asarray(advantages)[:2].any()
  np.testing.assert_array_equal(np.asarray(advantages)[4:], 0)
  np.testing.assert_array_equal(usable(findings, 2), [1, 1, 1, 1, 0, 0])
  if estimator != 'gae':  # which compares with values, not with the group
    np.testing.assert_array_equal(np.asarray(advantages)[2:4], 0)
  else:  # what it does not learn from does not count in the deviation either
    two = Findings(*(x[:4] for x in findings))
    alone, _ = credit.token_advantages(two, values[:4], 1.0, 2, BOTH, config)
    np.testing.assert_allclose(advantages[:4], alone, atol=1e-6)
  assert not np.asarray(advantages)[~findings.written].any()


def four_chains(scores, outcomes):
  """Chains of one step and an end, of one problem."""
  size = len(scores)
  return Findings(
    np.array(scores, np.float32)[:, None],
    np.ones((size, 1), bool),
    np.zeros((size, 1), int),
    np.array(outcomes, np.float32),
    np.ones((size, 2), bool),
    np.zeros((size, 2), np.float32),
  )


@pytest.mark.parametrize(
  ('scores', 'outcomes', 'count', 'expected'),
  [
    # The best of the right ones, the worst of the wrong ones.
    ([0.9, 0.2, 0.3, 0.8], [1, 1, 0, 0], 2, [1, 0, 1, 0]),
    # Of three one more is wrong.
    ([0.9, 0.2, 0.3, 0.8], [1, 1, 0, 0], 3, [1, 0, 1, 1]),
    # One alone is right, and none.
    ([0.1, 0.2, 0.3, 0.8], [1, 0, 0, 0], 3, [1, 1, 1, 0]),
    ([0.1, 0.2, 0.3, 0.8], [0, 0, 0, 0], 2, [1, 1, 0, 0]),
    ([0.1, 0.2, 0.3, 0.8], [1, 1, 1, 1], 3, [0, 1, 1, 1]),
    # The first of equal ones.
    ([0.5, 0.5, 0.5, 0.5], [1, 0, 1, 0], 2, [1, 1, 0, 0]),
  ],
)
def test_chains_whose_steps_agree_with_their_outcome_are_kept(
  scores, outcomes, count, expected
):
  findings = four_chains(scores, outcomes)
  np.testing.assert_array_equal(consistent(findings, 4, count), expected)


def test_only_kept_chains_are_learned_from_and_compared():
  findings = four_chains([0.9, 0.2, 0.3, 0.8], [1, 1, 0, 0])
  config = AdvantageConfig('rloo', keep=0.75)
  only = RewardConfig('outcome', outcome_weight=1.0)
  advantages, _ = credit.token_advantages(
    findings, np.zeros((4, 2)), 1.0, 4, only, config
  )
  np.testing.assert_allclose(advantages[:, 0], [1, 0, -0.5, -0.5])
  learned = learned_from(findings, 4, config.kept_of(4))
  np.testing.assert_array_equal(learned, [1, 0, 1, 1])
  assert AdvantageConfig(keep=0.7).kept_of(8) == 6  # the nearest to 5.6
  findings.scores[1] = np.nan
  assert not np.asarray(learned_from(findings, 4, 3)).any()
  advantages, _ = credit.token_advantages(
    findings, np.zeros((4, 2)), 1.0, 4, only, config
  )
  assert not np.asarray(advantages).any()


def test_a_share_of_the_weight_leaves_the_outcome_as_it_is():
  config, none = AdvantageConfig(), RewardConfig('raw', 0.0, outcome_weight=1.0)
  whole, half = (found(config, share=share) for share in (1.0, 0.5))
  outcome = found(config, none)
  np.testing.assert_allclose(
    half - outcome, (whole - outcome) / 2, rtol=1e-5, atol=1e-6
  )
  shaped = RewardConfig('potential', outcome_weight=1.0, centre=0.0)
  gae = AdvantageConfig('gae', trace=1.0)
  _, returns = credit.token_advantages(FINDINGS, NO_VALUES, 0.5, 2, shaped, gae)
  assert returns[0, 5] == 1 - 0.5 * 0.5  # the end's; its last score is 0.5
  decaying = RewardConfig(decay=True)
  assert [decaying.weight_share(n, 4) for n in (1, 2, 4)] == [1.0, 0.75, 0.25]
  assert RewardConfig().weight_share(4, 4) == 1.0


@pytest.mark.parametrize('estimator', credit.ESTIMATORS)
def test_steps_of_right_chains_may_go_unpaid(estimator):
  findings = four_chains([0.9, 0.2, 0.3, 0.8], [1, 1, 0, 0])
  config = AdvantageConfig(estimator, scale=False, trace=1.0)
  reward = RewardConfig('raw', chains='wrong', centre=0.0)
  advantages, returns = credit.token_advantages(
    findings, np.zeros((4, 2)), 1.0, 4, reward, config
  )
  paid = returns if estimator == 'gae' else advantages
  expected = {
    'gae': [0, 0, 0.3, 0.8],
    'rloo': [0, 0, -0.5, 0.5],
    'grpo': [0, 0, -0.25, 0.25],
  }
  np.testing.assert_allclose(paid[:, 0], expected[estimator], atol=1e-6)


@pytest.mark.parametrize('estimator', credit.ESTIMATORS)
def test_chains_without_steps_and_without_tokens(estimator):
  nothing = FINDINGS._replace(
    step_mask=np.zeros((2, 3), bool), written=np.zeros((2, 7), bool)
  )
  config = AdvantageConfig(estimator)
  assert not found(config, findings=nothing).any()
  unfinished = FINDINGS._replace(
    step_mask=np.array([[True, True, False], [False] * 3])
  )
  advantages = found(config, findings=unfinished)
  assert np.isfinite(advantages).all() and advantages[0, 1:6].any()


def test_the_first_value_is_the_mean_of_first_steps():
  scores = jnp.array([[0.9, 0.5], [0.1, 0.0], [0.7, 0.0], [0.2, 0.2]])
  mask = jnp.array([[True, True], [True, False], [True, False], [False, False]])
  np.testing.assert_allclose(
    credit.first_values(scores, mask, 2), [0.5, 0.5, 0.7, 0.7]
  )


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'estimator': 'ppo'}, "estimator='ppo': expected one of rloo"),
    ({'process': 'token'}, "process='token': expected one of auto"),
    ({'process': 'to_go'}, "baseline='position': with process='to_go' it woul"),
    ({'baseline': 'batch'}, "baseline='batch': expected one of group"),
    ({'trace': 2}, r'trace=2: expected a number in \[0, 1\]'),
    ({'eps': 0}, 'eps=0: expected a number above 0'),
  ],
)
def test_bad_values_are_refused(values, message):
  with pytest.raises(UserError, match=message):
    AdvantageConfig(**values)


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('step_mask', MASK[:, :1]),
    ('step_ends', ENDS[:1]),
    ('outcomes', np.ones((2, 1))),
    ('written', WRITTEN[:1]),
    ('penalties', np.zeros((2, 1))),
  ],
)
def test_findings_of_a_wrong_shape_are_named(name, value):
  findings = FINDINGS._replace(**{name: value})
  with pytest.raises(AssertionError, match=f'token_advantages: {name}'):
    found(AdvantageConfig(), findings=findings)
  with pytest.raises(AssertionError, match=f'usable: {name}'):
    usable(findings, 2)


def test_a_wrong_shape_is_named():
  scores, mask = jnp.asarray(SCORES), jnp.asarray(MASK)
  reward, config = RewardConfig(), AdvantageConfig()
  with pytest.raises(AssertionError, match='token_advantages: values'):
    credit.token_advantages(FINDINGS, NO_VALUES[:1], 1.0, 2, reward, config)
  with pytest.raises(AssertionError, match='first_values: mask'):
    credit.first_values(scores, mask[0], 2)
  with pytest.raises(AssertionError, match='others_first_values: chains'):
    credit.others_first_values(scores, mask, 3, 0.0)
  right = FINDINGS.outcomes
  with pytest.raises(AssertionError, match='process_returns: mask'):
    credit.process_returns(scores, mask[:, :1], right, 2, reward, config)
  with pytest.raises(AssertionError, match='process_returns: outcomes'):
    credit.process_returns(scores, mask, right[:1], 2, reward, config)
  with pytest.raises(AssertionError, match='consistent: chains'):
    consistent(FINDINGS, 3, 1)
  with pytest.raises(AssertionError, match='step_of_tokens: mask'):
    credit.step_of_tokens(jnp.asarray(ENDS), mask[:1], 7)
  with pytest.raises(AssertionError, match='spread: steps'):
    credit.spread(scores, jnp.zeros((1, 7), int))


def test_what_is_paid_without_weight_or_after_a_broken_score():
  config, scores = AdvantageConfig('rloo'), SCORES[:2].copy()
  right, mask = np.zeros(2, np.float32), np.ones_like(MASK[:2])

  def paid(scores, **values):
    reward = RewardConfig(**{'form': 'total', 'centre': 0.0} | values)
    return credit.process_returns(scores, mask, right, 2, reward, config)

  assert paid(scores).all()
  assert not paid(scores, weight=0.0, outcome_weight=1.0).any()
  scores[0, 1] = np.nan
  np.testing.assert_allclose(paid(scores)[0], scores[0, 0], atol=1e-6)
