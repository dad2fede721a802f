"""Puts new pieces of chains into the rows of a few calls.

    new pieces -> runs, each after a piece that is in the cache -> waves
      -> groups of equal prefix length -> rows

`TreeScorer` reads the rows.
"""

import collections
import dataclasses
from collections.abc import Sequence

from prm_jax.inference.packing import bucket, first_fit
from prm_jax.inference.score import MAX_TOKENS_PER_CALL
from prm_jax.models.prefix_store import Piece

SMALLEST_PREFIX = 32
SMALLEST_ROW = 8
# Longer rows attend block by block, and gather their prefix once more.
LONGEST_PACKED = 128


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


def most_rows(length: int, devices: int) -> int:
  """Returns the most rows of a call: a power of two on each device.

  Args:
    length: tokens of a row, with its prefix.
  """
  on_each = max(1, MAX_TOKENS_PER_CALL // length)
  return devices << on_each.bit_length() - 1


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


def group_by_prefix(
  runs: Sequence[PieceRun], longest: int
) -> list[tuple[int, list[PieceRun]]]:
  """Groups runs by the compiled length S that holds their prefix."""
  groups: dict[int, list[PieceRun]] = collections.defaultdict(list)
  for run in runs:
    length = len(run.before.slots)
    S = min(bucket(length, SMALLEST_PREFIX), longest) if length else 0
    groups[S].append(run)
  return sorted(groups.items())


def rows_of_call(rows: int, devices: int) -> int:
  """Rounds rows up to a power of two times the devices."""
  return devices * bucket(-(-rows // devices), 1)


def pack_runs(
  runs: Sequence[PieceRun], S: int, devices: int, alone: bool = False
) -> tuple[int, list[list[PieceRun]]]:
  """Packs runs that follow the same piece into rows of one length.

  A row costs its T tokens and its prefix of S, so rows are made longer than the
  longest run if that costs less in all.

  Args:
    S: length of the prefix.
    devices: the number of rows is rounded up to a multiple of it.
    alone: whether each run gets a row of its own.

  Returns:
    The row length T, and the runs of each row.
  """
  followers: dict[Piece, list[PieceRun]] = collections.defaultdict(list)
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
