"""Computes policy losses over the tokens that a policy wrote.

log-probabilities now and when sampled, advantages -> a value per token
  -> reduce -> a scalar

Every function is pure, checks the shapes of its arguments, also under
`jax.jit`, and raises AssertionError with its own name: broadcasting would hide
the mistake.
"""

import chex
import jax
import jax.numpy as jnp

from prm_jax.runtime.errors import UserError

REDUCTIONS = ('token', 'sequence', 'constant')
KL_ESTIMATORS = ('k2', 'k3')


def clipped(
  logprobs: jax.Array,  # [B, T] of the sampled tokens, now
  sampled_logprobs: jax.Array,  # [B, T] when they were sampled
  advantages: jax.Array,  # [B, T]
  low: float = 0.2,
  high: float = 0.2,
) -> tuple[jax.Array, jax.Array]:  # [B, T], [B, T] bool
  """Computes -min(rho A, clip(rho, 1 - low, 1 + high) A).

  rho = pi / pi_sampled. PPO (Schulman et al., 2017); `high` above `low` is
  DAPO's clip-higher (Yu et al., 2025). GRPO has the same loss, with advantages
  without a learnt baseline. At rho = 1, the first step on a batch, its gradient
  is REINFORCE's (Williams, 1992): that of -A log pi.

  Returns:
    The loss, and where the clip set the gradient to 0.
  """
  chex.assert_equal_shape(
    [logprobs, sampled_logprobs, advantages],
    custom_message='clipped: logprobs, sampled_logprobs, advantages',
  )
  ratio = jnp.exp(logprobs - sampled_logprobs)
  kept = jnp.clip(ratio, 1.0 - low, 1.0 + high)
  loss = -jnp.minimum(ratio * advantages, kept * advantages)
  cut = (kept * advantages) < (ratio * advantages)
  return loss, cut


def value_loss(
  values: jax.Array,  # [B, T]
  old_values: jax.Array,  # [B, T] when sampled
  returns: jax.Array,  # [B, T]
  clip: float = 0.2,
) -> jax.Array:  # [B, T]
  """Computes max((V - R)^2, (V_old + clip(V - V_old) - R)^2) / 2.

  `clip` 0 does not clip.
  """
  chex.assert_equal_shape(
    [values, old_values, returns],
    custom_message='value_loss: values, old_values, returns',
  )
  error = (values - returns) ** 2
  if clip:
    near = old_values + jnp.clip(values - old_values, -clip, clip)
    error = jnp.maximum(error, (near - returns) ** 2)
  return 0.5 * error


def kl(
  logprobs: jax.Array,  # [B, T] of the sampled tokens
  reference: jax.Array,  # [B, T]
  estimator: str = 'k3',
) -> jax.Array:  # [B, T]
  """Estimates KL(pi || ref) from samples of pi (Schulman, 2020).

  With d = log ref - log pi: k2 = d^2 / 2; k3 = exp(d) - 1 - d, unbiased and
  never negative. As losses they differ: on samples of pi the gradient of k2 is
  that of KL(pi || ref), and the gradient of k3 that of KL(ref || pi). (That of
  k1 = -d is 0 on average, so it is not offered.)

  Raises:
    UserError: the estimator is none of KL_ESTIMATORS.
  """
  chex.assert_equal_shape(
    [logprobs, reference], custom_message='kl: logprobs, reference'
  )
  d = reference - logprobs
  if estimator == 'k2':
    return 0.5 * d**2
  if estimator == 'k3':
    return jnp.expm1(d) - d
  raise UserError(
    f'kl.estimator={estimator!r}: expected one of {", ".join(KL_ESTIMATORS)}'
  )


def reduce(
  values: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  how: str,
  tokens: jax.Array,  # [] masked-in tokens of the whole batch
  chains: jax.Array,  # [] chains with such tokens in the whole batch
  max_tokens: int,  # that a chain may have
) -> jax.Array:  # []
  """Reduces tokens to one number: a microbatch's share of the batch's.

  token: every token of the batch counts the same (DAPO). sequence: every chain
  counts the same, and its tokens share its weight (GRPO). constant: divides by
  chains * max_tokens, so that a token counts the same in long and in short
  chains (Dr. GRPO). A chain without tokens does not count.

  Raises:
    UserError: `how` is none of REDUCTIONS.
  """
  chex.assert_rank(values, 2, custom_message='reduce: values')
  chex.assert_shape(mask, values.shape, custom_message='reduce: mask')
  chex.assert_rank([tokens, chains], 0, custom_message='reduce: tokens, chains')
  values = jnp.where(mask, values, 0.0)
  if how == 'token':
    return values.sum() / tokens
  if how == 'sequence':
    return (values.sum(1) / jnp.maximum(mask.sum(1), 1)).sum() / chains
  if how == 'constant':
    return values.sum() / (chains * max_tokens)
  raise UserError(
    f'loss.reduce={how!r}: expected one of {", ".join(REDUCTIONS)}'
  )
