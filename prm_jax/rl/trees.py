"""Lays chains out as rows of trees, so that a shared beginning is read once.

    tokens of chains [C, T] -> tries -> rows [B, L] of a few fixed shapes
      -> numbers of each token of the rows -> Trees.nodes -> those of the chains

The chains of a group share their prompt, and often first steps. What is known
of each chain stays in arrays [C, T]; only the forward pass reads the rows.

A batch of several parts is cut as the train step cuts it into microbatches:
every part takes each `parts`-th chain and each `parts`-th row. The rows of a
part hold exactly its chains.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax.data import tries
from prm_jax.data.tries import Budget
from prm_jax.inference.packing import row_bucket
from prm_jax.models import TransformerConfig

LENGTHS = 1, 2, 4  # of rows, times the length of the longest chain


class Trees(NamedTuple):
  """Holds trees of tokens, and where the tokens of each chain stand in them."""

  tokens: jax.Array  # [B, L] int32
  positions: jax.Array  # [B, L] int32 depths; -1 is padding
  last: jax.Array  # [B, L] int32, last token of its subtree; padding: itself
  parents: jax.Array  # [B, L] int32, the token before; -1 where there is none
  # [C, T] int32: token n of row b of the part is b * L + n; -1 where there is
  # no token, or none in the rows.
  nodes: jax.Array

  def count(self) -> int:
    """Returns the number of tokens in the rows."""
    return int((np.asarray(self.positions) >= 0).sum())


class Layout(NamedTuple):
  """Says which rows are good.

  Attributes:
    devices: must divide the number of rows of each part.
    costly: length of a row in which attention costs a token as much as the
      rest of the model.
  """

  devices: int = 1
  costly: int = 8192


ONE_DEVICE = Layout()


def layout_for(model: TransformerConfig, mesh: Mesh) -> Layout:
  """Returns the layout of rows that a model reads on a mesh."""
  devices = mesh.shape['replica'] * mesh.shape['fsdp']
  # A layer takes about 24 D^2 operations a token, and its attention 4 D a
  # token that it may see; the scores of attention also wait for memory.
  return Layout(devices, 4 * model.d_model)


def interleaved(count: int, parts: int) -> np.ndarray:  # [count] int
  """Returns an order in which neighbours come into the same part."""
  return np.arange(count).reshape(parts, -1).T.ravel()


def part_of(batch: Any, part: int, parts: int) -> Any:
  """Returns one part of arrays whose first axis is cut."""
  return jax.tree.map(lambda x: x[part::parts], batch)


def lay_out(
  tokens: np.ndarray,  # [C, T]
  lengths: np.ndarray,  # [C], 0 for padding
  parts: int = 1,
  layout: Layout = ONE_DEVICE,
  kept: np.ndarray | None = None,  # [C] bool
) -> Trees:
  """Lays chains out in rows that hold equal beginnings once.

  Where the devices divide the chains of each part, there are never more rows
  than chains, and never more tokens in rows than in `tokens`, padding included.

  Args:
    parts: see above; it must divide C.
    kept: which chains the rows hold; None takes all.
  """
  C, T = tokens.shape
  chains = [row[:n] for row, n in zip(tokens, lengths, strict=True)]
  held = lengths > 0 if kept is None else kept & (lengths > 0)
  of_part = [
    [c for c in range(part, C, parts) if held[c]] for part in range(parts)
  ]
  # As many rows of one chain each as there may have to be.
  most = -(-C // parts // layout.devices) * layout.devices
  L = T * _chains_in_row(T, most, layout)
  groups = [_split(chains, some, L) for some in of_part]
  rows = row_bucket(max(1, *map(len, groups)), layout.devices)
  if rows * L > most * T:
    L, rows = T, most
    groups = [_split(chains, some, L) for some in of_part]
  trees = _empty(rows * parts, L, C, T)
  for part, of_rows in enumerate(groups):
    for b, members in enumerate(of_rows):
      trie = tries.build([chains[c] for c in members])
      n, row = len(trie.tokens), b * parts + part
      trees.tokens[row, :n], trees.positions[row, :n] = trie.tokens, trie.depths
      trees.last[row, :n], trees.parents[row, :n] = trie.last, trie.parents
      for c, path in zip(members, trie.paths, strict=True):
        trees.nodes[c, : len(path)] = b * L + path
  return trees


def _chains_in_row(length: int, rows: int, layout: Layout) -> int:
  """Returns how many of the longest chains fit a row: one of LENGTHS.

  It does not depend on what chains share. With another length for each update,
  more programs would be compiled than longer rows save.

  Args:
    length: tokens of the longest chain.
    rows: number of rows that hold one chain each.
  """
  return max(
    times
    for times in LENGTHS
    if times == 1
    or (2 * times * length <= layout.costly and times * layout.devices <= rows)
  )


def _split(
  chains: Sequence[np.ndarray], some: list[int], length: int
) -> list[list[int]]:
  """Splits some of the chains into those of one row each."""
  groups = tries.split([chains[c] for c in some], Budget(length))
  return [[some[i] for i in group] for group in groups]


def _empty(B: int, L: int, C: int, T: int) -> Trees:
  """Returns rows without tokens."""
  return Trees(
    np.zeros((B, L), np.int32),
    np.full((B, L), -1, np.int32),
    np.tile(np.arange(L, dtype=np.int32), (B, 1)),
    np.full((B, L), -1, np.int32),
    np.full((C, T), -1, np.int32),
  )
