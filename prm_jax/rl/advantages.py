"""Turns rewards into advantages: how much better a token did than expected.

    token rewards [B, T] -> one of these estimators -> [B, T] -> losses.py

Groups are G samples of each of B / G problems, one after another. `mask` says
which tokens the policy wrote; all others have advantage 0.

Every function checks the shapes of its arguments, also under `jax.jit`, and
raises AssertionError with its own name: broadcasting would hide the mistake.
"""

import chex
import jax
import jax.numpy as jnp

from prm_jax.rl.rewards import check_steps


def check_groups(name: str, x: jax.Array, size: int) -> None:
  """Raises AssertionError unless the first axis divides into groups."""
  chex.assert_is_divisible(
    len(x), size, custom_message=f'{name}: chains, group size'
  )


def rewards_to_go(
  rewards: jax.Array,  # [B, T]
  discount: float = 1.0,
) -> jax.Array:  # [B, T]
  """Returns R_t = r_t + gamma R_{t+1}, the return from each token on."""
  chex.assert_rank(rewards, 2, custom_message='rewards_to_go: rewards')

  def combine(
    later: tuple[jax.Array, jax.Array], earlier: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, jax.Array]:
    factor_l, sum_l = later
    factor_e, sum_e = earlier
    return factor_l * factor_e, sum_e + factor_e * sum_l

  factors = jnp.full_like(rewards, discount)
  _, sums = jax.lax.associative_scan(
    combine, (factors, rewards), reverse=True, axis=1
  )
  return sums


def group(x: jax.Array, size: int) -> jax.Array:  # [B, ...] -> [B/G, G, ...]
  """Splits the first axis into problems and their samples."""
  check_groups('group', x, size)
  return x.reshape(-1, size, *x.shape[1:])


def _from_first(grouped: jax.Array) -> jax.Array:  # [B/G, G, ...]
  """Subtracts the first chain's values: equal values are exactly 0.

  Otherwise rounding errors, divided by their deviation, become advantages.
  """
  return grouped - grouped[:, :1]


def _from_highest(
  rewards: jax.Array, mask: jax.Array, size: int, by_position: bool
) -> jax.Array:  # [B, P]
  """Subtracts the group's highest reward, or that at each position."""
  axes = 1 if by_position else (1, 2)
  grouped, where = group(rewards, size), group(mask, size)
  highest = jnp.where(where, grouped, -jnp.inf).max(axes, keepdims=True)
  some = where.any(axes, keepdims=True)
  return (grouped - jnp.where(some, highest, 0.0)).reshape(rewards.shape)


def leave_one_out(
  returns: jax.Array,  # [B] or [B, P]
  size: int,
) -> jax.Array:  # as returns
  """Returns A_i = R_i - mean of the other G - 1 (RLOO; Kool et al., 2019).

  With [B, P], returns from each of P positions on, positions are compared one
  by one; a chain that has ended counts as 0. With one sample in a group there
  is no baseline, and A is R.
  """
  chex.assert_rank(returns, {1, 2}, custom_message='leave_one_out: returns')
  if size == 1:
    return returns
  grouped = _from_first(group(returns, size))
  others = (grouped.sum(1, keepdims=True) - grouped) / (size - 1)
  return (grouped - others).reshape(returns.shape)


def group_relative(
  returns: jax.Array,  # [B]
  size: int,
  scale: bool = True,
  eps: float = 1e-4,
) -> jax.Array:  # [B]
  """Returns A_i = (R_i - mean) / (std + eps) (GRPO; Shao et al., 2024).

  Mean and deviation are the group's, R_i included. `scale=False` leaves out the
  division (Liu et al., 2025, Dr. GRPO), which gives easy and hard problems more
  weight than those in between. If all returns of a group are equal, its
  advantages are 0.
  """
  chex.assert_rank(returns, 1, custom_message='group_relative: returns')
  grouped = _from_first(group(returns, size))
  centred = grouped - grouped.mean(1, keepdims=True)
  if scale:
    # G - 1 in the denominator, as in the usual implementations.
    variance = (centred**2).sum(1, keepdims=True) / max(size - 1, 1)
    centred /= jnp.sqrt(variance) + eps
  return centred.reshape(-1)


def steps_leave_one_out(
  rewards: jax.Array,  # [B, P] of steps
  mask: jax.Array,  # [B, P] bool
  size: int,
  by_position: bool,
) -> jax.Array:  # [B, P]
  """Subtracts from each step's reward the mean over the other chains' steps.

  This is `leave_one_out` for steps. The mean is over all of their steps, or
  over those at the same position. A step without any counterpart gets 0.
  """
  check_steps('steps_leave_one_out', rewards, mask)
  rewards = _from_highest(rewards, mask, size, by_position)
  sums, counts = _sums(rewards, mask, size, by_position)
  others = sums.sum(1, keepdims=True) - sums
  count = counts.sum(1, keepdims=True) - counts
  centred = group(rewards, size) - others / jnp.maximum(count, 1)
  centred = jnp.where(group(mask, size) & (count > 0), centred, 0.0)
  return centred.reshape(rewards.shape)


def steps_relative(
  rewards: jax.Array,  # [B, P] of steps
  mask: jax.Array,  # [B, P] bool
  size: int,
  by_position: bool = False,
  scale: bool = True,
  eps: float = 1e-4,
) -> jax.Array:  # [B, P]
  """Normalises each step's reward in its group (GRPO with process rewards).

  Shao et al. (2024), section 4.1.3: mean and deviation are over the steps of
  all samples of the problem, and a token's advantage is the sum of the
  normalised rewards from its step on (`rewards_to_go`). Every step below the
  mean then costs something, which favours short chains if later steps score
  lower than early ones. With `by_position` the mean is over steps at the same
  position, and the deviation from these means over all steps.
  """
  check_steps('steps_relative', rewards, mask)
  rewards = _from_highest(rewards, mask, size, by_position)
  grouped, where = group(rewards, size), group(mask, size)
  sums, counts = _sums(rewards, mask, size, by_position)
  mean = sums.sum(1, keepdims=True)
  mean /= jnp.maximum(counts.sum(1, keepdims=True), 1)
  centred = jnp.where(where, grouped - mean, 0.0)
  if scale:
    centred /= _deviation(centred, where) + eps
  return centred.reshape(rewards.shape)


def returns_relative(
  returns: jax.Array,  # [B, P] from each position on, 0 after a chain's end
  mask: jax.Array,  # [B, P] bool
  size: int,
  scale: bool = True,
  eps: float = 1e-4,
) -> jax.Array:  # [B, P]
  """Compares returns with the group's mean at their position.

  Chains that have ended count as 0. Without `scale` this is (G - 1) / G times
  `leave_one_out`; `scale` divides by the deviation from these means over all
  positions that exist.
  """
  check_steps('returns_relative', returns, mask)
  grouped, where = _from_first(group(returns, size)), group(mask, size)
  mean = grouped.mean(1, keepdims=True)
  centred = jnp.where(where, grouped - mean, 0.0)
  if scale:
    centred /= _deviation(centred, where) + eps
  return centred.reshape(returns.shape)


def _deviation(centred: jax.Array, where: jax.Array) -> jax.Array:
  """Returns the deviation [B / G, 1, 1] of groups [B / G, G, P] from 0."""
  count = where.sum((1, 2), keepdims=True)
  variance = (centred**2).sum((1, 2), keepdims=True)
  return jnp.sqrt(variance / jnp.maximum(count - 1, 1))


def _sums(
  rewards: jax.Array, mask: jax.Array, size: int, by_position: bool
) -> tuple[jax.Array, jax.Array]:  # [B / G, G, P or 1] each
  """Returns sums and counts of each chain's steps, by position or in all."""
  sums = group(jnp.where(mask, rewards, 0.0), size)
  counts = group(mask, size)
  if by_position:
    return sums, counts
  return sums.sum(2, keepdims=True), counts.sum(2, keepdims=True)


def whiten(
  values: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  eps: float = 1e-8,
) -> jax.Array:  # [B, T]
  """Shifts and scales to mean 0 and deviation 1 over the masked-in tokens."""
  chex.assert_rank(values, 2, custom_message='whiten: values')
  chex.assert_shape(mask, values.shape, custom_message='whiten: mask')
  count = jnp.maximum(mask.sum(), 1)
  mean = jnp.where(mask, values, 0.0).sum() / count
  centred = jnp.where(mask, values - mean, 0.0)
  return centred * jax.lax.rsqrt((centred**2).sum() / count + eps)


def gae(
  rewards: jax.Array,  # [B, T]
  values: jax.Array,  # [B, T] of the state before each token
  mask: jax.Array,  # [B, T] bool, contiguous in each row
  discount: float = 1.0,
  trace: float = 0.95,
) -> tuple[jax.Array, jax.Array]:  # [B, T], [B, T]
  """Computes A_t = sum_k (gamma lambda)^k delta_{t+k} (Schulman et al., 2016).

  delta_t = r_t + gamma V_{t+1} - V_t, where V after the last token is 0. The
  sum is an associative scan, of logarithmic depth.

  Returns:
    The advantages, and the returns A + V, targets of the value head.
  """
  chex.assert_rank(rewards, 2, custom_message='gae: rewards')
  chex.assert_shape(
    [values, mask], rewards.shape, custom_message='gae: values, mask'
  )
  values = jnp.where(mask, values, 0.0)
  following = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], 1)
  deltas = jnp.where(mask, rewards + discount * following - values, 0.0)
  advantages = rewards_to_go(deltas, discount * trace)
  advantages = jnp.where(mask, advantages, 0.0)
  return advantages, advantages + values
