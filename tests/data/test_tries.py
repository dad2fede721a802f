"""Compares tries with what their chains say, on random chains."""

import functools
import itertools
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from prm_jax.data.tries import Budget, build, split, unique_tokens
from tests.shared.cpu_time import cpu_seconds


@st.composite
def random_chains(draw, smallest=0):
  """Draws chains that often begin equally, or are equal, or prefixes."""
  token = st.integers(0, draw(st.integers(0, 2)))
  chains = draw(
    st.lists(st.lists(token, min_size=smallest, max_size=8), max_size=9)
  )
  for _ in range(draw(st.integers(0, 3)) if chains else 0):
    begin = draw(st.sampled_from(chains))
    end = draw(st.lists(token, max_size=5))
    cut = draw(st.integers(smallest, max(smallest, len(begin))))
    chains.insert(draw(st.integers(0, len(chains))), begin[:cut] + end)
  return [np.array(chain, np.int32) for chain in chains]


def with_marks(data, chains):
  one = st.booleans() | st.sampled_from([-1, 0, 1])
  return [
    np.array([data.draw(one) for _ in chain], np.int32) for chain in chains
  ]


def marked_tokens(chains, marks):
  """Returns each chain as a tuple of what its trie compares."""
  marks = marks or [np.zeros(len(chain), int) for chain in chains]
  return [
    tuple(zip(chain.tolist(), mark.tolist(), strict=True))
    for chain, mark in zip(chains, marks, strict=True)
  ]


def beginnings(chain):
  return [chain[: n + 1] for n in range(len(chain))]


@hypothesis.given(random_chains(), st.data())
def test_a_trie_holds_every_beginning_once(chains, data):
  marks = with_marks(data, chains) if data.draw(st.booleans()) else None
  trie = build(chains, marks)
  size = len(
    {each for x in marked_tokens(chains, marks) for each in beginnings(x)}
  )
  assert unique_tokens(chains, marks) == size
  for array in trie[:-1]:
    assert array.shape == (size,)
    assert array.dtype == np.int32
  assert len(trie.paths) == len(chains)
  for chain, path in zip(chains, trie.paths, strict=True):
    assert path.dtype == np.int32
    np.testing.assert_array_equal(trie.tokens[path], chain)
    np.testing.assert_array_equal(trie.depths[path], np.arange(len(path)))
    np.testing.assert_array_equal(trie.parents[path[1:]], path[:-1])
    assert (trie.parents[path[:1]] == -1).all()
  held = np.concatenate([np.empty(0, int), *trie.paths])
  np.testing.assert_array_equal(
    trie.counts, np.bincount(held.astype(int), minlength=size)
  )


@hypothesis.given(random_chains())
def test_a_token_sees_what_stands_before_it_in_its_chains(chains):
  trie = build(chains)
  ancestors = []
  for i, parent in enumerate(trie.parents):
    assert -1 <= parent < i  # depth first
    ancestors.append({i} | (ancestors[parent] if parent >= 0 else set()))
    assert {j for j in range(i + 1) if i <= trie.last[j]} == ancestors[i]
    subtree = [k for k in range(len(trie.last)) if i <= k <= trie.last[i]]
    assert all(i in ancestors[k] for k in subtree if k < len(ancestors))


@hypothesis.given(random_chains())
def test_children_stand_in_the_order_of_their_first_chain(chains):
  trie = build(chains)
  first = np.full(len(trie.tokens), len(chains))
  for i in reversed(range(len(chains))):
    first[trie.paths[i]] = i
  for parent in range(-1, len(first)):
    children = np.flatnonzero(trie.parents == parent)
    assert (np.diff(first[children]) > 0).all()


def test_a_trie_by_hand():
  chains = [np.array(x) for x in ([5, 6, 7], [5, 8], [5, 6], [9], [5, 6, 7])]
  trie = build(chains)
  assert trie.tokens.tolist() == [5, 6, 7, 8, 9]
  assert trie.depths.tolist() == [0, 1, 2, 1, 0]
  assert trie.last.tolist() == [3, 2, 2, 3, 4]
  assert trie.parents.tolist() == [-1, 0, 1, 0, -1]
  assert trie.counts.tolist() == [4, 3, 2, 1, 1]
  assert [path.tolist() for path in trie.paths] == [
    [0, 1, 2],
    [0, 3],
    [0, 1],
    [4],
    [0, 1, 2],
  ]
  assert unique_tokens(chains) == 5


def test_tokens_with_different_marks_are_not_merged():
  chains = [np.array([1, 2, 3])] * 2
  marks = [np.array([False, False, True]), np.array([False, True, True])]
  assert build(chains, marks).tokens.tolist() == [1, 2, 3, 2, 3]


@pytest.mark.slow
def test_a_chain_of_prefixes_deeper_than_the_limit_of_recursion():
  deep = sys.getrecursionlimit() + 100
  long = np.arange(deep)
  chains = [long[:n] for n in range(1, deep + 1)]
  assert build(chains).counts.tolist() == list(range(deep, 0, -1))
  # Every prefix fits its row when no token is repeated.
  groups = split(chains, Budget(deep, deep), [[(n,)] for n in range(deep)])
  assert groups == [list(range(deep))]


def with_steps(data, chains):
  label = st.integers(0, 1)
  return [
    sorted(
      (end, data.draw(label))
      for end in data.draw(st.sets(st.integers(0, len(x) - 1), max_size=4))
    )
    for x in chains
  ]


@hypothesis.given(random_chains(smallest=1), st.data())
def test_groups_hold_every_chain_once_and_fit(chains, data):
  marks = with_marks(data, chains) if data.draw(st.booleans()) else None
  steps = with_steps(data, chains)
  longest = max(map(len, chains), default=0)
  most = max(map(len, steps), default=0)
  room = Budget(
    data.draw(st.integers(longest, 3 * longest)),
    data.draw(st.none() | st.integers(most, 2 * most + 1)),
  )
  groups = split(chains, room, steps, marks)
  assert sorted(itertools.chain(*groups)) == list(range(len(chains)))
  assert groups == sorted(sorted(group) for group in groups)
  assert groups == split(chains, room, steps, marks)

  marked = marked_tokens(chains, marks)

  def fits(*parts):
    mine = [i for part in parts for i in part]
    tokens = {x for i in mine for x in beginnings(marked[i])}
    entries = {
      (marked[i][: end + 1], label) for i in mine for end, label in steps[i]
    }
    return len(tokens) <= room.tokens and (
      room.steps is None or len(entries) <= room.steps
    )

  assert all(map(fits, groups))
  # No token is repeated needlessly: no two groups have room together.
  assert not any(fits(a, b) for a, b in itertools.combinations(groups, 2))


def test_subtrees_stay_whole_and_repeat_their_path_alone():
  # 0 1 2 and, below it, two branches of 4 tokens and one of 2.
  ends = [[10, 11, 12, 13], [10, 11, 14], [20, 21, 22, 23], [30, 31]]
  chains = [np.array([0, 1, 2, *end]) for end in ends]
  groups = split(chains, Budget(tokens=9))
  assert groups == [[0, 1], [2, 3]]
  tokens = sum(unique_tokens([chains[i] for i in group]) for group in groups)
  assert tokens == unique_tokens(chains) + 3


def test_chains_that_share_few_tokens_fill_groups_as_if_they_shared_none():
  """Kept together by their first token, they would need three groups."""
  lengths = (1, 500), (1, 200), (1, 400), (2, 500), (2, 200), (2, 200)
  chains = [
    np.r_[first, np.full(length, 10 + i)]
    for i, (first, length) in enumerate(lengths)
  ]
  groups = split(chains, Budget(1024))
  assert len(groups) == 2
  assert sorted(i for group in groups for i in group) == [*range(6)]


def test_step_entries_limit_a_group_and_equal_ones_count_once():
  chains = [np.array([0, 1, 2]), np.array([0, 1, 3]), np.array([0, 4])]
  steps = [[(1, 'a'), (2, 'a')], [(1, 'a'), (2, 'a')], [(1, 'a')]]
  assert split(chains, Budget(9, 4), steps) == [[0, 1, 2]]
  assert split(chains, Budget(9, 3), steps) == [[0, 1], [2]]
  # Entries that name their chain are kept apart.
  own = [[(*each, i) for each in mine] for i, mine in enumerate(steps)]
  assert split(chains, Budget(9, 3), own) == [[0, 2], [1]]


def test_a_chain_that_does_not_fit_alone_is_named():
  chains = [np.array([0]), np.array([0, 1, 2])]
  with pytest.raises(ValueError, match='chain 1 has 3 tokens and 0 step'):
    split(chains, Budget(2))
  with pytest.raises(ValueError, match='chain 0 has 1 tokens and 1 step'):
    split(chains, Budget(3, 0), [[(0,)], []])


def test_steps_of_chains_that_do_not_fit_together_are_not_joined():
  """To join them for every two chains of a problem took minutes."""
  room, took = Budget(110, 1000), []
  for count in (200, 800):
    chains = [np.array([0, i, *range(100)]) for i in range(1, count + 1)]
    steps = [[(k, 1.0) for k in range(1, 100)]] * count
    assert len(split(chains, room, steps)) == count
    took.append(cpu_seconds(functools.partial(split, chains, room, steps)))
  assert took[1] < 8 * took[0] + 0.1


@hypothesis.given(random_chains(smallest=1), st.integers(0, 12))
def test_few_tokens_are_repeated(chains, more):
  room = Budget(max(map(len, chains), default=0) + more)
  groups = split(chains, room)
  tokens = sum(unique_tokens([chains[i] for i in group]) for group in groups)
  unique, flat = unique_tokens(chains), sum(map(len, chains))
  assert unique <= tokens <= flat
  if len(chains) <= 6:
    best = min(
      sum(sizes)
      for each in partitions(list(range(len(chains))))
      for sizes in [[unique_tokens([chains[i] for i in g]) for g in each]]
      if max(sizes, default=0) <= room.tokens
    )
    assert tokens <= 1.5 * best


def partitions(items):
  """Yields every way to split a list into groups."""
  if not items:
    yield []
    return
  for rest in partitions(items[1:]):
    yield [[items[0]], *rest]
    for k, group in enumerate(rest):
      yield [*rest[:k], [items[0], *group], *rest[k + 1 :]]
