"""Log-probabilities that the backbone gives to the tokens it reads.

A step with a number that the backbone did not expect is wrong more often than
other steps, and this signal needs no step labels. A head with
`HeadConfig.likelihood` reads `number_likelihood` beside the hidden state.
"""

from typing import Any

import jax
import jax.numpy as jnp

from prm_jax.models.config import TransformerConfig
from prm_jax.models.rows import Rows
from prm_jax.models.transformer import lm_logits

# Tokens of a row whose logits are in memory at the same time. With a vocabulary
# of 49,152 the logits of a whole row of 1,024 tokens would take 200 MB.
TOKENS_PER_PART = 64


def token_logprobs(
  backbone: Any,
  model: TransformerConfig,
  hidden: jax.Array,  # [B, T, D] from `forward`
  tokens: jax.Array,  # [B, T]
  parents: jax.Array,  # [B, T], see `Rows`
  wanted: jax.Array,  # [B, T] bool, only tokens with a parent
) -> jax.Array:  # [B, T] float32, 0 where not wanted
  """Returns log p(token t | the tokens before it in its chain), in nats.

  Wanted tokens are sorted to the front and go through the output embedding
  part by part; parts that no row wants cost nothing in the forward pass. The
  backward pass computes the logits again, and adds up a gradient of the output
  embedding for each part, wanted or not.
  """
  B, T = tokens.shape
  size = min(T, TOKENS_PER_PART)
  order = jnp.argsort(~wanted, axis=1, stable=True)
  order = jnp.pad(order, ((0, 0), (0, -T % size)))
  taken = jnp.arange(order.shape[1]) < wanted.sum(1, keepdims=True)

  @jax.checkpoint
  def logprobs_at(hidden: jax.Array, indices: jax.Array) -> jax.Array:
    before = jnp.maximum(jnp.take_along_axis(parents, indices, 1), 0)
    states = jnp.take_along_axis(hidden, before[..., None], 1)
    logits = lm_logits(backbone, model, states)
    ids = jnp.take_along_axis(tokens, indices, 1)
    chosen = jnp.take_along_axis(logits, ids[..., None], -1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, -1)

  def add_part(found: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
    indices = jax.lax.dynamic_slice_in_dim(order, start, size, 1)
    own = jax.lax.dynamic_slice_in_dim(taken, start, size, 1)
    values = jax.lax.cond(
      own.any(),
      logprobs_at,
      lambda *_: jnp.zeros(indices.shape, jnp.float32),
      hidden,
      indices,
    )
    rows = jnp.arange(B)[:, None]
    return found.at[rows, indices].add(jnp.where(own, values, 0.0)), None

  found, _ = jax.lax.scan(
    add_part, jnp.zeros((B, T)), jnp.arange(0, order.shape[1], size)
  )
  return found


def number_likelihood(
  backbone: Any,
  model: TransformerConfig,
  hidden: jax.Array,  # [B, T, D]
  rows: Rows,
) -> jax.Array:  # [B, P, 3] float32
  """Summarises the log-probabilities of each step's number tokens.

  Returns:
    Their sum and minimum in nats, and their count; all 0 for a step without
    numbers.
  """
  values = token_logprobs(
    backbone, model, hidden, rows.tokens, rows.parents, rows.numbers
  )
  places, ends = jnp.arange(rows.tokens.shape[1]), rows.step_ends[..., None]
  # The tokens that a step's end sees, from the step's first one on.
  own = (places <= ends) & (ends <= rows.last[:, None])
  own &= rows.positions[:, None] >= rows.step_begins[..., None]
  own &= rows.numbers[:, None]  # [B, P, T]
  values = jnp.where(own, values[:, None], 0.0)
  return jnp.stack([values.sum(-1), values.min(-1), own.sum(-1)], -1)
