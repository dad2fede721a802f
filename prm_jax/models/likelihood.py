"""What the backbone thinks of the tokens it reads: log-probabilities.

A step that says a number which the backbone did not expect there is more often
wrong than another: this signal needs no step label. `number_likelihood` is
what a step head with `HeadConfig.likelihood` reads beside the hidden state.
"""

from typing import Any

import jax
import jax.numpy as jnp

from prm_jax.models.config import TransformerConfig
from prm_jax.models.transformer import lm_logits

# Tokens of a row whose logits exist at a time: with a vocabulary of 49,152
# those of a whole row of 1,024 would be 200 MB.
TOKENS_AT_ONCE = 64


def token_logprobs(
  backbone: Any,
  model: TransformerConfig,
  hidden: jax.Array,  # [B, T, D] as `forward` gives them
  tokens: jax.Array,  # [B, T]
  wanted: jax.Array,  # [B, T] bool; the first of a row cannot be
) -> jax.Array:  # [B, T] float32, 0 where not wanted
  """log p(token t | the tokens of its segment before it).

  Wanted tokens go first, so many at a time, and what no row wants costs
  nothing in the forward pass. The backward pass makes the logits again, and
  adds up a gradient of the output embedding per part, wanted or not.
  """
  B, T = tokens.shape
  size = min(T, TOKENS_AT_ONCE)
  order = jnp.argsort(~wanted, axis=1, stable=True)
  order = jnp.pad(order, ((0, 0), (0, -T % size)))
  taken = jnp.arange(order.shape[1]) < wanted.sum(1, keepdims=True)

  @jax.checkpoint
  def some(hidden: jax.Array, indices: jax.Array) -> jax.Array:
    before = jnp.maximum(indices - 1, 0)
    states = jnp.take_along_axis(hidden, before[..., None], 1)
    logits = lm_logits(backbone, model, states)
    said = jnp.take_along_axis(tokens, indices, 1)
    chosen = jnp.take_along_axis(logits, said[..., None], -1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, -1)

  def part(found: jax.Array, at: jax.Array) -> tuple[jax.Array, None]:
    indices = jax.lax.dynamic_slice_in_dim(order, at, size, 1)
    own = jax.lax.dynamic_slice_in_dim(taken, at, size, 1)
    values = jax.lax.cond(
      own.any(),
      some,
      lambda *_: jnp.zeros(indices.shape, jnp.float32),
      hidden,
      indices,
    )
    rows = jnp.arange(B)[:, None]
    return found.at[rows, indices].add(jnp.where(own, values, 0.0)), None

  found, _ = jax.lax.scan(
    part, jnp.zeros((B, T)), jnp.arange(0, order.shape[1], size)
  )
  return found


def number_likelihood(
  backbone: Any,
  model: TransformerConfig,
  hidden: jax.Array,  # [B, T, D]
  tokens: jax.Array,  # [B, T]
  numbers: jax.Array,  # [B, T] bool, see `StepFormat.number_tokens`
  step_ends: jax.Array,  # [B, P] ascending, padding last and 0
) -> jax.Array:  # [B, P, 3] float32
  """Of each step: sum and minimum of its number tokens' log-probabilities in
  nats, and how many there are; all 0 for a step without numbers.
  """
  values = token_logprobs(backbone, model, hidden, tokens, numbers)
  places = jnp.arange(tokens.shape[1])
  before = jnp.pad(step_ends[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
  own = (before[..., None] < places) & (places <= step_ends[..., None])
  own &= numbers[:, None]  # [B, P, T]
  values = jnp.where(own, values[:, None], 0.0)
  return jnp.stack([values.sum(-1), values.min(-1), own.sum(-1)], -1)
