"""Step scores, chain scores, best-of-N.

    ids of candidates -> packed rows (+ the prompt they share) -> [N, P]
    scores -> aggregate -> the best candidate

Pure functions that `Scorer` (scorer.py) jits. Candidates of one problem share
the prompt: its keys and values are computed once. Their steps are packed into
rows of a few fixed lengths, so a stream of odd lengths compiles a handful of
programs and pads little.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from prm_jax.models import (
  HeadConfig,
  Prefix,
  TransformerConfig,
  forward,
  number_likelihood,
  prefill,
  step_logits,
  step_probabilities,
)
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import BATCH, axis_size

AGGREGATES = ('min', 'prod', 'mean', 'sum', 'last', 'max')
SMALLEST_BUCKET = 64
# Tokens of a device in one call; what is larger is scored in several.
MAX_TOKENS_PER_CALL = 16_384


def aggregate(
  step_scores: jax.Array,  # [..., P] in [0, 1]
  step_mask: jax.Array,  # [..., P] bool, at least one step in each chain
  how: str,
) -> jax.Array:  # [...]
  """Chain score from step scores.

  `prod` is returned as the sum of logarithms, which orders chains in the same
  way and does not underflow on long ones; exp() of it is the product. NumPy
  arrays are aggregated by NumPy: few numbers, of any shape, need no program.

  Raises:
    UserError: `how` is not in AGGREGATES.
  """
  xp = np if isinstance(step_scores, np.ndarray) else jnp
  step_scores = xp.asarray(step_scores, xp.float32)
  if how == 'min':
    return xp.where(step_mask, step_scores, xp.inf).min(-1)
  if how == 'max':
    return xp.where(step_mask, step_scores, -xp.inf).max(-1)
  if how == 'prod':
    # A score of exactly 0 stays a very low one, so that ties keep an order.
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


class Rows(NamedTuple):
  """Candidates packed into rows: what one forward pass reads."""

  tokens: jax.Array  # [B, T] int32
  positions: jax.Array  # [B, T] int32, going on from the prompt
  segment_ids: jax.Array  # [B, T] int32, 0 is padding
  step_ends: jax.Array  # [B, P] int32
  numbers: jax.Array  # [B, T] bool, see `StepFormat.number_tokens`


class Layout(NamedTuple):
  """Where the steps of N candidates ended up in Rows."""

  slots: np.ndarray  # [N, P] index into the flattened [B * P] scores
  step_mask: np.ndarray  # [N, P] bool, False is padding


def bucket(length: int, smallest: int = SMALLEST_BUCKET) -> int:
  """The power of two at or above `length`, `smallest` at least."""
  return max(smallest, 1 << (length - 1).bit_length())


def row_bucket(rows: int, multiple: int) -> int:
  """`rows` rounded up to 1, 2, 3, 4, 5, 6, 7, 8, 10, 12 ... times `multiple`.

  Four sizes to each power of two: at most a fifth of the rows is padding.
  """
  needed = -(-rows // multiple)
  quarter = max(1, bucket(needed, 1) // 8)
  return multiple * quarter * -(-needed // quarter)


def first_fit(lengths: Sequence[int], T: int) -> list[list[int]]:
  """First-fit-decreasing: the indices that each row of T tokens holds."""
  members: list[list[int]] = []
  room: list[int] = []
  for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
    row = next((r for r, left in enumerate(room) if left >= lengths[i]), None)
    if row is None:
      row = len(room)
      members.append([])
      room.append(T)
    members[row].append(i)
    room[row] -= lengths[i]
  return members


def pack_rows(
  candidates: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
  first_position: int,
  row_multiple: int,
) -> tuple[Rows, Layout]:
  """First-fit-decreasing packing of (tokens [T], step_ends [P], numbers [T]).

  The row length is the bucket of the longest candidate, or twice that where it
  pads less; P is half of it, as a step has at least two tokens: one of its own
  and its separator.
  """
  lengths = [len(tokens) for tokens, _, _ in candidates]
  shortest = bucket(max(lengths))
  packings = {T: first_fit(lengths, T) for T in (shortest, 2 * shortest)}
  B, T = min(
    ((row_bucket(len(packings[T]), row_multiple), T) for T in packings),
    key=lambda shape: shape[0] * shape[1],
  )
  members, P, N = packings[T], T // 2, len(candidates)
  rows = Rows(
    *(np.zeros((B, T), np.int32) for _ in range(3)),
    np.zeros((B, P), np.int32),
    np.zeros((B, T), bool),
  )
  layout = Layout(np.zeros((N, P), np.int32), np.zeros((N, P), bool))
  for b, indices in enumerate(members):
    start = step = 0
    for segment, i in enumerate(indices, 1):
      tokens, step_ends, numbers = candidates[i]
      end, steps = start + len(tokens), len(step_ends)
      rows.tokens[b, start:end] = tokens
      rows.positions[b, start:end] = first_position + np.arange(len(tokens))
      rows.segment_ids[b, start:end] = segment
      rows.numbers[b, start:end] = numbers
      rows.step_ends[b, step : step + steps] = start + step_ends
      layout.slots[i, :steps] = b * P + step + np.arange(steps)
      layout.step_mask[i, :steps] = True
      start, step = end, step + steps
  return rows, layout


def read_out(
  params: Any,
  hidden: jax.Array,  # [B, T, D] of the rows
  rows: Rows,
  model: TransformerConfig,
  head: HeadConfig,
) -> jax.Array:  # [B, P] in [0, 1]
  """The probability that a step is right, at every step end."""
  likelihood = None
  if head.likelihood:
    likelihood = number_likelihood(
      params['backbone'],
      model,
      hidden,
      rows.tokens,
      rows.numbers,
      rows.step_ends,
    )
  logits = step_logits(params['head'], hidden, rows.step_ends, likelihood)
  return step_probabilities(logits, head)


def row_scores(
  params: Any,
  rows: Rows,
  prefix: Prefix | None,
  model: TransformerConfig,
  head: HeadConfig,
) -> jax.Array:  # [B, P] in [0, 1]
  """The probability that a step is right, at every step end of packed rows.

  Rows beyond MAX_TOKENS_PER_CALL of a device run one part after another, so
  that memory does not grow with the number of candidates.
  """

  def one_part(part: Rows) -> jax.Array:
    hidden = forward(params['backbone'], model, *part[:3], prefix)
    return read_out(params, hidden, part, model, head)

  B, T = rows.tokens.shape
  shards = axis_size(*BATCH)
  shards = shards if B % shards == 0 else 1
  each = B // shards  # rows on a device
  parts = min(each, -(-each * T // MAX_TOKENS_PER_CALL))
  while each % parts:
    parts += 1
  if parts == 1:
    return one_part(rows)
  # Strided, so that each part stays spread over all devices.
  split = jax.tree.map(
    lambda x: x.reshape(B // parts, parts, -1).swapaxes(0, 1), rows
  )
  return jax.lax.map(one_part, split).swapaxes(0, 1).reshape(B, -1)


def best_of_n(
  params: Any,
  rows: Rows,
  layout: Layout,
  prompt: jax.Array,  # [1, S] padded on the right
  prompt_length: jax.Array,  # []
  how: str,
  model: TransformerConfig,
  head: HeadConfig,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # [], [N], [N, P]
  """Tokens in; chosen index, chain scores and step scores out.

  The prompt is read once. Ties go to the first candidate.
  """
  mask = jnp.arange(prompt.shape[1])[None] < prompt_length
  prefix = prefill(params['backbone'], model, prompt, mask)
  scores = row_scores(params, rows, prefix, model, head).reshape(-1)
  step_scores = jnp.where(layout.step_mask, scores[layout.slots], 0.0)
  chain_scores = aggregate(step_scores, layout.step_mask, how)
  return jnp.argmax(chain_scores), chain_scores, step_scores
