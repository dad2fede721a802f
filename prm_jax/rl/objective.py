"""What a policy minimises on what it wrote: losses.py over a batch of chains.

    params, Experience -> log-probabilities, entropy, values of every token
      -> policy loss + KL + value loss - entropy

All arrays [B, T] stand at the token that they are about: a token's
log-probability and the value of the state before it come from the hidden state
one token earlier.
"""

import dataclasses
from typing import Any, NamedTuple

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
from prm_jax.runtime.errors import UserError
from prm_jax.training.loop import Objective
from prm_jax.training.train_state import NO_LORA

KL = 'k2', 'k3'  # estimators that have a gradient


@dataclasses.dataclass(frozen=True)
class PolicyLossConfig:
  """What is minimised.

  Attributes:
    clip_low, clip_high: of the ratio to the policy that sampled, see
      `losses.clipped`.
    reduce: tokens to one number, see `losses.reduce`.
    kl_weight: of the KL divergence from the reference, in the loss.
    kl_estimator: of it, k2 or k3, see `losses.kl`; k1 would hold nothing.
    entropy_weight: of the entropy of the next token, which is raised.
    value_weight: of the value head's loss; without a head of no matter.
    value_clip: how far values may move from those of the sampling policy; 0: as
      far as they like.
    max_tokens: of a chain; what `reduce='constant'` divides by.
  """

  clip_low: float = 0.2
  clip_high: float = 0.2
  reduce: str = 'token'
  kl_weight: float = 0.0
  kl_estimator: str = 'k3'
  entropy_weight: float = 0.0
  value_weight: float = 0.5
  value_clip: float = 0.2
  max_tokens: int = 1

  def __post_init__(self) -> None:
    for name, fine, expected in (
      ('clip_low', 0 < self.clip_low <= 1, 'above 0, at most 1'),
      ('clip_high', self.clip_high > 0, 'above 0'),
      ('reduce', self.reduce in losses.REDUCTIONS, _one_of(losses.REDUCTIONS)),
      ('kl_weight', self.kl_weight >= 0, '>= 0'),
      ('kl_estimator', self.kl_estimator in KL, _one_of(KL)),
      ('value_weight', self.value_weight >= 0, '>= 0'),
      ('value_clip', self.value_clip >= 0, '>= 0'),
    ):
      if not fine:
        raise UserError(
          f'loss.{name}={getattr(self, name)!r}: expected {expected}'
        )


def _one_of(choices: tuple[str, ...]) -> str:
  return f'one of {", ".join(choices)}'


class Experience(NamedTuple):
  """Chains of a policy, with all that it learns from them.

  One chain a row; `written` marks what the policy wrote and learns from, and
  elsewhere nothing else counts.
  """

  tokens: jax.Array  # [B, T] int32
  segment_ids: jax.Array  # [B, T] int32, 1; 0 is padding
  written: jax.Array  # [B, T] bool
  sampled_logprobs: jax.Array  # [B, T] when they were sampled
  reference_logprobs: jax.Array  # [B, T] of the reference; 0 without one
  advantages: jax.Array  # [B, T]
  returns: jax.Array  # [B, T] that the value head learns; 0 without one
  old_values: jax.Array  # [B, T] that it gave when they were sampled


class TokenView(NamedTuple):
  """What a model says of every token of a row."""

  logprobs: jax.Array  # [B, T], 0 of the first
  entropy: jax.Array  # [B, T] of what might have stood there, nats
  values: jax.Array  # [B, T] of the state before it; 0 without a head


def view_tokens(
  params: Any,  # 'backbone', and 'head' of one that values
  tokens: jax.Array,  # [B, T]
  segment_ids: jax.Array,  # [B, T]
  model: TransformerConfig,
  lora: LoraConfig = NO_LORA,
) -> TokenView:
  """Log-probabilities, entropies and values of rows of one chain each."""
  backbone = params['backbone']
  if lora.rank:
    backbone = merge(backbone, params['lora'], lora)
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden = forward(backbone, model, tokens, positions, segment_ids)
  logits = lm_logits(backbone, model, hidden)[:, :-1]
  log_p = jax.nn.log_softmax(logits)
  chosen = jnp.take_along_axis(log_p, tokens[:, 1:, None], 2)[..., 0]
  values = jnp.zeros_like(tokens, jnp.float32)
  if 'head' in params:
    values = step_logits(params['head'], hidden, positions)[..., 0]
    values = _later(values[:, :-1])
  return TokenView(_later(chosen), _later(losses.entropy(logits)), values)


def _later(x: jax.Array) -> jax.Array:  # [B, T - 1] -> [B, T]
  """Each number at the token after the one that it was read at."""
  return jnp.pad(x, ((0, 0), (1, 0)))


def _written_only(
  seen: TokenView, batch: Experience
) -> tuple[TokenView, Experience]:
  """Zeros wherever the policy did not write."""

  def only(x: jax.Array) -> jax.Array:
    return jnp.where(batch.written, x, 0.0)

  floats = {
    name: only(value)
    for name, value in batch._asdict().items()
    if name not in ('tokens', 'segment_ids', 'written')
  }
  return TokenView(*map(only, seen)), batch._replace(**floats)


def make_objective(
  model: TransformerConfig, config: PolicyLossConfig, lora: LoraConfig = NO_LORA
) -> Objective:
  """The loss as the train step wants it."""

  def norms(batch: Experience) -> tuple[jax.Array, jax.Array]:
    tokens = jnp.maximum(batch.written.sum(), 1)
    chains = jnp.maximum(batch.written.any(1).sum(), 1)
    return tokens, chains

  def loss(
    params: Any, batch: Experience, by: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    tokens, chains = by
    seen = view_tokens(params, batch.tokens, batch.segment_ids, model, lora)
    # Before anything else: what overflows elsewhere would spoil the gradient.
    seen, batch = _written_only(seen, batch)
    logprobs = seen.logprobs

    def mean(x: jax.Array) -> jax.Array:  # of all tokens of all parts
      return jnp.where(batch.written, x, 0.0).sum() / tokens

    def reduced(x: jax.Array) -> jax.Array:
      how, most = config.reduce, config.max_tokens
      return losses.reduce(x, batch.written, how, tokens, chains, most)

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
      # How far the policy is from the one that sampled: k3 as well.
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
