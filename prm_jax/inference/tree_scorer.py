"""A trained PRM for chains that grow: what search asks.

    Scoring requests -> pieces (prompt, steps) -> those that are new
      -> runs, each after a piece that is known -> rows -> one forward pass
      -> scores, and keys and values into the PrefixStore

Every prompt and every step is read once, whoever asks for it and however often:
siblings share what is before them, and a chain that grew is read from where it
was. Its scores are those of `Scorer`; NaN comes of a broken step alone.
"""

import collections
import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.inference.protocols import Scored, Scoring
from prm_jax.inference.score import (
  MAX_TOKENS_PER_CALL,
  Rows,
  bucket,
  first_fit,
  read_out,
)
from prm_jax.inference.scorer import Scorer, ScoringStats
from prm_jax.models import (
  HeadConfig,
  TransformerConfig,
  chain_flops,
  extend,
  prefix_store,
)
from prm_jax.models.prefix_store import Ids, Piece, Pool, PrefixStore, index_of
from prm_jax.runtime.errors import UserError

SMALLEST_PREFIX = 32
SMALLEST_ROW = 8
# A longer row attends block by block and to a prefix that is gathered again.
LONGEST_PACKED = 128
Ends = list[tuple[int, int, Piece]]  # row and step of each piece's score


@dataclasses.dataclass
class Run:
  """New pieces, each after the one before: read as one.

  Attributes:
    before: what the first of them follows, read already.
    wave: runs of one wave can be read together, after those of the last.
  """

  before: Piece
  wave: int
  pieces: list[Piece] = dataclasses.field(default_factory=list)

  @property
  def length(self) -> int:
    """Tokens."""
    return sum(len(piece.ids) for piece in self.pieces)


class TreeScorer:
  """A PRM as a `policy.StepScorer` that reads nothing twice.

  Args:
    scorer: the PRM; its parameters are shared, not copied.
    rows: as much of the device's memory as so many chains of the longest
      length would take keeps keys and values, the latest used. Prefixes that
      chains share are there once.
    name: says which PRM it is.

  Attributes:
    stats: what was read so far.

  Raises:
    UserError: rows is below 1, or more than half of the memory.
  """

  counts_flops = True

  def __init__(
    self, scorer: Scorer, rows: int = 1024, name: str = 'prm'
  ) -> None:
    if rows < 1:
      raise UserError(f'rows={rows} of {name}: expected >= 1')
    self.name, self.stats = name, ScoringStats()
    self._format, self._model = scorer.format, scorer.model
    self._likelihood, self._mesh = scorer.head.likelihood, scorer.mesh
    self._devices = scorer.mesh.shape['replica'] * scorer.mesh.shape['fsdp']
    slots = prefix_store.slots_for(
      self._model, self._mesh, rows, self._format.max_length, 'prm.rows'
    )
    self._store = PrefixStore(self._model, self._mesh, slots)
    # The same texts come again with every round.
    self._prompt_ids = functools.lru_cache(1 << 12)(
      lambda problem: tuple(self._format.encode_prompt(problem))
    )
    self._step_ids = functools.lru_cache(1 << 16)(
      lambda step, first: tuple(self._format.encode_step(step, first))
    )
    kernels = (
      x.size for name, x in scorer.params['head'].items() if 'kernel' in name
    )
    self._head_flops = 2.0 * sum(kernels)
    whole = NamedSharding(self._mesh, P())
    read = functools.partial(read_rows, model=self._model, head=scorer.head)
    read = jax.jit(read, out_shardings=(whole, None, None))
    self._programs = {
      'read': functools.partial(read, scorer.params),
      'put': jax.jit(
        prefix_store.put,
        donate_argnums=0,
        out_shardings=self._store.sharding,
      ),
    }

  def forget(self) -> None:
    """Reads all again from now on: what one search read is not another's."""
    self._store.clear()

  def score(self, requests: Sequence[Scoring]) -> list[list[Scored]]:
    """See `policy.StepScorer`."""
    try:
      with jax.set_mesh(self._mesh):
        return [[scored] for scored in self._score(requests)]
    except BaseException:
      # Pieces may be in the tree whose keys and values were never written.
      self._store.clear()
      raise

  def _score(self, requests: Sequence[Scoring]) -> list[Scored]:
    asked = [self._pieces(request) for request in requests]
    paths: list[list[Piece]] = []
    paid: list[list[Piece]] = [[] for _ in requests]
    new: list[Piece] = []
    self._store.begin()
    for pieces, own in zip(asked, paid, strict=True):
      path = self._store.find(pieces)
      while len(path) <= len(pieces):
        piece = self._store.add(path[-1], pieces[len(path) - 1])
        if piece is None:  # no room: what came before may go once it is read
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
      Scored(
        tuple(piece.score for piece in path),
        sum(len(piece.ids) for piece in own),
        sum(map(self._flops, own)),
      )
      for path, own in zip(paths, paid, strict=True)
    ]

  def _pieces(self, request: Scoring) -> list[Ids]:
    """Prompt and steps as ids; [] where they cannot be read."""
    try:
      pieces = [self._prompt_ids(request.problem)]
      for i, step in enumerate(request.steps):
        pieces.append(self._step_ids(step, i == 0))
    except UserError:
      return []
    fits = sum(map(len, pieces)) <= self._format.max_length
    return pieces if fits and request.steps else []

  def _flops(self, piece: Piece) -> float:
    logits = int(self._numbers(piece).sum())
    backbone = chain_flops(self._model, piece.first, len(piece.ids), logits)
    return backbone + self._head_flops * (piece.before.before is not None)

  def _numbers(self, piece: Piece) -> np.ndarray:  # [T] bool
    """As `StepFormat.number_tokens`, of one piece; none where nobody asks."""
    if not self._likelihood or piece.before.before is None:
      return np.zeros(len(piece.ids), bool)
    numbers = np.isin(piece.ids, [*self._format.digit_tokens])
    numbers[0] = False
    return numbers

  def _read(self, new: Sequence[Piece]) -> None:
    """Reads pieces into the store and gives them their scores."""
    if spoilt := self._read_rows(new):
      # What is masked has weight 0, and 0 times NaN is NaN: one piece spoils
      # its row. Alone, none spoils what does not follow it.
      self._read_rows([piece for piece in new if piece in spoilt], alone=True)

  def _read_rows(
    self, new: Sequence[Piece], alone: bool = False
  ) -> set[Piece]:  # those of rows in which a score is NaN
    said = []
    for runs in waves_of(new, alone):
      for S, several in by_prefix(runs, self._format.max_length):
        said += self._call_rows(S, several, alone)
    spoilt: set[Piece] = set()
    # Only now does the host wait for the device.
    for scores, ends, rows in said:
      values = np.asarray(scores)
      for row, step, piece in ends:
        piece.score = float(values[row, step])
        if math.isnan(piece.score):
          spoilt.update(each for run in rows[row] for each in run.pieces)
    return spoilt

  def _call_rows(
    self, S: int, runs: Sequence[Run], alone: bool
  ) -> Iterator[tuple[jax.Array, Ends, list[list[Run]]]]:
    """Reads runs whose prefixes fit S; scores, where each is, and the rows."""
    T, rows = pack_runs(runs, S, self._devices, alone)
    most = self._devices * max(
      1, MAX_TOKENS_PER_CALL // (self._devices * (S + T))
    )
    # A power of two times the devices, as the rows of a call are.
    most = self._devices << (most // self._devices).bit_length() - 1
    for at in range(0, len(rows), most):
      part = rows[at : at + most]
      B = rows_of_call(len(part), self._devices)
      arrays, slots, ends = self._arrays(part, B, T)
      index = None
      if S:
        index = index_of([runs[0].before for runs in part], B, S)
      scores, keys, values = self._call(
        'read', (B, T, S), self._store.pool, index, arrays
      )
      self._store.pool = self._call(
        'put', (B, T), self._store.pool, slots, keys, values
      )
      self.stats.tokens += int((arrays.segment_ids > 0).sum())
      self.stats.padded_tokens += B * T
      yield scores, ends, part

  def _arrays(
    self, rows: Sequence[Sequence[Run]], B: int, T: int
  ) -> tuple[Rows, np.ndarray, Ends]:
    """Rows [B, T], the slot of every token [B * T], and the steps that end."""
    arrays = Rows(
      *(np.zeros((B, T), np.int32) for _ in range(3)),
      np.zeros((B, max(1, T // 2)), np.int32),
      np.zeros((B, T), bool),
    )
    slots = np.full((B, T), self._store.slots + 1, np.int32)
    ends = []
    for b, runs in enumerate(rows):
      end = steps = 0
      for segment, run in enumerate(runs, 1):
        for piece in run.pieces:
          start, end = end, end + len(piece.ids)
          own = slice(start, end)
          arrays.tokens[b, own] = piece.ids
          arrays.positions[b, own] = range(piece.first, len(piece.slots))
          arrays.segment_ids[b, own] = segment
          arrays.numbers[b, own] = self._numbers(piece)
          slots[b, own] = piece.slots[piece.first :]
          if piece.before.before is not None:  # not a prompt
            arrays.step_ends[b, steps] = end - 1
            ends.append((b, steps, piece))
            steps += 1
    return arrays, slots.reshape(-1), ends

  def _call(self, name: str, sizes: tuple[int, ...], *arguments: Any) -> Any:
    """Runs a program and counts the sizes that it was compiled for."""
    if (name, *sizes) not in self.stats.programs:
      logging.info('tree scoring compiles program %s %s', name, sizes)
    self.stats.programs.add((name, *sizes))
    return self._programs[name](*arguments)


def read_rows(
  params: Any,
  pool: Pool,
  index: jax.Array | None,  # [B, S] each row's prefix; None: they have none
  rows: Rows,
  model: TransformerConfig,
  head: HeadConfig,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Scores [B, P], and keys and values [L, B, T, K, H] of the rows' tokens.

  The segments of a row all follow its prefix.
  """
  prefix = None if index is None else prefix_store.gather(pool, index)
  hidden, *kv = extend(params['backbone'], model, *rows[:3], prefix)
  return read_out(params, hidden, rows, model, head), *kv


def waves_of(new: Sequence[Piece], alone: bool = False) -> list[list[Run]]:
  """Runs, those that follow a new piece in a later wave than it.

  The first that follows a piece goes on in its run.

  Args:
    new: none before what it follows.
    alone: each is a run of its own.
  """
  ends: dict[Piece, Run] = {}  # the last piece of each run
  wave: dict[Piece, int] = {}
  waves: list[list[Run]] = []
  for piece in new:
    run = None if alone else ends.pop(piece.before, None)
    if run is None:
      run = Run(piece.before, wave.get(piece.before, -1) + 1)
      if run.wave == len(waves):
        waves.append([])
      waves[run.wave].append(run)
    run.pieces.append(piece)
    ends[piece], wave[piece] = run, run.wave
  return waves


def by_prefix(runs: Sequence[Run], longest: int) -> list[tuple[int, list[Run]]]:
  """Runs by the cached length S that is compiled for what they follow."""
  groups: dict[int, list[Run]] = collections.defaultdict(list)
  for run in runs:
    length = len(run.before.slots)
    S = min(bucket(length, SMALLEST_PREFIX), longest) if length else 0
    groups[S].append(run)
  return sorted(groups.items())


def rows_of_call(rows: int, devices: int) -> int:
  """Rows rounded up to a power of two times the devices."""
  return devices * bucket(-(-rows // devices), 1)


def pack_runs(
  runs: Sequence[Run], S: int, devices: int, alone: bool = False
) -> tuple[int, list[list[Run]]]:
  """The row length T, and the runs of each row: all after the same piece.

  A row costs its T tokens and its prefix of S: runs are packed into the length
  of the longest, or more where that costs less; `alone`, none is packed.
  """
  followers: dict[Piece, list[Run]] = collections.defaultdict(list)
  for run in runs:
    followers[run.before].append(run)
  shortest = bucket(max(run.length for run in runs), SMALLEST_ROW)
  if alone:
    return shortest, [[run] for run in runs]
  packings = {}
  for doublings in range(max(1, (LONGEST_PACKED // shortest).bit_length())):
    T = shortest << doublings
    packings[T] = [
      [own[i] for i in row]
      for own in followers.values()
      for row in first_fit([run.length for run in own], T)
    ]
  T = min(
    packings,
    key=lambda T: rows_of_call(len(packings[T]), devices) * (S + T),
  )
  return T, packings[T]
