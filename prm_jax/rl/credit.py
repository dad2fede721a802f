"""Turns scores and outcomes of chains into an advantage of every token.

    step scores, outcomes -> rewards.py -> advantages.py -> [B, T]

An advantage is a sum of two parts: the outcome's, one number for a whole chain,
and the process's, which may differ from step to step. With rloo and grpo each
is first compared within its group and then weighted, because dividing by a
deviation would undo the weight. Groups are G chains of each problem, one after
another.

Every function checks the shapes of its arguments, also under `jax.jit`, and
raises AssertionError with its own name.
"""

import dataclasses
from typing import Annotated, NamedTuple

import chex
import jax
import jax.numpy as jnp

from prm_jax.rl import advantages, rewards
from prm_jax.rl.rewards import RewardConfig
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, one_of, within

ESTIMATORS = ('rloo', 'grpo', 'gae')
PROCESS = ('chain', 'to_go', 'step')
BASELINES = ('group', 'position')


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
  """Says how rewards become advantages.

  Attributes:
    estimator: rloo (the mean of the others as baseline), grpo (relative to the
      group's mean and deviation) or gae (with a value head).
    process: which tokens a step's reward credits, in rloo and grpo: all tokens
      of its 'chain' (which gets the sum over its steps), the tokens up to it
      ('to_go': each step is credited with all later rewards), or its own
      ('step'). In to_go each step is compared before the sum is taken (Shao et
      al., 2024). So a chain that ends early does not lose the later rewards of
      longer chains, and forms that pay late (delta, min_form) favour it even if
      all sums are equal.
    baseline: what a step's reward is compared with in to_go and step: all steps
      of the 'group', or those at its 'position'. The former favours short
      chains if later steps score lower.
    scale: whether grpo divides by the deviation.
    eps: added to that deviation. At the usual 1e-4, groups whose scores differ
      by a thousandth get large advantages.
    discount: gamma of gae.
    trace: lambda of gae.
  """

  estimator: Annotated[str, one_of(*ESTIMATORS)] = 'grpo'
  process: Annotated[str, one_of(*PROCESS)] = 'step'
  baseline: Annotated[str, one_of(*BASELINES)] = 'position'
  scale: bool = True
  eps: Annotated[float, above(0)] = 0.02
  discount: Annotated[float, within(0, 1)] = 1.0
  trace: Annotated[float, within(0, 1)] = 0.95

  def __post_init__(self) -> None:
    checks.check(self)


class Findings(NamedTuple):
  """Holds the scores and outcomes of B rated chains."""

  scores: jax.Array  # [B, P] in [0, 1]; rewards, if the PRM is implicit
  step_mask: jax.Array  # [B, P] bool, steps come first
  step_ends: jax.Array  # [B, P] index of the token that ends each
  outcomes: jax.Array  # [B] 1 right, 0 wrong
  written: jax.Array  # [B, T] bool, tokens of the policy
  penalties: jax.Array  # [B, T] that are subtracted from the rewards (KL)


def _check_findings(name: str, findings: Findings) -> None:
  """Raises AssertionError if the shapes do not match."""
  (B, P), T = findings.scores.shape, findings.written.shape[1]
  for field, shape in (
    ('step_mask', (B, P)),
    ('step_ends', (B, P)),
    ('outcomes', (B,)),
    ('written', (B, T)),
    ('penalties', (B, T)),
  ):
    chex.assert_shape(
      getattr(findings, field), shape, custom_message=f'{name}: {field}'
    )


def _check_steps(
  name: str, scores: jax.Array, mask: jax.Array, size: int
) -> None:
  """Raises AssertionError unless both are [B, P], B a multiple of size."""
  chex.assert_rank(scores, 2, custom_message=f'{name}: scores')
  chex.assert_shape(mask, scores.shape, custom_message=f'{name}: mask')
  advantages.check_groups(name, scores, size)


def usable(
  findings: Findings,
  size: int,
) -> jax.Array:  # [B] bool
  """Says of each chain whether all scores of its group are finite.

  A group is used as a whole or not at all, because leaving out one of its
  chains would change the baseline.
  """
  _check_findings('usable', findings)
  advantages.check_groups('usable', findings.scores, size)
  fine = jnp.isfinite(findings.scores) | ~findings.step_mask
  groups = advantages.group(fine.all(1), size).all(1)
  return jnp.repeat(groups, size)


def first_values(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
  size: int,
) -> jax.Array:  # [B]
  """Estimates the value of each problem before any step.

  A PRM has no score for that. The estimate is the mean score of the first steps
  in the group, which the policy itself has drawn.
  """
  _check_steps('first_values', scores, mask, size)
  first = advantages.group(jnp.where(mask[:, 0], scores[:, 0], 0.0), size)
  count = jnp.maximum(advantages.group(mask[:, 0], size).sum(1), 1)
  return jnp.repeat(first.sum(1) / count, size)


def others_first_values(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
  size: int,
  otherwise: float,
) -> jax.Array:  # [B]
  """Returns `first_values` of each chain from the others of its group.

  So a chain's own first step does not lower its reward. If no other chain has a
  step, the value is `otherwise`.
  """
  _check_steps('others_first_values', scores, mask, size)
  here = mask[:, 0]
  first = advantages.group(jnp.where(here, scores[:, 0], 0.0), size)
  count = advantages.group(here, size)
  others = first.sum(1, keepdims=True) - first
  many = count.sum(1, keepdims=True) - count
  value = jnp.where(many > 0, others / jnp.maximum(many, 1), otherwise)
  return value.reshape(-1)


def step_of_tokens(
  step_ends: jax.Array,  # [B, P] ascending where masked in
  mask: jax.Array,  # [B, P] bool
  length: int,  # T
) -> jax.Array:  # [B, T]
  """Returns the step that each token belongs to; P after the last step."""
  chex.assert_rank(step_ends, 2, custom_message='step_of_tokens: step_ends')
  chex.assert_shape(
    mask, step_ends.shape, custom_message='step_of_tokens: mask'
  )
  P = step_ends.shape[1]
  ends = jnp.where(mask, step_ends, length)
  before = (ends[:, :, None] < jnp.arange(length)).sum(1)  # steps that ended
  return jnp.where(before < mask.sum(1, keepdims=True), before, P)


def spread(
  values: jax.Array,  # [B, P]
  steps: jax.Array,  # [B, T] from `step_of_tokens`
) -> jax.Array:  # [B, T]
  """Copies each step's value to all of its tokens; 0 after the last step."""
  chex.assert_rank(values, 2, custom_message='spread: values')
  chex.assert_shape(steps, (len(values), None), custom_message='spread: steps')
  padded = jnp.pad(values, ((0, 0), (0, 1)))
  return jnp.take_along_axis(padded, steps, 1)


def process_returns(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
  size: int,
  reward: RewardConfig,
  config: AdvantageConfig,
) -> jax.Array:  # [B]
  """Returns each chain's total process reward, without any baseline.

  It is the sum of the rewards that its steps are credited with; in `to_go` a
  reward counts once for each step up to it. Scores that are not finite count as
  missing. A potential pays every chain the same in total: 0.
  """
  _check_steps('process_returns', scores, mask, size)
  if reward.form == 'potential':
    return jnp.zeros(len(scores))
  mask = mask & jnp.isfinite(scores)
  scores = jnp.where(mask, scores, 0.0)
  start = first_values(scores, mask, size)
  paid = rewards.process_rewards(scores, mask, start, reward)
  if config.process == 'to_go':
    paid = advantages.rewards_to_go(paid)
  return jnp.where(mask, paid, 0.0).sum(1)


def token_advantages(
  findings: Findings,
  values: jax.Array,  # [B, T] of a value head; read by gae only
  size: int,
  reward: RewardConfig,
  config: AdvantageConfig,
) -> tuple[jax.Array, jax.Array]:  # [B, T], [B, T]
  """Returns advantages, and the returns that a value head learns.

  Both are 0 for tokens that the policy did not write, and in groups that are
  not `usable`. With rloo and grpo, groups with equal rewards have advantage 0.
  When whole chains are compared, a chain without steps gets the lowest reward
  of its group, or else it would be the best under forms that only punish.
  """
  _check_findings('token_advantages', findings)
  chex.assert_shape(
    values, findings.written.shape, custom_message='token_advantages: values'
  )
  mask, written = findings.step_mask, findings.written
  fine = usable(findings, size)
  scores = jnp.where(mask & fine[:, None], findings.scores, 0.0)
  penalties = jnp.where(written, findings.penalties, 0.0)
  counted = written & fine[:, None]
  if config.estimator == 'gae':
    start = others_first_values(scores, mask, size, reward.centre)
    steps, end = rewards.step_and_end_rewards(scores, mask, start, reward)
    tokens = rewards.to_tokens(
      reward.weight * steps, findings.step_ends, mask, written.shape[1]
    )
    # After its last step a chain still has to end, which decides the outcome.
    end = reward.weight * end + reward.outcome_weight * findings.outcomes
    tokens += rewards.at_last(end, written)
    found, returns = advantages.gae(
      tokens - penalties, values, written, config.discount, config.trace
    )
    found = advantages.whiten(found, counted)
  else:
    start = first_values(scores, mask, size)
    step_rewards = rewards.process_rewards(scores, mask, start, reward)
    chain = reward.outcome_weight * _relative(findings.outcomes, size, config)
    # Never scaled: groups that differ in penalties alone would be scaled up.
    chain -= advantages.leave_one_out(penalties.sum(1), size)
    if config.process == 'chain':
      paid = _whole_chains(step_rewards, mask, size)
      chain += reward.weight * _relative(paid, size, config)
    found = jnp.broadcast_to(chain[:, None], written.shape)
    if config.process != 'chain':
      centred = _relative_steps(step_rewards, mask, size, config)
      if config.process == 'to_go':
        centred = advantages.rewards_to_go(centred)
      steps = step_of_tokens(findings.step_ends, mask, written.shape[1])
      found += reward.weight * spread(jnp.where(mask, centred, 0.0), steps)
    returns = jnp.zeros_like(values)
  return jnp.where(counted, found, 0.0), jnp.where(counted, returns, 0.0)


def _whole_chains(
  step_rewards: jax.Array, mask: jax.Array, size: int
) -> jax.Array:  # [B]
  """Sums over steps; a chain without steps gets its group's lowest sum."""
  sums, has_steps = step_rewards.sum(1), mask.any(1)
  others = advantages.group(jnp.where(has_steps, sums, jnp.inf), size).min(1)
  lowest = jnp.where(jnp.isfinite(others), others, 0.0)
  return jnp.where(has_steps, sums, jnp.repeat(lowest, size))


def _relative(
  returns: jax.Array, size: int, config: AdvantageConfig
) -> jax.Array:
  """Compares the returns of whole chains within their group."""
  if config.estimator == 'rloo':
    return advantages.leave_one_out(returns, size)
  return advantages.group_relative(returns, size, config.scale, config.eps)


def _relative_steps(
  step_rewards: jax.Array, mask: jax.Array, size: int, config: AdvantageConfig
) -> jax.Array:
  """Compares the rewards of steps within their group."""
  by_position = config.baseline == 'position'
  if config.estimator == 'rloo':
    return advantages.steps_leave_one_out(step_rewards, mask, size, by_position)
  return advantages.steps_relative(
    step_rewards, mask, size, by_position, config.scale, config.eps
  )
