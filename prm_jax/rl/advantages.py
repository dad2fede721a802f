"""Rewards to advantages: how much better each token did than expected.

    token rewards [B, T] -> one of these -> [B, T] -> losses.py

Groups are G samples of each of B / G problems, one after another. `mask` says
which tokens the policy wrote; elsewhere advantages are 0.
"""

import jax
import jax.numpy as jnp


def rewards_to_go(
  rewards: jax.Array,  # [B, T]
  discount: float = 1.0,
) -> jax.Array:  # [B, T]
  """R_t = r_t + gamma R_{t+1}: what follows each token, itself included."""

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
  return x.reshape(-1, size, *x.shape[1:])


def leave_one_out(
  returns: jax.Array,  # [B]
  size: int,
) -> jax.Array:  # [B]
  """A_i = R_i - mean of the other G - 1 (RLOO; Kool et al., 2019).

  With one sample in a group there is no baseline, and A is R.
  """
  if size == 1:
    return returns
  grouped = group(returns, size)
  others = (grouped.sum(1, keepdims=True) - grouped) / (size - 1)
  return (grouped - others).reshape(-1)


def group_relative(
  returns: jax.Array,  # [B]
  size: int,
  scale: bool = True,
  eps: float = 1e-4,
) -> jax.Array:  # [B]
  """A_i = (R_i - mean) / (std + eps) of its group (GRPO; Shao et al., 2024).

  The mean includes R_i. `scale=False` leaves out the division (Liu et al.,
  2025, Dr. GRPO), which gives easy and hard problems more weight than those in
  between. Of a group whose returns are equal all advantages are 0.
  """
  grouped = group(returns, size)
  centred = grouped - grouped.mean(1, keepdims=True)
  if scale:
    # As the usual implementations: G - 1 in the denominator.
    variance = (centred**2).sum(1, keepdims=True) / max(size - 1, 1)
    centred /= jnp.sqrt(variance) + eps
  return centred.reshape(-1)


def steps_leave_one_out(
  rewards: jax.Array,  # [B, P] of steps
  mask: jax.Array,  # [B, P] bool
  size: int,
  by_position: bool,
) -> jax.Array:  # [B, P]
  """Each step's reward minus the mean of steps of the other chains.

  `leave_one_out` for steps: all of theirs, or those at the same position. A
  step that no other chain has one for has nothing to be compared with: 0.
  """
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
  """Step rewards relative to the group's (GRPO with process rewards).

  Shao et al. (2024), section 4.1.3: a step's reward is normalised by mean and
  deviation over the steps of all samples of the problem; the advantage of a
  token is there the sum of these from its step on (`rewards_to_go`). A step
  below the mean costs whatever its sign was, so that short chains are favoured
  where later steps score lower than early ones. `by_position` takes the mean
  over steps at the same position, which does not; the deviation from these
  means is over all.
  """
  grouped, where = group(rewards, size), group(mask, size)
  sums, counts = _sums(rewards, mask, size, by_position)
  mean = sums.sum(1, keepdims=True)
  mean /= jnp.maximum(counts.sum(1, keepdims=True), 1)
  centred = jnp.where(where, grouped - mean, 0.0)
  if scale:
    count = where.sum((1, 2), keepdims=True)
    variance = (centred**2).sum((1, 2), keepdims=True)
    centred /= jnp.sqrt(variance / jnp.maximum(count - 1, 1)) + eps
  return centred.reshape(rewards.shape)


def _sums(
  rewards: jax.Array, mask: jax.Array, size: int, by_position: bool
) -> tuple[jax.Array, jax.Array]:  # [B / G, G, P or 1] each
  """Sums and counts of each chain's steps, by position or of all."""
  sums = group(jnp.where(mask, rewards, 0.0), size)
  counts = group(mask, size)
  if by_position:
    return sums, counts
  return sums.sum(2, keepdims=True), counts.sum(2, keepdims=True)


def whitened(
  values: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  eps: float = 1e-8,
) -> jax.Array:  # [B, T]
  """Shifted and scaled to mean 0 and deviation 1 over what is masked in."""
  count = jnp.maximum(mask.sum(), 1)
  mean = jnp.where(mask, values, 0.0).sum() / count
  centred = jnp.where(mask, values - mean, 0.0)
  return centred * jax.lax.rsqrt((centred**2).sum() / count + eps)


def generalised(
  rewards: jax.Array,  # [B, T]
  values: jax.Array,  # [B, T] of the state before each token
  mask: jax.Array,  # [B, T] bool, contiguous in each row
  discount: float = 1.0,
  trace: float = 0.95,
) -> tuple[jax.Array, jax.Array]:  # [B, T], [B, T]
  """GAE (Schulman et al., 2016): A_t = sum_k (gamma lambda)^k delta_{t+k}.

  delta_t = r_t + gamma V_{t+1} - V_t, V behind the last token 0. By an
  associative scan: logarithmic depth.

  Returns:
    advantages, and the returns A + V that the value head is trained on.
  """
  values = jnp.where(mask, values, 0.0)
  following = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], 1)
  deltas = jnp.where(mask, rewards + discount * following - values, 0.0)
  advantages = rewards_to_go(deltas, discount * trace)
  advantages = jnp.where(mask, advantages, 0.0)
  return advantages, advantages + values
