"""Defines the loss of a policy: losses.py over a batch of its chains.

    params, Experience -> log-probabilities, entropy, values of every token
      -> policy loss + KL + value loss - entropy

Every array [B, T] has each number at the token that it describes. A token's
log-probability and the value of the state before it come from the hidden state
one token earlier.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from prm_jax.models import (
  LoraConfig,
  TransformerConfig,
  forward,
  lm_logits,
  merge,
  step_logits,
)
from prm_jax.rl import losses
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, above_up_to, at_least, one_of
from prm_jax.training.loop import Objective
from prm_jax.training.train_state import NO_LORA

KL = 'k2', 'k3'  # estimators whose gradient is not 0 on average


@dataclasses.dataclass(frozen=True)
class PolicyLossConfig:
  """Sets the terms of the loss.

  Attributes:
    clip_low: how far the ratio to the sampling policy may fall below 1, see
      `losses.clipped`.
    clip_high: how far it may rise above 1.
    reduce: how tokens become one number, see `losses.reduce`.
    kl_weight: factor of the KL divergence from the reference, in the loss.
    kl_estimator: its estimator, see `losses.kl`; k1 would have no effect.
    entropy_weight: factor of the next token's entropy, which is maximised.
    value_weight: factor of the value head's loss; only read with a value head.
    value_clip: how far values may move from those of the sampling policy; 0
      does not limit them.
  """

  clip_low: Annotated[float, above_up_to(0, 1)] = 0.2
  clip_high: Annotated[float, above(0)] = 0.2
  reduce: Annotated[str, one_of(*losses.REDUCTIONS)] = 'token'
  kl_weight: Annotated[float, at_least(0)] = 0.0
  kl_estimator: Annotated[str, one_of(*KL)] = 'k3'
  entropy_weight: float = 0.0
  value_weight: Annotated[float, at_least(0)] = 0.5
  value_clip: Annotated[float, at_least(0)] = 0.2

  def __post_init__(self) -> None:
    checks.check(self)


class Experience(NamedTuple):
  """Holds chains with everything that the policy learns from.

  Each row is one chain. `written` marks the tokens that the policy wrote and
  learns from; the numbers of other tokens are not read.
  """

  tokens: jax.Array  # [B, T] int32
  last: jax.Array  # [B, T] int32, the chain's last token; padding: itself
  written: jax.Array  # [B, T] bool
  sampled_logprobs: jax.Array  # [B, T] when they were sampled
  reference_logprobs: jax.Array  # [B, T] of the reference; 0 without one
  advantages: jax.Array  # [B, T]
  returns: jax.Array  # [B, T] targets of the value head; 0 without one
  old_values: jax.Array  # [B, T] of the value head before the update


class TokenView(NamedTuple):
  """Holds a model's outputs for every token of a row."""

  logprobs: jax.Array  # [B, T], 0 at the first token
  entropy: jax.Array  # [B, T] of the distribution it is drawn from, nats
  values: jax.Array  # [B, T] of the state before it; 0 without a head


def view_tokens(
  params: Any,  # 'backbone', and 'head' if there is a value head
  tokens: jax.Array,  # [B, T]
  last: jax.Array,  # [B, T]
  model: TransformerConfig,
  lora: LoraConfig = NO_LORA,
) -> TokenView:
  """Returns log-probabilities, entropies and values; each row is one chain."""
  backbone = params['backbone']
  if lora.rank:
    backbone = merge(backbone, params['lora'], lora)
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden = forward(backbone, model, tokens, positions, last)
  logits = lm_logits(backbone, model, hidden)[:, :-1]
  log_p = jax.nn.log_softmax(logits)
  chosen = jnp.take_along_axis(log_p, tokens[:, 1:, None], 2)[..., 0]
  values = jnp.zeros_like(tokens, jnp.float32)
  if 'head' in params:
    values = step_logits(params['head'], hidden, positions)[..., 0]
    values = _later(values[:, :-1])
  return TokenView(_later(chosen), _later(losses.entropy(logits)), values)


def _later(x: jax.Array) -> jax.Array:  # [B, T - 1] -> [B, T]
  """Moves each number from the token where it was read to the next."""
  return jnp.pad(x, ((0, 0), (1, 0)))


def _written_only(
  seen: TokenView, batch: Experience
) -> tuple[TokenView, Experience]:
  """Sets all numbers of tokens that the policy did not write to 0."""

  def only(x: jax.Array) -> jax.Array:
    return jnp.where(batch.written, x, 0.0)

  floats = {
    name: only(value)
    for name, value in batch._asdict().items()
    if name not in ('tokens', 'last', 'written')
  }
  return TokenView(*map(only, seen)), batch._replace(**floats)


def make_objective(
  model: TransformerConfig,
  config: PolicyLossConfig,
  max_tokens: int,
  lora: LoraConfig = NO_LORA,
) -> Objective:
  """Returns the loss for the train step.

  Args:
    max_tokens: longest chain in tokens; `reduce='constant'` divides by it.
  """

  def norms(batch: Experience) -> tuple[jax.Array, jax.Array]:
    tokens = jnp.maximum(batch.written.sum(), 1)
    chains = jnp.maximum(batch.written.any(1).sum(), 1)
    return tokens, chains

  def loss(
    params: Any, batch: Experience, by: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    tokens, chains = by
    seen = view_tokens(params, batch.tokens, batch.last, model, lora)
    # Done first: an overflow at other tokens would spoil the gradient.
    seen, batch = _written_only(seen, batch)
    logprobs = seen.logprobs

    def mean(x: jax.Array) -> jax.Array:  # over tokens of all microbatches
      return jnp.where(batch.written, x, 0.0).sum() / tokens

    def reduced(x: jax.Array) -> jax.Array:
      return losses.reduce(
        x, batch.written, config.reduce, tokens, chains, max_tokens
      )

    policy, cut = losses.clipped(
      logprobs,
      batch.sampled_logprobs,
      batch.advantages,
      config.clip_low,
      config.clip_high,
    )
    values = {
      'policy_loss': reduced(policy),
      'entropy': mean(seen.entropy),
      'clipped': mean(cut),
      # How far the policy is from the one that sampled, by k3 too.
      'kl_to_sampled': mean(losses.kl(batch.sampled_logprobs, logprobs)),
      'ratio': mean(jnp.exp(logprobs - batch.sampled_logprobs)),
    }
    total = values['policy_loss']
    if config.kl_weight:
      divergence = losses.kl(
        logprobs, batch.reference_logprobs, config.kl_estimator
      )
      total += config.kl_weight * reduced(divergence)
    if config.entropy_weight:
      total -= config.entropy_weight * reduced(seen.entropy)
    if 'head' in params:
      error = losses.value_loss(
        seen.values, batch.old_values, batch.returns, config.value_clip
      )
      values['value_loss'] = mean(error)
      total += config.value_weight * values['value_loss']
    return total, {'loss': total, **values}

  return Objective(norms, loss)
