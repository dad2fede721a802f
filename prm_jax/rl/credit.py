"""From what was found of a batch of chains to an advantage of every token.

    step scores, outcomes -> rewards.py -> advantages.py -> [B, T]

Two parts are added: the outcome's, one number for a whole chain, and that of
the process, which may be told apart by step. By rloo and grpo each is compared
with its own group first, and weighted then: a division by a deviation would
take the weight away again. Groups are G chains of each problem, one after
another.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from prm_jax.rl import advantages, rewards
from prm_jax.rl.rewards import RewardConfig
from prm_jax.runtime.errors import UserError

ESTIMATORS = ('rloo', 'grpo', 'gae')
PROCESS = ('chain', 'to_go', 'step')
BASELINES = ('group', 'position')


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
  """How rewards become advantages.

  Attributes:
    estimator: rloo (a baseline of the others' rewards), grpo (relative to the
      group's mean and deviation) or gae (a value head's).
    process: whom a step's reward is credited to, of rloo and grpo: all tokens
      of its 'chain' (the sum over its steps), the tokens up to it ('to_go':
      what follows from each step on), or its own ('step'). In to_go each step
      is compared before it is summed (Shao et al., 2024): a chain that ends
      where others go on does not lose what they are paid later, so forms that
      pay late (delta, min_form) favour it even where all sums are equal.
    baseline: what a step's reward is compared with in to_go and step: all steps
      of the 'group', or those at its 'position'. The former favours short
      chains where later steps score lower.
    scale: whether grpo divides by the deviation.
    eps: added to that deviation. As small as is usual, 1e-4, it makes much of
      groups whose scores differ by a thousandth.
    discount, trace: gamma and lambda of gae.
  """

  estimator: str = 'grpo'
  process: str = 'step'
  baseline: str = 'position'
  scale: bool = True
  eps: float = 0.02
  discount: float = 1.0
  trace: float = 0.95

  def __post_init__(self) -> None:
    for name, choices in (
      ('estimator', ESTIMATORS),
      ('process', PROCESS),
      ('baseline', BASELINES),
    ):
      if getattr(self, name) not in choices:
        raise UserError(
          f'advantage.{name}={getattr(self, name)!r}: expected one of '
          f'{", ".join(choices)}'
        )
    if self.eps <= 0:
      raise UserError(f'advantage.eps={self.eps}: expected a number above 0')
    for name in ('discount', 'trace'):
      if not 0 <= getattr(self, name) <= 1:
        raise UserError(
          f'advantage.{name}={getattr(self, name)}: expected a number in [0, 1]'
        )


class Findings(NamedTuple):
  """What is known of B chains once they are written."""

  scores: jax.Array  # [B, P] in [0, 1]; of an implicit PRM, rewards
  step_mask: jax.Array  # [B, P] bool, steps come first
  step_ends: jax.Array  # [B, P] index of the token that ends each
  outcomes: jax.Array  # [B] 1 right, 0 wrong
  written: jax.Array  # [B, T] bool, tokens of the policy
  penalties: jax.Array  # [B, T] that are taken from the rewards (KL)


def usable(
  findings: Findings,
  size: int,
) -> jax.Array:  # [B] bool
  """Whether all scores of a chain's group are finite.

  A group is learned from as a whole or not at all: without one of its chains
  its baseline would be another.
  """
  fine = jnp.isfinite(findings.scores) | ~findings.step_mask
  groups = advantages.group(fine.all(1), size).all(1)
  return jnp.repeat(groups, size)


def first_values(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
  size: int,
) -> jax.Array:  # [B]
  """The value of each problem before any step, where the PRM says none.

  The mean score of the first steps in the group, which are drawn by the policy
  itself.
  """
  first = advantages.group(jnp.where(mask[:, 0], scores[:, 0], 0.0), size)
  count = jnp.maximum(advantages.group(mask[:, 0], size).sum(1), 1)
  return jnp.repeat(first.sum(1) / count, size)


def others_first_values(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
  size: int,
  otherwise: float,
) -> jax.Array:  # [B]
  """`first_values` of each chain by the others of its group alone.

  So that a chain's own first step is not taken from what it is paid. Where no
  other chain has a step, `otherwise`.
  """
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
  """The step that each token belongs to; P of what follows the last one."""
  P = step_ends.shape[1]
  ends = jnp.where(mask, step_ends, length)
  before = (ends[:, :, None] < jnp.arange(length)).sum(1)  # steps that ended
  return jnp.where(before < mask.sum(1, keepdims=True), before, P)


def spread(
  values: jax.Array,  # [B, P]
  steps: jax.Array,  # [B, T] from `step_of_tokens`
) -> jax.Array:  # [B, T]
  """Each step's value at all of its tokens, 0 behind the last."""
  padded = jnp.pad(values, ((0, 0), (0, 1)))
  return jnp.take_along_axis(padded, steps, 1)


def process_returns(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
  size: int,
  reward: RewardConfig,
  config: AdvantageConfig,
) -> jax.Array:  # [B]
  """What each chain is paid for its steps, compared with nothing.

  The sum of what its steps are credited with: `to_go` counts a reward for each
  step that leads to it. Scores that are not finite count as none. By a
  potential all chains are paid the same on the whole: 0.
  """
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
  """Advantages, and the returns that a value head is to learn.

  Both are 0 where nothing was written, and in groups that are not `usable`.
  Groups whose rewards are equal have advantage 0 by rloo and grpo. A chain
  without steps is rewarded as the worst of its group is, where chains are
  compared: some forms only take.
  """
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
    # Behind the last step a chain still has to end, which decides the outcome.
    end = reward.weight * end + reward.outcome_weight * findings.outcomes
    tokens += rewards.at_last(end, written)
    found, returns = advantages.generalised(
      tokens - penalties, values, written, config.discount, config.trace
    )
    found = advantages.whitened(found, counted)
  else:
    start = first_values(scores, mask, size)
    step_rewards = rewards.process_rewards(scores, mask, start, reward)
    chain = reward.outcome_weight * _relative(findings.outcomes, size, config)
    # As they are: what differs by penalties alone is not to be scaled up.
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
  """Sums over steps; of chains without any the lowest of their group."""
  sums, has_steps = step_rewards.sum(1), mask.any(1)
  others = advantages.group(jnp.where(has_steps, sums, jnp.inf), size).min(1)
  lowest = jnp.where(jnp.isfinite(others), others, 0.0)
  return jnp.where(has_steps, sums, jnp.repeat(lowest, size))


def _relative(
  returns: jax.Array, size: int, config: AdvantageConfig
) -> jax.Array:
  if config.estimator == 'rloo':
    return advantages.leave_one_out(returns, size)
  return advantages.group_relative(returns, size, config.scale, config.eps)


def _relative_steps(
  step_rewards: jax.Array, mask: jax.Array, size: int, config: AdvantageConfig
) -> jax.Array:
  by_position = config.baseline == 'position'
  if config.estimator == 'rloo':
    return advantages.steps_leave_one_out(step_rewards, mask, size, by_position)
  return advantages.steps_relative(
    step_rewards, mask, size, by_position, config.scale, config.eps
  )
