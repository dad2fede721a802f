"""Packs the chains of a call into rows of tries, for one-shot scoring.

    encoded chains -> tries.split -> a trie in each row -> Packing

Chains with equal beginnings share them: the prompt, and every step up to where
they part. Rows come in a few sizes only, so that chains of any length need only
a handful of compiled programs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data import tries
from prm_jax.models import Rows

SMALLEST_BUCKET = 64
# A row is this many times as long as the longest chain needs.
LONGER = 1, 2, 4, 8
# Rows are not made longer than this to share more.
LONGEST = 8192
# Tokens [T], step ends [P], kinds of the tokens [T].
EncodedChain = tuple[np.ndarray, np.ndarray, np.ndarray]


class Layout(NamedTuple):
  """Locates the steps of N chains in rows; chains may share step slots."""

  slots: np.ndarray  # [N, P] index into the flattened [B * P] scores
  step_mask: np.ndarray  # [N, P] bool, False is padding


class Packing(NamedTuple):
  """Holds rows of tries and says where the chains stand in them.

  Attributes:
    rows: [B, T] tokens and [B, P] step entries, as NumPy arrays.
    layout: where each chain's steps are.
    paths: for each chain the indices of its tokens in the flattened [B * T].
  """

  rows: Rows
  layout: Layout
  paths: list[np.ndarray]


def bucket(length: int, smallest: int = SMALLEST_BUCKET) -> int:
  """Returns the smallest power of two >= `length`, but at least `smallest`."""
  return max(smallest, 1 << (length - 1).bit_length())


def row_bucket(rows: int, multiple: int) -> int:
  """Rounds `rows` up to 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, ... times `multiple`.

  With four sizes for each power of two, at most a fifth of the rows is padding.
  """
  needed = -(-rows // multiple)
  quarter = max(1, bucket(needed, 1) // 8)
  return multiple * quarter * -(-needed // quarter)


def first_fit(lengths: Sequence[int], T: int) -> list[list[int]]:
  """Packs lengths first-fit-decreasing; returns each row's indices."""
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


def empty_rows(B: int, T: int, P: int) -> Rows:
  """Makes rows of padding, as NumPy arrays."""
  nothing = np.full((B, T), -1, np.int32)
  return Rows(
    np.zeros((B, T), np.int32),
    nothing,
    np.tile(np.arange(T, dtype=np.int32), (B, 1)),
    nothing.copy(),
    np.zeros((B, T), np.int8),
    *np.zeros((2, B, P), np.int32),
  )


def pack_rows(
  chains: Sequence[EncodedChain], row_multiple: int, longest: int = LONGEST
) -> Packing:
  """Packs chains into rows, every equal beginning in a row once.

  Rows are as long as the bucket of the longest chain or longer, whichever
  computes the fewest tokens with padding and what is repeated in several rows.
  There is room for half as many steps, because a step has at least two tokens:
  one of its own and its separator.

  Args:
    chains: ids of the prompt and the steps, and arrays that belong to them.
    row_multiple: the number of rows is a multiple of it.
    longest: rows have at most so many tokens, if no chain needs more.
  """
  entries = [_entries(step_ends) for _, step_ends, _ in chains]
  B, T, groups = _choose(chains, entries, row_multiple, longest)
  P, N = T // 2, len(chains)
  rows = empty_rows(B, T, P)
  layout = Layout(np.zeros((N, P), np.int32), np.zeros((N, P), bool))
  paths = [np.empty(0, np.int32)] * N
  for b, group in enumerate(groups):
    tokens, _, kinds = zip(*(chains[i] for i in group), strict=True)
    trie = tries.build(tokens, kinds)
    own = slice(len(trie.tokens))
    rows.tokens[b, own] = trie.tokens
    rows.positions[b, own] = trie.depths
    rows.last[b, own], rows.parents[b, own] = trie.last, trie.parents
    slots: dict[tuple[int, int], int] = {}  # end and begin -> step slot
    for i, path in zip(group, trie.paths, strict=True):
      rows.kinds[b, path] = chains[i][2]
      paths[i] = b * T + path
      for p, (end, begin) in enumerate(entries[i]):
        slot = slots.setdefault((int(path[end]), begin), len(slots))
        layout.slots[i, p] = b * P + slot
        layout.step_mask[i, p] = True
    ends, begins = np.array([*slots], np.int32).T
    rows.step_ends[b, : len(slots)] = ends
    rows.step_begins[b, : len(slots)] = begins
  return Packing(rows, layout, paths)


def _entries(step_ends: np.ndarray) -> list[tuple[int, int]]:
  """Returns the indices of each step's last and first token."""
  ends = step_ends.tolist()
  return list(zip(ends, [0, *(end + 1 for end in ends[:-1])], strict=True))


def _choose(
  chains: Sequence[EncodedChain],
  entries: Sequence[Sequence[tuple[int, int]]],
  row_multiple: int,
  longest: int,
) -> tuple[int, int, list[list[int]]]:
  """Returns the number and length of the rows, and the chains of each."""
  tokens, _, kinds = zip(*chains, strict=True)
  shortest = bucket(max(map(len, tokens)))
  found = []
  for T in (shortest * factor for factor in LONGER):
    if found and longest < T:
      break
    room = tries.Budget(T, T // 2)
    groups = tries.split(tokens, room, entries, kinds)
    found.append((row_bucket(len(groups), row_multiple), T, groups))
    if len(groups) == 1:
      break
  return min(found, key=lambda shape: shape[0] * shape[1])
