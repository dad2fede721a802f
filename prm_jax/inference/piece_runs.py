"""Puts new pieces of chains into the rows of a few calls.

    new pieces -> runs, each after a piece that is in the cache -> waves
      -> groups of equal prefix length -> rows -> calls

`TreeScorer` reads the rows of each call.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from prm_jax.inference.call_sizes import Grid, Sizes, room_for
from prm_jax.inference.packing import first_fit
from prm_jax.models.prefix_store import Piece

Row = list['PieceRun']


@dataclasses.dataclass
class PieceRun:
  """Lists new pieces that follow each other and are read as one.

  Attributes:
    before: the piece that the first of them follows.
    wave: number of the pass that reads the run; what it follows was read in an
      earlier pass.
  """

  before: Piece
  wave: int
  pieces: list[Piece] = dataclasses.field(default_factory=list)

  @property
  def length(self) -> int:
    """Returns the length in tokens."""
    return sum(len(piece.ids) for piece in self.pieces)


def split_into_waves(
  new: Sequence[Piece], alone: bool = False
) -> list[list[PieceRun]]:
  """Groups new pieces into runs, and runs into waves that are read in turn.

  The first new piece that follows another joins its run; other pieces that
  follow it begin runs in a later wave.

  Args:
    new: pieces, each after the one that it follows.
    alone: whether each piece is a run of its own.
  """
  ends: dict[Piece, PieceRun] = {}  # the last piece of each run
  wave: dict[Piece, int] = {}
  waves: list[list[PieceRun]] = []
  for piece in new:
    run = None if alone else ends.pop(piece.before, None)
    if run is None:
      run = PieceRun(piece.before, wave.get(piece.before, -1) + 1)
      if run.wave == len(waves):
        waves.append([])
      waves[run.wave].append(run)
    run.pieces.append(piece)
    ends[piece], wave[piece] = run, run.wave
  return waves


def plan_calls(
  runs: Sequence[PieceRun], grid: Grid, alone: bool = False
) -> Iterator[tuple[Sizes, list[Row]]]:
  """Yields calls that read runs, with the runs of each row.

  Args:
    alone: whether each run gets a row of its own.
  """
  groups: dict[int, list[PieceRun]] = collections.defaultdict(list)
  for run in runs:
    groups[room_for(run.before.end, grid.prefixes)].append(run)
  for S, group in sorted(groups.items()):
    rows = [[run] for run in group] if alone else pack_runs(group, S, grid)
    rows.sort(key=length_of, reverse=True)
    _, calls = grid.calls([*map(length_of, rows)], S)
    for sizes, count in calls:
      yield sizes, rows[:count]
      rows = rows[count:]


def length_of(row: Row) -> int:
  """Returns the tokens of a row."""
  return sum(run.length for run in row)


def pack_runs(runs: Sequence[PieceRun], S: int, grid: Grid) -> list[Row]:
  """Packs runs that follow the same piece into rows.

  A row has one prefix, so rows are made longer than the longest run if that
  costs less in all.

  Args:
    S: length of the prefix.
  """
  followers: dict[Piece, list[PieceRun]] = collections.defaultdict(list)
  for run in runs:
    followers[run.before].append(run)
  best: list[Row] = [[run] for run in runs]
  least = _cost(best, S, grid)
  shortest = min(run.length for run in runs)
  for T in grid.tokens:
    if len(best) == len(followers) or grid.packed < T:
      break
    if 2 * shortest > T:  # no two fit
      continue
    rows = [row for own in followers.values() for row in _pack(own, T)]
    cost = _cost(rows, S, grid)
    if cost < least:
      best, least = rows, cost
  return best


def _cost(rows: Sequence[Row], S: int, grid: Grid) -> float:
  lengths = sorted(map(length_of, rows), reverse=True)
  return grid.calls(lengths, S)[0]


def _pack(runs: Sequence[PieceRun], T: int) -> list[Row]:
  """Packs runs into rows of T tokens; one that is longer has its own."""
  lengths = [min(run.length, T) for run in runs]
  return [[runs[i] for i in row] for row in first_fit(lengths, T)]
