"""Defines the objective: the step loss, the language-model loss, or both.

    params, batch -> hidden states -> losses, weighted and added up

A reward model has a head and a step loss, and may also learn to predict the
tokens of its chains. A policy has no head and only predicts tokens. `loop.py`
takes the gradient.
"""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from prm_jax.models import (
  HeadConfig,
  LoraConfig,
  Rows,
  TransformerConfig,
  attach,
  forward,
  head_logits,
  step_likelihood,
  step_logits,
  token_logprobs,
)
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, one_of
from prm_jax.training import losses
from prm_jax.training.train_state import NO_LORA

Batch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """Sets the loss: the step loss plus `lm_weight` times the LM loss.

  Attributes:
    name: one of losses.LOSSES; '' for a policy, which has no head.
    lm_weight: weight of the next-token loss, a mean over the tokens of the
      batch, each weighted by `lm_weights`; 0 turns it off.
    margin: margin of the ranking loss.
  """

  name: Annotated[str, one_of(*losses.LOSSES, '')] = 'bce'
  lm_weight: Annotated[float, at_least(0)] = 0.0
  margin: Annotated[float, at_least(0)] = 4.0

  def __post_init__(self) -> None:
    checks.check(self)


POLICY_LOSS = LossConfig(name='', lm_weight=1.0)


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
  """Says which model is trained, and on which loss.

  Attributes:
    head: None for a policy.
    lora: rank 0 trains the backbone itself.
  """

  model: TransformerConfig
  head: HeadConfig | None
  loss: LossConfig
  lora: LoraConfig = NO_LORA


def norms(batch: Batch, loss: LossConfig) -> tuple[jax.Array, jax.Array]:
  """Returns the denominators of a batch's step loss and LM loss."""
  step_norm = jnp.ones(())
  if loss.name:
    weights = losses.step_loss_weights(loss.name, batch)
    step_norm = jnp.maximum(weights.sum(), 1e-6)
  return step_norm, jnp.maximum(batch['lm_weights'].sum(), 1.0)


def token_losses(
  backbone: Any, model: TransformerConfig, hidden: jax.Array, batch: Batch
) -> tuple[jax.Array, jax.Array]:
  """Returns each token's loss in nats, and how often it counts: [B, T] each.

  The token before a branch predicts each of the tokens that follow it. The loss
  of a token that does not count is 0.
  """
  weights = batch['lm_weights']
  logprobs = token_logprobs(
    backbone, model, hidden, batch['tokens'], batch['parents'], weights > 0
  )
  return -logprobs, weights


def reads_all(config: ObjectiveConfig) -> bool:
  """Says whether the loss reads more tokens than the ends of steps."""
  head = config.head
  return head is None or head.likelihood or bool(config.loss.lm_weight)


def _step_loss(
  params: Any,
  backbone: Any,
  hidden: jax.Array,  # [B, T, D], or [B, P, D] of the step ends
  batch: Batch,
  config: ObjectiveConfig,
) -> jax.Array:  # []
  """Sums the weighted step losses of a batch."""
  head, loss, likelihood = config.head, config.loss, None
  if head.likelihood:
    rows = Rows(*(batch[name] for name in Rows._fields))
    likelihood = step_likelihood(backbone, config.model, hidden, rows)
  if reads_all(config):
    ends = batch['step_ends']
    logits = step_logits(params['head'], hidden, ends, likelihood)
  else:
    logits = head_logits(params['head'], hidden)
  values = losses.step_loss(loss.name, logits, batch, head, loss.margin)
  weights = losses.step_loss_weights(loss.name, batch)
  # A product alone would be NaN where a masked value is infinite.
  return jnp.where(weights > 0, weights * values, 0.0).sum()


def batch_loss(
  params: Any,
  batch: Batch,
  step_norm: jax.Array,
  lm_norm: jax.Array,
  config: ObjectiveConfig,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns a batch's share of the loss, and the metrics it is made of.

  Args:
    batch: a whole batch or one of its microbatches.
    step_norm, lm_norm: from `norms` of the whole batch, so that the shares of
      its microbatches add up to the loss of the whole.
  """
  model, loss = config.model, config.loss
  backbone = params['backbone']
  if config.lora.rank:
    backbone = attach(backbone, params['lora'], config.lora)
  hidden = forward(
    backbone,
    model,
    batch['tokens'],
    batch['positions'],
    batch['last'],
    read=None if reads_all(config) else batch['step_ends'],
  )
  total, values = 0.0, {}
  if config.head is not None:
    summed = _step_loss(params, backbone, hidden, batch, config)
    total = values['step_loss'] = summed / step_norm
  if loss.lm_weight:
    per_token, counted = token_losses(backbone, model, hidden, batch)
    lm_loss = (per_token * counted).sum() / lm_norm
    values['lm_loss'] = lm_loss
    total = total + loss.lm_weight * lm_loss
  return total, {'loss': total, **values}
