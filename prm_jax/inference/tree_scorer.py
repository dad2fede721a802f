"""Scores chains that grow with a trained PRM: the step scorer of search.

    Scoring requests -> ids of prompt and steps -> those not read before
      -> runs, each after a piece in the cache -> rows -> one forward pass
      -> scores, and keys and values into the PrefixStore

Every prompt and every step is read once, whatever is asked: siblings share
what precedes them, and a grown chain is read from its first new step. Scores
equal those of `Scorer`; a step that overflows gives NaN to itself and to what
follows it, and to nothing else.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.data.encoding import StepFormat, check_steps
from prm_jax.inference.call_sizes import Grid, Sizes, fine_grid
from prm_jax.inference.packing import empty_rows
from prm_jax.inference.piece_runs import (
  Row,
  plan_calls,
  split_into_waves,
)
from prm_jax.inference.protocols import ScoredSteps, Scoring
from prm_jax.inference.ready_programs import ReadyPrograms
from prm_jax.inference.score import read_out, tokens_to_read
from prm_jax.inference.scorer import Scorer, ScoringStats
from prm_jax.models import (
  HeadConfig,
  Rows,
  TransformerConfig,
  chain_flops,
  extend,
  prefix_store,
)
from prm_jax.models.prefix_store import Ids, Piece, Pool, PrefixStore, index_of
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import BATCH, constrain

LONGEST_KEPT = 1024  # characters of a text whose ids are kept
Ends = list[tuple[int, int, Piece]]  # row and step of each piece's score


class TreeScorer:
  """Makes a `protocols.StepScorer` of a Scorer; it reads nothing twice.

  Args:
    scorer: the PRM; its parameters are shared, not copied.
    rows: size of the cache of keys and values, in chains of the longest
      length. The least recently used are dropped; prefixes that chains share
      are stored once.
    name: identifies the PRM.
    flag: name of the option that sets `rows`, for messages.
    make_grid: chooses the sizes of calls, see `call_sizes`; it takes the PRM's
      window and the number of devices that share rows.
    share: most of the device's memory that the cache may take, from 0 to 1.

  Attributes:
    stats: counts of what was read so far.
    grid: sizes that calls may have.
    programs: those that were compiled.

  Raises:
    UserError: rows is below 1, or takes more than the share of the memory.
  """

  counts_flops = True

  def __init__(
    self,
    scorer: Scorer,
    rows: int = 1024,
    name: str = 'prm',
    flag: str = 'prm.rows',
    make_grid: Callable[[int, int], Grid] = fine_grid,
    share: float = 0.5,
  ) -> None:
    if rows < 1:
      raise UserError(f'{flag}={rows}: expected >= 1')
    self.name, self.stats = name, ScoringStats()
    self._format, self._model = scorer.format, scorer.model
    self._likelihood, self._mesh = scorer.head.likelihood, scorer.mesh
    devices = scorer.mesh.shape['replica'] * scorer.mesh.shape['fsdp']
    self.grid = make_grid(scorer.format.max_length, devices)
    slots = prefix_store.slots_for(
      self._model, self._mesh, rows, self._format.max_length, flag, share
    )
    self._store = PrefixStore(self._model, self._mesh, slots)
    # The same texts are asked for again in every round of a search.
    self._prompt_ids = cached_if_short(
      1 << 12, lambda problem: tuple(self._format.encode_prompt(problem))
    )
    self._step_ids = cached_if_short(
      1 << 15, lambda step, first: tuple(self._format.encode_step(step, first))
    )
    self._head_flops = scorer.head_flops
    self._params = scorer.params
    self._jit_read = jit_read_rows(self._model, scorer.head, self._mesh)
    self._jit_put = jax.jit(
      prefix_store.put, donate_argnums=0, out_shardings=self._store.sharding
    )
    self._pool = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      self._store.pool,
    )
    self.programs = ReadyPrograms(self._compile)

  def forget(self) -> None:
    """Empties the cache, so that everything is read again."""
    self._store.clear()

  def score(self, requests: Sequence[Scoring]) -> list[list[ScoredSteps]]:
    """Returns the scores of each request; see `protocols.StepScorer`."""
    return [[each] for each in self.score_ids(list(map(self._ids, requests)))]

  def score_ids(self, chains: Sequence[Sequence[Ids]]) -> list[ScoredSteps]:
    """Returns the scores of chains that are encoded already.

    Args:
      chains: of each chain the ids of its prompt and of its steps, as `encode`
        returns them; none for a chain that has no scores.
    """
    try:
      with jax.set_mesh(self._mesh):
        return self._score(chains)
    except BaseException:
      # The tree may hold pieces whose keys and values were never written.
      self._store.clear()
      raise

  def _score(self, asked: Sequence[Sequence[Ids]]) -> list[ScoredSteps]:
    paths: list[list[Piece]] = []
    read_for: list[list[Piece]] = [[] for _ in asked]
    new: list[Piece] = []
    self._store.begin()
    for pieces, own in zip(asked, read_for, strict=True):
      path = self._store.find(pieces)
      while len(path) <= len(pieces):
        piece = self._store.add(path[-1], pieces[len(path) - 1])
        if piece is None:  # no room until the pieces so far are read
          self._read(new)
          new = []
          self._store.begin()
          path = self._store.find(pieces)
          continue
        path.append(piece)
        own.append(piece)
        new.append(piece)
      paths.append(path[2:])  # without the root and the prompt
    self._read(new)
    return [
      ScoredSteps(
        tuple(piece.score for piece in path),
        sum(len(piece.ids) for piece in own),
        sum(map(self._flops, own)),
      )
      for path, own in zip(paths, read_for, strict=True)
    ]

  def encode(self, problem: str, steps: Sequence[str]) -> list[Ids]:
    """Returns the ids of the prompt and of each step.

    Raises:
      UserError: there are no steps, they are one text, the tokenizer rejects
        the text, or the chain does not fit the PRM's window.
    """
    check_steps(steps)
    ids = [self._prompt_ids(problem)]
    length = len(ids[0])
    for i, step in enumerate(steps):
      ids.append(self._step_ids(step, i == 0))
      length += len(ids[-1])
      if length > self._format.max_length:
        break
    check_length(ids, self._format, self.name)
    return ids

  def _ids(self, request: Scoring) -> list[Ids]:
    """Returns `encode` of a request, [] if it cannot be scored."""
    try:
      return self.encode(request.problem, request.steps)
    except UserError:
      return []

  def _flops(self, piece: Piece) -> float:
    logits = int((self._kinds(piece) > 0).sum())
    backbone = chain_flops(self._model, piece.first, len(piece.ids), logits)
    return backbone + self._head_flops * (piece.before.before is not None)

  def _kinds(self, piece: Piece) -> np.ndarray:  # [T] int8
    """Returns the kinds of a piece's tokens if the head reads them."""
    if not self._likelihood or piece.before.before is None:
      return np.zeros(len(piece.ids), np.int8)
    return self._format.step_kinds(piece.ids)

  def _read(self, new: Sequence[Piece]) -> None:
    """Reads pieces into the store and sets their scores."""
    if spoilt := self._read_rows(new):
      # Masked keys have weight 0, but 0 times NaN is NaN: one broken piece
      # spoils its whole row. Read alone, it spoils only what follows it.
      self._read_rows([piece for piece in new if piece in spoilt], alone=True)

  def _read_rows(
    self, new: Sequence[Piece], alone: bool = False
  ) -> set[Piece]:  # those of rows in which a score is NaN
    calls = [
      self._call(sizes, rows)
      for runs in split_into_waves(new, alone)
      for sizes, rows in plan_calls(runs, self.grid, alone)
    ]
    spoilt: set[Piece] = set()
    # The host waits for the device only here.
    for scores, ends, rows in calls:
      values = np.asarray(scores)
      for row, step, piece in ends:
        piece.score = float(values[row, step])
        if math.isnan(piece.score):
          spoilt.update(it for run in rows[row] for it in run.pieces)
    return spoilt

  def _call(
    self, sizes: Sizes, rows: list[Row]
  ) -> tuple[jax.Array, Ends, list[Row]]:
    """Reads rows into the store; returns scores, their ends and the rows."""
    read, put = self.programs.get(sizes)
    arrays, slots, ends = self._arrays(rows, sizes.rows, sizes.tokens)
    index = None
    if sizes.prefix:
      before = [runs[0].before for runs in rows]
      index = index_of(before, sizes.rows, sizes.prefix)
    scores, keys, values = read(self._params, self._store.pool, index, arrays)
    self._store.pool = put(self._store.pool, slots, keys, values)
    self.stats.tokens += int((arrays.positions >= 0).sum())
    self.stats.padded_tokens += sizes.rows * sizes.tokens
    return scores, ends, rows

  def _arrays(
    self, rows: Sequence[Row], B: int, T: int
  ) -> tuple[Rows, np.ndarray, Ends]:
    """Returns Rows [B, T], each token's slot [B * T], and the step ends."""
    arrays = empty_rows(B, T, max(1, T // 2))
    slots = np.full((B, T), self._store.slots + 1, np.int32)
    ends = []
    for b, runs in enumerate(rows):
      end = steps = 0
      for run in runs:
        first = end
        for piece in run.pieces:
          start, end = end, end + len(piece.ids)
          own = slice(start, end)
          arrays.tokens[b, own] = piece.ids
          arrays.positions[b, own] = range(piece.first, piece.end)
          arrays.parents[b, own] = range(start - 1, end - 1)
          arrays.kinds[b, own] = self._kinds(piece)
          slots[b, own] = piece.slots
          if piece.before.before is not None:  # not a prompt
            arrays.step_ends[b, steps] = end - 1
            arrays.step_begins[b, steps] = piece.first
            ends.append((b, steps, piece))
            steps += 1
        arrays.last[b, first:end] = end - 1
        arrays.parents[b, first] = -1
    return arrays, slots.reshape(-1), ends

  def _compile(self, sizes: Sizes) -> tuple[Any, Any]:
    """Compiles what reads rows, and what puts them into the store."""
    B, T, S = sizes
    logging.info('search scoring: compiling %s', sizes)
    rows = empty_rows(B, T, max(1, T // 2))
    index = index_of([], B, S) if S else None
    with jax.set_mesh(self._mesh):
      lowered = self._jit_read.lower(self._params, self._pool, index, rows)
      read = lowered.compile()
      new = jax.tree.map(
        lambda x, placed: jax.ShapeDtypeStruct(
          x.shape, x.dtype, sharding=placed
        ),
        lowered.out_info[1:],
        read.output_shardings[1:],
      )
      slots = np.zeros(B * T, np.int32)
      put = self._jit_put.lower(self._pool, slots, *new).compile()
    self.stats.programs.add(sizes)
    return read, put


def check_length(ids: Sequence[Ids], fmt: StepFormat, name: str) -> None:
  """Raises UserError unless a chain fits the window of the PRM `name`."""
  length = sum(map(len, ids))
  if length > fmt.max_length:
    raise UserError(
      f'chain of at least {length:,} tokens does not fit the '
      f'{fmt.max_length:,} of {name}; shorten it, or use a PRM with a longer '
      'window'
    )


def cached_if_short(
  size: int, encode: Callable[..., Ids]
) -> Callable[..., Ids]:
  """Returns `encode` with a cache of the last `size` texts that are not long.

  Args:
    encode: takes a text, and perhaps more.
  """
  cached = functools.lru_cache(size)(encode)

  def call(text: str, *rest: Any) -> Ids:
    return (cached if len(text) <= LONGEST_KEPT else encode)(text, *rest)

  return call


def jit_read_rows(
  model: TransformerConfig, head: HeadConfig, mesh: Mesh
) -> Any:
  """Returns `read_rows` jitted, of params, pool, index and rows."""
  whole = NamedSharding(mesh, P())
  return jax.jit(
    functools.partial(read_rows, model=model, head=head),
    out_shardings=(whole, None, None),
  )


def read_rows(
  params: Any,
  pool: Pool,
  index: jax.Array | None,  # [B, S] slots of each row's prefix, if any
  rows: Rows,
  model: TransformerConfig,
  head: HeadConfig,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns scores [B, P], and keys and values [L, B, T, K, H] of the rows.

  All runs of a row follow the same prefix.
  """
  prefix = None if index is None else prefix_store.gather(pool, index)
  read = tokens_to_read(rows, head)
  states, *kv = extend(params['backbone'], model, *rows[:3], prefix, read)
  kv = (constrain(x, None, BATCH, None, 'model') for x in kv)
  return read_out(params, states, rows, model, head), *kv
