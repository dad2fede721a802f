"""Step scores, chain scores, best-of-N.

    problem, candidates -> ids -> packed rows (+ shared prompt) -> [N, P]
    scores -> aggregate -> the best candidate

Candidates of one problem share the prompt: its keys and values are computed
once. Their steps are packed into rows of a few fixed lengths, so a stream of
odd lengths compiles a handful of programs and pads little.
"""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from prm_jax.encoding import StepFormat
from prm_jax.errors import UserError
from prm_jax.models import (
  HeadConfig,
  Prefix,
  TransformerConfig,
  forward,
  prefill,
  step_logits,
  step_probabilities,
)
from prm_jax.sharding import batch_sharding

AGGREGATES = ('min', 'prod', 'mean', 'sum', 'last', 'max')
SMALLEST_BUCKET = 64
# Tokens in one call; what is larger is scored in several.
MAX_TOKENS_PER_CALL = 16_384
# Real tokens in one call of score_many; the rest is room for packing's gaps.
CALL_FILL = int(0.95 * MAX_TOKENS_PER_CALL)


def aggregate(
  step_scores: jax.Array,  # [..., P] in [0, 1]
  step_mask: jax.Array,  # [..., P] bool, at least one step in each chain
  how: str,
) -> jax.Array:  # [...]
  """Chain score from step scores.

  `prod` is returned as the sum of logarithms, which orders chains in the same
  way and does not underflow on long ones; exp() of it is the product.

  Raises:
    UserError: `how` is not in AGGREGATES.
  """
  step_scores = jnp.asarray(step_scores, jnp.float32)
  if how == 'min':
    return jnp.where(step_mask, step_scores, jnp.inf).min(-1)
  if how == 'max':
    return jnp.where(step_mask, step_scores, -jnp.inf).max(-1)
  if how == 'prod':
    # A score of exactly 0 stays a very low one, so that ties keep an order.
    logs = jnp.log(jnp.maximum(step_scores, jnp.finfo(jnp.float32).tiny))
    return jnp.where(step_mask, logs, 0.0).sum(-1)
  if how == 'sum':
    return jnp.where(step_mask, step_scores, 0.0).sum(-1)
  if how == 'mean':
    total = jnp.where(step_mask, step_scores, 0.0).sum(-1)
    return total / step_mask.sum(-1)
  if how == 'last':
    last = step_mask.shape[-1] - 1 - jnp.argmax(step_mask[..., ::-1], -1)
    return jnp.take_along_axis(step_scores, last[..., None], -1)[..., 0]
  raise UserError(
    f'unknown aggregate {how!r}: expected one of {", ".join(AGGREGATES)}'
  )


class Rows(NamedTuple):
  """Candidates packed into rows: what one forward pass reads."""

  tokens: jax.Array  # [B, T] int32
  positions: jax.Array  # [B, T] int32, going on from the prompt
  segment_ids: jax.Array  # [B, T] int32, 0 is padding
  step_ends: jax.Array  # [B, P] int32


class Layout(NamedTuple):
  """Where the steps of N candidates ended up in Rows."""

  slots: np.ndarray  # [N, P] index into the flattened [B * P] scores
  step_mask: np.ndarray  # [N, P] bool, False is padding


def bucket(length: int, smallest: int = SMALLEST_BUCKET) -> int:
  """The power of two at or above `length`, `smallest` at least."""
  return max(smallest, 1 << (length - 1).bit_length())


def row_bucket(rows: int, multiple: int) -> int:
  """`rows` rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24 ... times `multiple`.

  Finer than powers of two: at most a third of the rows is padding.
  """
  needed = -(-rows // multiple)
  power = bucket(needed, 1)
  return multiple * (power * 3 // 4 if needed <= power * 3 // 4 else power)


def pack_rows(
  candidates: Sequence[tuple[np.ndarray, np.ndarray]],
  first_position: int,
  row_multiple: int,
) -> tuple[Rows, Layout]:
  """First-fit-decreasing packing of (tokens [T], step_ends [P]) pairs.

  The row length is the bucket of the longest candidate; P is half of it, as a
  step has at least two tokens: one of its own and its separator.
  """
  lengths = [len(tokens) for tokens, _ in candidates]
  T = bucket(max(lengths))
  members: list[list[int]] = []
  room: list[int] = []
  for i in sorted(range(len(candidates)), key=lambda i: -lengths[i]):
    row = next((r for r, left in enumerate(room) if left >= lengths[i]), None)
    if row is None:
      row = len(room)
      members.append([])
      room.append(T)
    members[row].append(i)
    room[row] -= lengths[i]

  B, P, N = row_bucket(len(room), row_multiple), T // 2, len(candidates)
  rows = Rows(
    *(np.zeros((B, T), np.int32) for _ in range(3)), np.zeros((B, P), np.int32)
  )
  layout = Layout(np.zeros((N, P), np.int32), np.zeros((N, P), bool))
  for b, indices in enumerate(members):
    start = step = 0
    for segment, i in enumerate(indices, 1):
      tokens, step_ends = candidates[i]
      end, steps = start + len(tokens), len(step_ends)
      rows.tokens[b, start:end] = tokens
      rows.positions[b, start:end] = first_position + np.arange(len(tokens))
      rows.segment_ids[b, start:end] = segment
      rows.step_ends[b, step : step + steps] = start + step_ends
      layout.slots[i, :steps] = b * P + step + np.arange(steps)
      layout.step_mask[i, :steps] = True
      start, step = end, step + steps
  return rows, layout


def row_scores(
  params: Any,
  rows: Rows,
  prefix: Prefix | None,
  model: TransformerConfig,
  head: HeadConfig,
) -> jax.Array:  # [B, P] in [0, 1]
  """The probability that a step is right, at every step end of packed rows.

  Rows beyond MAX_TOKENS_PER_CALL run one part after another, so that memory
  does not grow with the number of candidates.
  """

  def one_part(part: Rows) -> jax.Array:
    hidden = forward(params['backbone'], model, *part[:3], prefix)
    logits = step_logits(params['head'], hidden, part.step_ends)
    return step_probabilities(logits, head)

  B, T = rows.tokens.shape
  parts = -(-B * T // MAX_TOKENS_PER_CALL)
  while B % parts:
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


@dataclasses.dataclass
class ScoringStats:
  """What a Scorer did so far: shows padding and recompilation."""

  programs: set[tuple] = dataclasses.field(default_factory=set)
  tokens: int = 0  # real ones, prompts included
  padded_tokens: int = 0  # all that were computed


class Scorer:
  """A trained PRM, ready to score: what `prm_jax.load` returns.

  Attributes:
    params: {'backbone', 'head'}, as trained.
    model, head, format: what they mean.
    stats: what was scored so far.
  """

  def __init__(
    self,
    params: Any,
    model: TransformerConfig,
    head: HeadConfig,
    fmt: StepFormat,
    mesh: Mesh,
  ):
    self.params, self.model, self.head, self.format = params, model, head, fmt
    self.stats = ScoringStats()
    self._mesh = mesh
    self._row_multiple = mesh.shape['replica'] * mesh.shape['fsdp']
    known = {'model': model, 'head': head}
    self._row_scores = jax.jit(functools.partial(row_scores, **known))
    self._best_of_n = jax.jit(
      functools.partial(best_of_n, **known), static_argnames='how'
    )

  def score(self, problem: str, steps: Sequence[str]) -> np.ndarray:
    """Probability in [0, 1] that each step is right, [P] float32."""
    return self.score_many([(problem, steps)])[0]

  def score_many(
    self, chains: Sequence[tuple[str, Sequence[str]]]
  ) -> list[np.ndarray]:
    """`score` of many (problem, steps) pairs, packed together.

    Raises:
      UserError: a chain has no steps or does not fit the model's window.
    """
    encoded = [self._encode(problem, steps)[:2] for problem, steps in chains]
    scores: list[Any] = [None] * len(encoded)
    for group in _groups([len(tokens) for tokens, _ in encoded]):
      members = [encoded[i] for i in group]
      rows, layout = pack_rows(members, 0, self._row_multiple)
      self._count(('score', *rows.tokens.shape), rows, 0, 0)
      with jax.set_mesh(self._mesh):
        flat = self._row_scores(self.params, self._put(rows), None)
      flat = np.asarray(flat).reshape(-1)
      for n, i in enumerate(group):
        scores[i] = flat[layout.slots[n, layout.step_mask[n]]]
    return scores

  def best_of_n(
    self,
    problem: str,
    candidates: Sequence[Sequence[str]],
    aggregate: str = 'min',
  ) -> tuple[int, np.ndarray, list[np.ndarray]]:
    """Scores all candidates for one problem and picks the best.

    Args:
      candidates: N chains, each a sequence of steps.
      aggregate: how step scores become a chain score, see `aggregate`.

    Returns:
      The index of the best candidate (the first of equals), the chain scores
      [N], and the step scores of each candidate, [P] each.

    Raises:
      UserError: there are no candidates, one has no steps or does not fit, or
        the aggregate is unknown.
    """
    if not candidates:
      raise UserError('best_of_n without candidates: expected at least one')
    ends = []
    for steps in candidates:
      tokens, step_ends, prompt_length = self._encode(problem, steps)
      ends.append((tokens[prompt_length:], step_ends - prompt_length))
    prompt = np.zeros((1, bucket(prompt_length, 16)), np.int32)
    prompt[0, :prompt_length] = tokens[:prompt_length]
    rows, layout = pack_rows(ends, prompt_length, self._row_multiple)
    # Chains that fill the candidate axis up to its bucket repeat the last.
    fill = bucket(len(ends), 1) - len(ends)
    padded = Layout(*(np.pad(x, ((0, fill), (0, 0)), 'edge') for x in layout))
    key = ('best_of_n', prompt.shape[1], *rows.tokens.shape, len(padded.slots))
    self._count((*key, aggregate), rows, prompt_length, prompt.shape[1])
    with jax.set_mesh(self._mesh):
      best, chain_scores, step_scores = self._best_of_n(
        self.params,
        self._put(rows),
        padded,
        prompt,
        np.int32(prompt_length),
        how=aggregate,
      )
    step_scores = np.asarray(step_scores)
    return (
      int(best),
      np.asarray(chain_scores)[: len(ends)],
      [step_scores[n, layout.step_mask[n]] for n in range(len(ends))],
    )

  def _encode(
    self, problem: str, steps: Sequence[str]
  ) -> tuple[np.ndarray, np.ndarray, int]:
    encoding = self.format.encode(problem, steps)
    if len(encoding.step_ends) < len(steps):
      raise UserError(
        f'chain of {len(steps)} steps does not fit '
        f'max_length={self.format.max_length}: only the first '
        f'{len(encoding.step_ends)} do; shorten it, or use a model with a '
        'longer window'
      )
    return encoding

  def _put(self, rows: Rows) -> Rows:
    return jax.device_put(rows, batch_sharding(self._mesh))

  def _count(
    self, program: tuple, rows: Rows, prompt_tokens: int, prompt_padded: int
  ) -> None:
    if program not in self.stats.programs:
      logging.info('scoring compiles program %s', program)
    self.stats.programs.add(program)
    self.stats.tokens += int((rows.segment_ids > 0).sum()) + prompt_tokens
    self.stats.padded_tokens += rows.tokens.size + prompt_padded


def _groups(lengths: Sequence[int]) -> list[list[int]]:
  """Indices in groups of one length bucket that fill one call each."""
  groups: list[list[int]] = []
  size, current = 0, 0
  for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
    length = bucket(lengths[i])
    if not groups or length != current or size + lengths[i] > CALL_FILL:
      groups.append([])
      size, current = 0, length
    groups[-1].append(i)
    size += lengths[i]
  return groups
