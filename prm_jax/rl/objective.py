"""Defines the loss of a policy: losses.py over a batch of its chains.

    params, Trees -> log-probabilities, entropy, values of every token
      + Experience -> policy loss + KL + value loss - entropy

Every array [C, T] has each number at the token that it describes. A token's
log-probability and the value of the state before it come from the hidden state
one token earlier. The model reads trees: tokens that chains share, once.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.models import (
  LoraConfig,
  TransformerConfig,
  attach,
  forward,
  step_logits,
  token_terms,
)
from prm_jax.rl import losses
from prm_jax.rl.trees import Trees
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, above_up_to, at_least, one_of
from prm_jax.training.loop import Objective
from prm_jax.training.train_state import NO_LORA

# Metrics of a train step that are means over the tokens that it read.
OF_READ_TOKENS = ('entropy', 'kl_to_sampled', 'ratio')


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
  kl_estimator: Annotated[str, one_of(*losses.KL_ESTIMATORS)] = 'k3'
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

  written: jax.Array  # [C, T] bool
  sampled_logprobs: jax.Array  # [C, T] when they were sampled
  reference_logprobs: jax.Array  # [C, T] of the reference; 0 without one
  advantages: jax.Array  # [C, T]
  returns: jax.Array  # [C, T] targets of the value head; 0 without one
  old_values: jax.Array  # [C, T] of the value head before the update


class Minibatch(NamedTuple):
  """Holds what a train step reads: trees, and the chains that are in them."""

  trees: Trees
  chains: Experience


class TokenView(NamedTuple):
  """Holds a model's outputs for every token of a chain.

  They are 0 at the first token, and where `Trees.nodes` names no token.
  """

  logprobs: jax.Array  # [C, T]
  entropy: jax.Array  # [C, T] of the distribution it is drawn from, nats
  values: jax.Array  # [C, T] of the state before it; 0 without a head


def view_tokens(
  params: Any,  # 'backbone', and 'head' if there is a value head
  trees: Trees,
  model: TransformerConfig,
  lora: LoraConfig = NO_LORA,
) -> TokenView:
  """Returns log-probabilities, entropies and values of every chain's tokens.

  All of them are computed once for each token of the trees.
  """
  backbone = params['backbone']
  if lora.rank:
    backbone = attach(backbone, params['lora'], lora)
  hidden = forward(backbone, model, trees.tokens, trees.positions, trees.last)
  terms = token_terms(
    backbone,
    model,
    hidden,
    trees.tokens,
    trees.parents,
    trees.parents >= 0,
  )
  values = jnp.zeros_like(terms.logprobs)
  if 'head' in params:
    parents = jnp.maximum(trees.parents, 0)
    values = step_logits(params['head'], hidden, parents)[..., 0]

  def of_chains(x: jax.Array) -> jax.Array:  # [B, L] -> [C, T]
    known = jnp.where(trees.parents >= 0, x, 0.0).reshape(-1)
    picked = known[jnp.maximum(trees.nodes, 0)]
    return jnp.where(trees.nodes >= 0, picked, 0.0)

  return TokenView(*map(of_chains, (*terms, values)))


def find_needed(
  chains: Experience, config: PolicyLossConfig, has_values: bool
) -> np.ndarray:  # [C] bool
  """Marks the chains that contribute to the gradient; trees may omit others.

  Without KL, entropy and value terms, a chain whose advantages are all 0 does
  not contribute.
  """
  learned = np.asarray(chains.written)
  if not (config.kl_weight or config.entropy_weight or has_values):
    learned = learned & (np.asarray(chains.advantages) != 0)
  return learned.any(1)


def _seen_tokens(minibatch: Minibatch) -> jax.Array:  # [C, T] bool
  """Says which tokens the policy wrote and the model has read."""
  return minibatch.chains.written & (minibatch.trees.nodes >= 0)


def count_read(minibatch: Minibatch) -> int:
  """Returns how many tokens OF_READ_TOKENS are means over."""
  return int(np.asarray(_seen_tokens(minibatch)).sum())


def mean_metrics(
  steps: Sequence[Mapping[str, float]], read: Sequence[int]
) -> dict[str, float]:
  """Returns the mean of each metric over train steps.

  OF_READ_TOKENS are means over the tokens of all steps. They are left out if
  no step has read any.

  Args:
    steps: metrics of each step.
    read: `count_read` of each step's minibatch.
  """
  means = {}
  for name in steps[-1]:
    values = [metrics[name] for metrics in steps]
    if name not in OF_READ_TOKENS:
      means[name] = float(np.mean(values))
    elif any(read):
      means[name] = float(np.average(values, weights=read))
  return means


def _only(
  tokens: jax.Array,  # [C, T] bool
  seen: TokenView,
  batch: Experience,
) -> tuple[TokenView, Experience]:
  """Sets all numbers of other tokens to 0."""

  def only(x: jax.Array) -> jax.Array:
    return jnp.where(tokens, x, 0.0)

  floats = {
    name: only(value)
    for name, value in batch._asdict().items()
    if name != 'written'
  }
  return TokenView(*map(only, seen)), batch._replace(**floats)


def make_objective(
  model: TransformerConfig,
  config: PolicyLossConfig,
  max_tokens: int,
  lora: LoraConfig = NO_LORA,
) -> Objective:
  """Returns the loss for the train step.

  Chains that the trees lack count in the denominators of the loss, where they
  add 0. OF_READ_TOKENS are means over the other chains, and 0 without any.

  Args:
    max_tokens: longest chain in tokens; `reduce='constant'` divides by it.
  """

  def norms(minibatch: Minibatch) -> tuple[jax.Array, jax.Array, jax.Array]:
    written = minibatch.chains.written
    tokens = jnp.maximum(written.sum(), 1)
    chains = jnp.maximum(written.any(1).sum(), 1)
    return tokens, chains, jnp.maximum(_seen_tokens(minibatch).sum(), 1)

  def loss(
    params: Any,
    minibatch: Minibatch,
    by: tuple[jax.Array, jax.Array, jax.Array],
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    tokens, chains, read = by
    at = _seen_tokens(minibatch)
    seen = view_tokens(params, minibatch.trees, model, lora)
    # Done first: an overflow at other tokens would spoil the gradient.
    seen, batch = _only(at, seen, minibatch.chains)
    logprobs = seen.logprobs

    def mean(x: jax.Array) -> jax.Array:  # over tokens of all microbatches
      return jnp.where(at, x, 0.0).sum() / read

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
      'clipped': cut.sum() / tokens,
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
