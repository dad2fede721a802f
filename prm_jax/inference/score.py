"""Computes step scores, chain scores and best-of-N as pure functions.

    ids of candidates -> packed rows -> [N, P] step scores -> aggregate
      -> chain scores -> the best candidate

`Scorer` (scorer.py) jits them. `packing.py` lays out the rows so that
candidates share their prompt and every other equal beginning.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.inference.packing import Layout
from prm_jax.models import (
  HeadConfig,
  Rows,
  TransformerConfig,
  forward,
  head_logits,
  step_likelihood,
  step_logits,
  step_probabilities,
)
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import BATCH, axis_size

AGGREGATES = ('min', 'prod', 'mean', 'sum', 'last', 'max')
# Tokens of one device in one forward pass; larger batches take several passes.
MAX_TOKENS_PER_CALL = 16_384


def aggregate(
  step_scores: jax.Array,  # [..., P] in [0, 1]
  step_mask: jax.Array,  # [..., P] bool, at least one step in each chain
  how: str,
) -> jax.Array:  # [...]
  """Returns chain scores: the min, prod, mean, sum, last or max of step scores.

  `prod` is returned as the sum of logarithms, which orders chains in the same
  way and does not underflow on long ones; exp() of it is the product. NumPy
  arrays are aggregated by NumPy, without compiling a program for their shape.

  Raises:
    UserError: `how` is not in AGGREGATES.
    AssertionError: the mask has another shape than the scores.
  """
  chex.assert_shape(
    step_mask, np.shape(step_scores), custom_message='aggregate: step_mask'
  )
  xp = np if isinstance(step_scores, np.ndarray) else jnp
  step_scores = xp.asarray(step_scores, xp.float32)
  if how == 'min':
    return xp.where(step_mask, step_scores, xp.inf).min(-1)
  if how == 'max':
    return xp.where(step_mask, step_scores, -xp.inf).max(-1)
  if how == 'prod':
    # With log(0) all chains that have a score of 0 would be equally bad.
    logs = xp.log(xp.maximum(step_scores, xp.finfo(xp.float32).tiny))
    return xp.where(step_mask, logs, 0.0).sum(-1)
  if how == 'sum':
    return xp.where(step_mask, step_scores, 0.0).sum(-1)
  if how == 'mean':
    total = xp.where(step_mask, step_scores, 0.0).sum(-1)
    return total / step_mask.sum(-1).astype(xp.float32)
  if how == 'last':
    last = step_mask.shape[-1] - 1 - xp.argmax(step_mask[..., ::-1], -1)
    return xp.take_along_axis(step_scores, last[..., None], -1)[..., 0]
  raise UserError(
    f'unknown aggregate {how!r}: expected one of {", ".join(AGGREGATES)}'
  )


def _check_rows(rows: Rows) -> None:
  B, T = rows.tokens.shape
  for name in ('positions', 'last', 'parents', 'kinds'):
    chex.assert_shape(
      getattr(rows, name), (B, T), custom_message=f'rows.{name}'
    )
  for name in ('step_ends', 'step_begins'):
    chex.assert_shape(
      getattr(rows, name), (B, None), custom_message=f'rows.{name}'
    )


def tokens_to_read(rows: Rows, head: HeadConfig) -> jax.Array | None:
  """Returns the tokens whose states `read_out` needs: [B, P], or None: all."""
  return None if head.likelihood else rows.step_ends


def read_out(
  params: Any,
  states: jax.Array,  # [B, P, D], or [B, T, D], of `tokens_to_read`
  rows: Rows,
  model: TransformerConfig,
  head: HeadConfig,
) -> jax.Array:  # [B, P] in [0, 1]
  """Returns the probability that a step is right, at every step end."""
  _check_rows(rows)
  read = rows.tokens if head.likelihood else rows.step_ends
  chex.assert_shape(
    states, (*read.shape, None), custom_message='read_out: states'
  )
  if not head.likelihood:
    return step_probabilities(head_logits(params['head'], states), head)
  likelihood = step_likelihood(params['backbone'], model, states, rows)
  logits = step_logits(params['head'], states, rows.step_ends, likelihood)
  return step_probabilities(logits, head)


def row_scores(
  params: Any,
  rows: Rows,
  model: TransformerConfig,
  head: HeadConfig,
) -> jax.Array:  # [B, P] in [0, 1]
  """Returns the probability that a step is right, at every step end of rows."""

  def one_part(part: Rows) -> jax.Array:
    read = tokens_to_read(part, head)
    states = forward(params['backbone'], model, *part[:3], read=read)
    return read_out(params, states, part, model, head)

  return _in_parts(one_part, rows)


def row_features(
  params: Any, rows: Rows, model: TransformerConfig
) -> tuple[jax.Array, jax.Array]:  # [B, P, D], [B, P, 2] float32
  """Returns all that heads read at every step end: its state, its likelihood.

  The likelihood is that of `models.step_likelihood`.
  """

  def one_part(part: Rows) -> tuple[jax.Array, jax.Array]:
    states = forward(params['backbone'], model, *part[:3])
    likelihood = step_likelihood(params['backbone'], model, states, part)
    at_ends = jnp.take_along_axis(states, part.step_ends[..., None], axis=1)
    return at_ends.astype(jnp.float32), likelihood

  return _in_parts(one_part, rows)


def _in_parts(one_part: Callable[[Rows], Any], rows: Rows) -> Any:
  """Calls a function of rows, whose results have an entry for each row.

  If a device has more than MAX_TOKENS_PER_CALL tokens, its rows run in several
  parts one after another, so that memory does not grow with the candidates.
  """
  _check_rows(rows)
  B, T = rows.tokens.shape
  shards = axis_size(*BATCH)
  shards = shards if B % shards == 0 else 1
  device_rows = B // shards
  parts = min(device_rows, -(-device_rows * T // MAX_TOKENS_PER_CALL))
  while device_rows % parts:
    parts += 1
  if parts == 1:
    return one_part(rows)
  # Strided, so that each part stays spread over all devices.
  split = jax.tree.map(
    lambda x: x.reshape(B // parts, parts, -1).swapaxes(0, 1), rows
  )
  return jax.tree.map(
    lambda x: x.swapaxes(0, 1).reshape(B, *x.shape[2:]),
    jax.lax.map(one_part, split),
  )


def best_of_n(
  params: Any,
  rows: Rows,
  layout: Layout,
  how: str,
  model: TransformerConfig,
  head: HeadConfig,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # [], [N], [N, P]
  """Returns the best candidate's index, chain scores and step scores.

  The first of equals is the best.
  """
  chex.assert_equal_shape(layout)
  scores = row_scores(params, rows, model, head).reshape(-1)
  step_scores = jnp.where(layout.step_mask, scores[layout.slots], 0.0)
  chain_scores = aggregate(step_scores, layout.step_mask, how)
  return jnp.argmax(chain_scores), chain_scores, step_scores
