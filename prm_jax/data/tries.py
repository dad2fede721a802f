"""Merges chains of tokens whose beginnings are equal, so each is stored once.

    chains -> split -> groups that fit a row -> build -> a trie for each group

A trie holds its tokens in depth-first order, so the subtree of a token is the
run of tokens from it to `last`. Query i of a row may see key j where
`j <= i <= last[j]`, and these are the tokens of i's chain up to i. Training,
scoring and RL lay out their rows with it.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

# A row has this many times as many tokens as are worth repeating, if that makes
# fewer rows.
FEW = 64


class Trie(NamedTuple):
  """Holds chains as a tree of tokens, or as several trees one after another.

  Attributes:
    tokens: token ids in depth-first order.
    depths: index of the token in the chains that hold it.
    last: index of the last token of the token's subtree.
    parents: index of the token before it in its chains; -1 for a first token.
    counts: number of chains that hold the token.
    paths: for each chain the indices of its tokens, in order.
  """

  tokens: np.ndarray  # [n] int32
  depths: np.ndarray  # [n] int32
  last: np.ndarray  # [n] int32
  parents: np.ndarray  # [n] int32
  counts: np.ndarray  # [n] int32
  paths: tuple[np.ndarray, ...]  # of [chain's tokens] int32


class Budget(NamedTuple):
  """Says what a row has room for.

  Attributes:
    tokens: number of tokens.
    steps: number of step entries; None is no limit.
  """

  tokens: int
  steps: int | None = None


class _Run:
  """Holds tokens that follow each other without a branch between them.

  Attributes:
    chain: a chain that holds the tokens, at `begin` to `end`.
    ends: the chains whose last token is the last one of the run.
    children: the runs that continue this one, by their first token.
    start: index of the first token in the trie.
    parent: the run that this one continues; None for the empty root.
  """

  def __init__(self, chain: int, begin: int, end: int) -> None:
    self.chain, self.begin, self.end = chain, begin, end
    self.ends: list[int] = []
    self.children: dict[int, _Run] = {}
    self.start = 0
    self.parent: _Run | None = None

  def __len__(self) -> int:
    return self.end - self.begin

  def cut(self, depth: int, token: int) -> None:
    """Moves what stands from `depth` on, where `token` is, into a child."""
    rest = _Run(self.chain, depth, self.end)
    rest.ends, rest.children = self.ends, self.children
    self.end, self.ends, self.children = depth, [], {token: rest}


def build(
  chains: Sequence[np.ndarray], marks: Sequence[np.ndarray] | None = None
) -> Trie:
  """Merges the equal beginnings of chains, token by token.

  Children stand in the order of the first chain that holds them, so equal
  chains give equal tries. Chains may be equal, prefixes of others, or empty;
  those without a common first token become trees beside each other.

  Args:
    chains: token ids, of [length] int each.
    marks: int32 or smaller numbers that the tokens of each chain carry; tokens
      with different marks are not merged.
  """
  return _lay_out(_grow(_keys(chains, marks)), chains)


def unique_tokens(
  chains: Sequence[np.ndarray], marks: Sequence[np.ndarray] | None = None
) -> int:
  """Returns the number of tokens of the chains' trie, without building it."""
  # Sorted chains share most with their neighbours. Any order that puts equal
  # beginnings together will do, such as that of the bytes.
  keys = sorted(_keys(chains, marks), key=lambda key: key.tobytes())
  shared = sum(_common(a, b) for a, b in itertools.pairwise(keys))
  return sum(map(len, keys)) - shared


def split(
  chains: Sequence[np.ndarray],
  room: Budget,
  steps: Sequence[Sequence[tuple]] | None = None,
  marks: Sequence[np.ndarray] | None = None,
) -> list[list[int]]:
  """Splits chains into groups whose tries fit into a row each.

  Every group repeats its path from the root. To repeat few tokens, the trie is
  walked from its leaves to the root: what fits together below a token stays
  together, and the parts that are left join at the next branch above, largest
  first, each in the first group that has room for it. Chains that share only
  a few tokens also join one by one, if that makes fewer groups.

  Args:
    chains, marks: as `build` takes them.
    steps: for each chain its step entries, tuples that begin with the index of
      the step's last token in the chain. Entries of several chains that are
      equal and stand at the same token count once. None counts no entries.

  Returns:
    The indices of each group's chains in ascending order; groups are ordered by
    their first chain.

  Raises:
    ValueError: a chain does not fit alone.
  """
  keys = _keys(chains, marks)
  root = _grow(keys)
  trie = _lay_out(root, chains)
  entries = [
    frozenset((int(path[each[0]]), *each[1:]) for each in mine)
    for path, mine in zip(trie.paths, steps or [()] * len(keys), strict=True)
  ]
  for i, key in enumerate(keys):
    if not _fits(len(key), entries[i], room):
      raise ValueError(
        f'chain {i} has {len(key)} tokens and {len(entries[i])} step entries: '
        f'more than {room} has room for'
      )
  if not keys:
    return []
  if _fits(len(trie.tokens), frozenset().union(*entries), room):
    return [list(range(len(keys)))]
  few = room.tokens // FEW
  found = [_gather(root, entries, room, least) for least in (1, few)]
  return sorted(sorted(part.chains) for part in min(found, key=len))


class _Part(NamedTuple):
  """Holds chains that a group will hold together.

  Attributes:
    tokens: number of their unique tokens below the run that is looked at.
    entries: their step entries, from the root on.
  """

  tokens: int
  entries: frozenset[tuple]
  chains: tuple[int, ...]


def _gather(
  root: _Run,
  entries: Sequence[frozenset[tuple]],
  room: Budget,
  least: int,
) -> list[_Part]:
  """Returns the parts of each group, joined from the leaves to the root.

  Parts are joined at the root and below every `least` tokens of a path.
  """
  # Tokens from the last join above to the end of each run.
  loose = {root: least}
  runs = list(_depth_first(root))
  for run in runs:
    passed = 0 if loose[run] >= least else loose[run]
    loose |= {child: passed + len(child) for child in run.children.values()}
  parts: dict[_Run, list[_Part]] = {}
  for run in reversed(runs):
    below = [
      part._replace(tokens=part.tokens + len(child))
      for child in run.children.values()
      for part in parts.pop(child)
    ]
    below += [_Part(0, entries[i], (i,)) for i in run.ends]
    if loose[run] >= least:
      below = _join(below, room._replace(tokens=room.tokens - run.end))
    parts[run] = below
  return parts[root]


def _join(parts: list[_Part], room: Budget) -> list[_Part]:
  """Joins parts that have no tokens in common, while they fit the room."""
  joined: list[_Part] = []
  for part in sorted(parts, key=lambda part: -part.tokens):
    for k, other in enumerate(joined):
      if part.tokens + other.tokens > room.tokens:
        continue
      both = _Part(
        part.tokens + other.tokens,
        part.entries | other.entries,
        other.chains + part.chains,
      )
      if _fits(both.tokens, both.entries, room):
        joined[k] = both
        break
    else:
      joined.append(part)
  return joined


def _fits(tokens: int, entries: frozenset[tuple], room: Budget) -> bool:
  return tokens <= room.tokens and (
    room.steps is None or len(entries) <= room.steps
  )


def _keys(
  chains: Sequence[np.ndarray], marks: Sequence[np.ndarray] | None
) -> list[np.ndarray]:
  """Returns one int64 for each token, which is equal where tokens merge."""
  keys = [np.asarray(chain).astype(np.int64) for chain in chains]
  if marks is None:
    return keys
  return [
    key << 32 | np.asarray(mark).astype(np.uint32).astype(np.int64)
    for key, mark in zip(keys, marks, strict=True)
  ]


def _common(a: np.ndarray, b: np.ndarray) -> int:
  """Returns the length of the longest common beginning."""
  shorter = min(len(a), len(b))
  differ = a[:shorter] != b[:shorter]
  first = int(differ.argmax()) if shorter else 0
  return first if shorter and differ[first] else shorter


def _grow(keys: list[np.ndarray]) -> _Run:
  """Returns the empty root of the chains' runs."""
  root = _Run(0, 0, 0)
  for i, key in enumerate(keys):
    run, depth = root, 0
    while depth < len(key):
      child = run.children.get(int(key[depth]))
      if child is None:
        child = _Run(i, depth, len(key))
        run.children[int(key[depth])] = child
        depth = len(key)
      else:
        other = keys[child.chain]
        depth += _common(key[depth : child.end], other[depth : child.end])
        if depth < child.end:
          child.cut(depth, int(other[depth]))
      run = child
    run.ends.append(i)
  return root


def _depth_first(root: _Run) -> Iterator[_Run]:
  # Runs may be nested deeper than Python's limit of recursion.
  stack = [root]
  while stack:
    run = stack.pop()
    yield run
    stack += reversed(run.children.values())


def _lay_out(root: _Run, chains: Sequence[np.ndarray]) -> Trie:
  """Lays out runs as arrays, depth first, and notes where each one starts."""
  runs = list(_depth_first(root))
  start = 0
  for run in runs:
    run.start = start
    start += len(run)
    for child in run.children.values():
      child.parent = run
  tokens, depths, last, parents, counts = np.empty((5, start), np.int32)
  parents[:] = np.arange(start) - 1
  stops = dict.fromkeys(runs, 0)  # index after the subtree
  numbers = dict.fromkeys(runs, 0)  # of chains
  paths = [np.empty(0, np.int32)] * len(chains)
  for run in reversed(runs):
    here = slice(run.start, run.start + len(run))
    stops[run] = max([here.stop, *(stops[r] for r in run.children.values())])
    numbers[run] = len(run.ends) + sum(
      numbers[child] for child in run.children.values()
    )
    if len(run):
      tokens[here] = chains[run.chain][run.begin : run.end]
      depths[here] = np.arange(run.begin, run.end)
      last[here] = stops[run] - 1
      counts[here] = numbers[run]
      above = run.parent
      first = above is None or not len(above)
      parents[run.start] = -1 if first else above.start + len(above) - 1
    for i in run.ends:
      paths[i] = _path(run)
  return Trie(tokens, depths, last, parents, counts, tuple(paths))


def _path(run: _Run) -> np.ndarray:
  """Returns the indices of the tokens from the root to the end of a run."""
  path = np.empty(run.end, np.int32)
  at: _Run | None = run
  while at is not None:
    path[at.begin : at.end] = np.arange(at.start, at.start + len(at))
    at = at.parent
  return path
