"""Chooses the sizes of calls; each size is a compiled program.

    lengths of the rows, length of what precedes them -> Grid.calls
      -> rows of each call, and their length

Compiling a size takes seconds, and padding takes time in every call. Search
repeats the same few sizes, so many sizes may be compiled and each round takes
as few calls as possible (`fine_grid`). Requests to a server have any size, and
no client should wait for a compilation, so a few sizes are compiled before and
a request may be split into several small calls (`coarse_grid`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from prm_jax.inference.packing import bucket
from prm_jax.inference.score import MAX_TOKENS_PER_CALL

# What a token of the prefix costs beside one that is read: it is attended to,
# and nothing else. Measured on a CPU with models of few layers.
PREFIX_COST = 0.25
FEWEST_CALLS = 1 << 20  # tokens; no padding is worth another call
CALL_COST = 256


class Sizes(NamedTuple):
  """Gives the sizes of a call.

  Attributes:
    rows: number of rows, B.
    tokens: tokens of a row, T.
    prefix: tokens before each row, S; 0 for none.
  """

  rows: int
  tokens: int
  prefix: int

  @property
  def cost(self) -> float:
    """Returns the time of a call, in units of reading a token."""
    return self.rows * (self.tokens + PREFIX_COST * self.prefix)


class Grid(NamedTuple):
  """Lists the sizes that calls may have, each in order.

  Attributes:
    rows: numbers of rows.
    tokens: lengths of a row.
    prefixes: lengths of what precedes a row.
    packed: most tokens of a row that holds several runs.
    call: what a call costs beside its tokens, in tokens.
    devices: number of devices that share rows.
  """

  rows: tuple[int, ...]
  tokens: tuple[int, ...]
  prefixes: tuple[int, ...]
  packed: int
  call: int
  devices: int

  def sizes(self) -> list[Sizes]:
    """Returns all sizes."""
    return [
      Sizes(B, T, S)
      for T in self.tokens
      for S in self.prefixes
      for B in self._rows(T, S)
    ]

  def calls(
    self, lengths: Sequence[int], S: int
  ) -> tuple[float, list[tuple[Sizes, int]]]:
    """Chooses the calls that read some rows.

    Args:
      lengths: of the rows, the longest first.
      S: length of their prefix.

    Returns:
      The cost of all calls in tokens; and for each call, in the order of the
      rows, its sizes and the number of rows that it takes.
    """
    count = len(lengths)
    priced: dict[int, list[tuple[float, Sizes]]] = {}
    for T in {room_for(length, self.tokens) for length in {*lengths}}:
      sizes_of_T = [Sizes(B, T, S) for B in reversed(self._rows(T, S))]
      priced[T] = [(self.call + sizes.cost, sizes) for sizes in sizes_of_T]
    # best[i]: the cost of reading rows i, i + 1, ..., and their first call. It
    # takes as many as it has room for: fewer, shorter rows never cost more.
    best: list[tuple[float, Sizes | None]] = [(0.0, None)] * (count + 1)
    for first in reversed(range(count)):
      best[first] = min(
        (
          (cost + best[min(first + sizes.rows, count)][0], sizes)
          for cost, sizes in priced[room_for(lengths[first], self.tokens)]
        ),
        key=lambda choice: choice[0],
      )
    calls, first = [], 0
    while (sizes := best[first][1]) is not None:
      taken = min(sizes.rows, count - first)
      calls.append((sizes, taken))
      first += taken
    return best[0][0], calls

  def _rows(self, T: int, S: int) -> list[int]:
    """Returns the numbers of rows that a call of such rows may have."""
    most = most_rows(T + S, self.devices)
    return [B for B in self.rows if most >= B]


def room_for(length: int, sizes: Sequence[int]) -> int:
  """Returns the first size that has room for a length."""
  return next(size for size in sizes if size >= length)


def most_rows(length: int, devices: int) -> int:
  """Returns the most rows of a call: a power of two on each device.

  Args:
    length: tokens of a row, with its prefix.
  """
  on_each = max(1, MAX_TOKENS_PER_CALL // length)
  return devices << on_each.bit_length() - 1


def fine_grid(longest: int, devices: int) -> Grid:
  """Returns powers of two, for calls of the same few sizes.

  Args:
    longest: tokens of the PRM's window.
    devices: those that share rows.
  """
  return Grid(
    _powers(1, MAX_TOKENS_PER_CALL, 2, devices),
    _powers(8, bucket(max(longest, 128)), 2),
    (0, *_powers(32, longest, 2)),
    packed=128,
    call=FEWEST_CALLS,
    devices=devices,
  )


def coarse_grid(longest: int, devices: int) -> Grid:
  """Returns few sizes, for calls of any sizes.

  Args:
    longest: tokens of the PRM's window.
    devices: those that share rows.
  """
  last = bucket(longest, 16)
  tokens = {
    *_powers(16, min(last, 2048), 2),
    *_powers(min(last, 2048), last, 4),
  }
  return Grid(
    _powers(1, 64, 8, devices),
    tuple(sorted(tokens)),
    (0, *_powers(128, longest, 4)),
    packed=1024,
    call=CALL_COST,
    devices=devices,
  )


def _powers(
  first: int, last: int, factor: int, times: int = 1
) -> tuple[int, ...]:
  """Returns first, first * factor, ..., last, each so many times."""
  found = [first]
  while found[-1] < last:
    found.append(found[-1] * factor)
  return tuple(times * min(size, last) for size in found)
