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
from typing import Annotated

import chex
import jax
import jax.numpy as jnp

from prm_jax.rl import advantages, rewards
from prm_jax.rl.findings import (
  Findings,
  check_findings,
  consistent,
  usable,
)
from prm_jax.rl.rewards import RewardConfig
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, above_up_to, one_of, within

ESTIMATORS = ('rloo', 'grpo', 'gae')
PROCESS = ('auto', 'chain', 'return', 'to_go', 'step')
BASELINES = ('group', 'position')


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
  """Says how rewards become advantages.

  Attributes:
    estimator: rloo (the mean of the others as baseline), grpo (relative to the
      group's mean and deviation) or gae (with a value head).
    process: which tokens a step's reward credits, in rloo and grpo.
      'step': the step's own tokens, by its reward minus the baseline.
      'chain': all tokens of the chain, by the sum of its rewards.
      'return': the step's tokens, by the sum of the rewards from this step on,
      minus the mean of these sums at the same position in the group (in rloo,
      in its other chains). A chain that has ended counts as 0, so chains of
      equal sums are equally good. One without any step has the sum 0, which is
      better than that of bad steps.
      'to_go': the step's tokens, by the sum over this and all later steps of
      reward minus the mean over the group's steps (Shao et al., 2024), so the
      number of steps matters.
      'auto': 'return' if `RewardConfig.is_summed`, otherwise 'step'.
    baseline: what 'step' subtracts: the mean over all steps of the 'group',
      which favours short chains if later steps score lower, or over the steps
      at the same 'position'. 'to_go' takes 'group' alone.
    scale: whether grpo divides by the deviation.
    eps: added to that deviation. At the usual 1e-4, groups whose scores differ
      by a thousandth get large advantages.
    keep: share of the chains of each group that are learned from; below 1, see
      `findings.consistent`.
    discount: gamma of gae.
    trace: lambda of gae.
  """

  estimator: Annotated[str, one_of(*ESTIMATORS)] = 'grpo'
  process: Annotated[str, one_of(*PROCESS)] = 'auto'
  baseline: Annotated[str, one_of(*BASELINES)] = 'position'
  scale: bool = True
  eps: Annotated[float, above(0)] = 0.02
  keep: Annotated[float, above_up_to(0, 1)] = 1.0
  discount: Annotated[float, within(0, 1)] = 1.0
  trace: Annotated[float, within(0, 1)] = 0.95

  def __post_init__(self) -> None:
    checks.check(self)
    groups = self.estimator != 'gae'  # which reads neither
    if groups and self.process == 'to_go' and self.baseline != 'group':
      checks.fail(
        'baseline',
        self.baseline,
        "with process='to_go' it would tax every further step; expected "
        "'group', or process='return'",
      )

  def kept_of(self, size: int) -> int:
    """Returns how many chains of a group are learned from, at least one."""
    return max(1, round(self.keep * size))


def _check_steps(
  name: str, scores: jax.Array, mask: jax.Array, size: int
) -> None:
  """Raises AssertionError unless both are [B, P], B a multiple of size."""
  rewards.check_steps(name, scores, mask)
  advantages.check_groups(name, scores, size)


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
  """Returns the step that each token belongs to.

  Tokens after the last of n steps, such as the end token, have number n.
  """
  chex.assert_rank(step_ends, 2, custom_message='step_of_tokens: step_ends')
  chex.assert_shape(
    mask, step_ends.shape, custom_message='step_of_tokens: mask'
  )
  ends = jnp.where(mask, step_ends, length)
  return (ends[:, :, None] < jnp.arange(length)).sum(1)  # steps that ended


def spread(
  values: jax.Array,  # [B, P], of steps and perhaps of the end
  steps: jax.Array,  # [B, T] from `step_of_tokens`
) -> jax.Array:  # [B, T]
  """Copies each step's value to all of its tokens; those beyond P get 0."""
  chex.assert_rank(values, 2, custom_message='spread: values')
  chex.assert_shape(steps, (len(values), None), custom_message='spread: steps')
  padded = jnp.pad(values, ((0, 0), (0, 1)))
  return jnp.take_along_axis(padded, steps, 1)


def process_returns(
  scores: jax.Array,  # [B, P]
  mask: jax.Array,  # [B, P] bool
  outcomes: jax.Array,  # [B] 1 right, 0 wrong
  size: int,
  reward: RewardConfig,
  config: AdvantageConfig,
) -> jax.Array:  # [B]
  """Returns what each chain is paid for its steps, without any baseline.

  It is the sum of its process rewards, before `reward.weight`; where that is 0,
  nothing is paid. A score that is not finite and those after it count as
  missing. A potential adds the same -phi_0 to every chain of a problem, so it
  counts as 0. A chain without steps is paid 0, or the lowest of its group where
  whole chains are compared. The form 'advantage' starts from the value before
  the first step that `token_advantages` takes with the same estimator.
  """
  _check_steps('process_returns', scores, mask, size)
  chex.assert_shape(
    outcomes, scores.shape[:1], custom_message='process_returns: outcomes'
  )
  if reward.form == 'potential' or not reward.weight:
    return jnp.zeros(len(scores))
  mask = jnp.cumprod(mask & jnp.isfinite(scores), 1).astype(bool)
  if reward.chains == 'wrong':
    mask &= outcomes[:, None] < 0.5
  scores = jnp.where(mask, scores, 0.0)
  # GAE has no use for `advantage.process`.
  process = '' if config.estimator == 'gae' else credited(reward, config)
  # The same start as in `_token_advantages` and `_process`.
  if config.estimator == 'gae':
    start = others_first_values(scores, mask, size, reward.centre)
  elif process == 'return':
    start = jnp.full(len(scores), reward.centre)
  else:
    start = first_values(scores, mask, size)
  paid = rewards.process_rewards(scores, mask, start, reward)
  if process == 'chain':
    return _whole_chains(paid, mask, size)
  return jnp.where(mask, paid, 0.0).sum(1)


def credited(reward: RewardConfig, config: AdvantageConfig) -> str:
  """Returns `config.process`, with 'auto' resolved."""
  if config.process != 'auto':
    return config.process
  return 'return' if reward.is_summed else 'step'


def token_advantages(
  findings: Findings,
  values: jax.Array,  # [B, T] of a value head; read by gae only
  share: jax.Array | float,  # of the process reward's weight
  size: int,
  reward: RewardConfig,
  config: AdvantageConfig,
) -> tuple[jax.Array, jax.Array]:  # [B, T], [B, T]
  """Returns advantages, and the returns that a value head learns.

  Both are 0 for tokens that the policy did not write, and in chains that are
  not `learned_from`. With rloo and grpo, groups with equal rewards have
  advantage 0. When whole chains are compared, a chain without steps gets the
  lowest reward of its group, or else it would be the best under forms that only
  punish.
  """
  check_findings('token_advantages', findings)
  chex.assert_shape(
    values, findings.written.shape, custom_message='token_advantages: values'
  )
  count = config.kept_of(size)
  if count == size:
    return _token_advantages(findings, values, share, size, reward, config)
  # The kept chains of every group, as groups of their own.
  kept = advantages.group(consistent(findings, size, count), size)
  kept = jnp.argsort(~kept, axis=1)[:, :count]
  rows = (kept + size * jnp.arange(len(kept))[:, None]).reshape(-1)
  fine = usable(findings, size)[:, None]
  findings = findings._replace(written=findings.written & fine)
  some = jax.tree.map(lambda x: x[rows], findings)
  found = _token_advantages(some, values[rows], share, count, reward, config)
  zeros = jnp.zeros(findings.written.shape)
  return tuple(zeros.at[rows].set(x) for x in found)


def _token_advantages(
  findings: Findings,
  values: jax.Array,
  share: jax.Array | float,
  size: int,
  reward: RewardConfig,
  config: AdvantageConfig,
) -> tuple[jax.Array, jax.Array]:
  """Returns `token_advantages` of groups that are learned from as a whole."""
  fine = usable(findings, size)
  written, counted = findings.written, findings.written & fine[:, None]
  mask = findings.step_mask
  findings = findings._replace(
    scores=jnp.where(mask & fine[:, None], findings.scores, 0.0)
  )
  if reward.chains == 'wrong':
    wrong = findings.outcomes[:, None] < 0.5
    findings = findings._replace(step_mask=mask & wrong)
  penalties = jnp.where(written, findings.penalties, 0.0)
  weight = share * reward.weight
  if config.estimator == 'gae':
    scores, paid = findings.scores, findings.step_mask
    start = others_first_values(scores, paid, size, reward.centre)
    steps, end = rewards.step_and_end_rewards(scores, paid, start, reward)
    tokens = rewards.to_tokens(
      weight * steps, findings.step_ends, paid, written.shape[1]
    )
    # After its last step a chain still has to end, which decides the outcome.
    end = weight * end + reward.outcome_weight * findings.outcomes
    tokens += rewards.at_last(end, written)
    found, returns = advantages.gae(
      tokens - penalties, values, written, config.discount, config.trace
    )
    found = advantages.whiten(found, counted)
  else:
    outcome = _relative(findings.outcomes, size, config)
    # Never scaled: groups that differ in penalties alone would be scaled up.
    penalty = advantages.leave_one_out(penalties.sum(1), size)
    found = (reward.outcome_weight * outcome - penalty)[:, None]
    found += weight * _process(findings, size, reward, config)
    returns = jnp.zeros_like(values)
  return jnp.where(counted, found, 0.0), jnp.where(counted, returns, 0.0)


def _process(
  findings: Findings,  # with finite scores
  size: int,
  reward: RewardConfig,
  config: AdvantageConfig,
) -> jax.Array:  # [B, T]
  """Returns the process's part of the advantages of rloo and grpo."""
  scores, mask = findings.scores, findings.step_mask
  process = credited(reward, config)
  if process == 'return':
    # Not estimated from the group: that would depend on its chains' steps.
    start = jnp.full(len(scores), reward.centre)
    paid = rewards.increments(scores, mask, start, reward)
    values = _relative_returns(*paid, mask, size, config)
  else:
    start = first_values(scores, mask, size)
    paid = rewards.process_rewards(scores, mask, start, reward)
    if process == 'chain':
      whole = _relative(_whole_chains(paid, mask, size), size, config)
      return jnp.broadcast_to(whole[:, None], findings.written.shape)
    values = _relative_steps(paid, mask, size, config)
    if process == 'to_go':
      values = advantages.rewards_to_go(values)
    values = jnp.where(mask, values, 0.0)
  length = findings.written.shape[1]
  return spread(values, step_of_tokens(findings.step_ends, mask, length))


def _relative_returns(
  steps: jax.Array,  # [B, P]
  end: jax.Array,  # [B]
  mask: jax.Array,  # [B, P]
  size: int,
  config: AdvantageConfig,
) -> jax.Array:  # [B, P + 1]
  """Compares what follows each position; the last of a chain is its end."""
  at = jnp.arange(mask.shape[1] + 1)
  ends_at = mask.sum(1, keepdims=True)
  paid = jnp.pad(steps, ((0, 0), (0, 1)))
  paid = jnp.where(at == ends_at, end[:, None], paid)
  exists = at <= ends_at
  returns = jnp.where(exists, advantages.rewards_to_go(paid), 0.0)
  if config.estimator == 'rloo':
    found = advantages.leave_one_out(returns, size)
    return jnp.where(exists, found, 0.0)
  return advantages.returns_relative(
    returns, exists, size, config.scale, config.eps
  )


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
