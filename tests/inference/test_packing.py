"""Packing by properties: chains, also those that share beginnings, in rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data import tries
from prm_jax.inference.packing import LONGER, bucket, pack_rows, row_bucket


def test_buckets_by_hand():
  assert [bucket(n) for n in (1, 64, 65, 128, 129)] == [64, 64, 128, 128, 256]
  assert [bucket(n, 1) for n in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, 16]
  rows = [row_bucket(n, 1) for n in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17)]
  assert rows == [1, 2, 3, 4, 5, 7, 8, 10, 12, 14, 20]
  # On eight devices everything is a multiple of eight.
  assert [row_bucket(n, 8) for n in (1, 8, 9, 25, 65)] == [8, 8, 16, 32, 80]


@given(st.integers(1, 10_000), st.sampled_from([1, 2, 3, 8]))
def test_row_buckets_waste_at_most_a_fifth(rows, multiple):
  padded = row_bucket(rows, multiple)
  assert padded % multiple == 0
  needed = -(-rows // multiple) * multiple
  assert rows <= padded
  assert (padded - needed) / padded <= 1 / 5


def test_rows_are_longer_where_that_pads_less():
  def shape(*lengths):
    steps = [
      (np.full(n, i), np.array([n - 1]), np.zeros(n, bool))
      for i, n in enumerate(lengths)
    ]
    return pack_rows(steps, 1).rows.tokens.shape

  assert shape(40, 40, 40) == (1, 128)
  assert shape(40, 40) == (2, 64)  # as many tokens either way
  assert shape(40, 24, 40, 24) == (2, 64)
  assert shape(50, 50, 50, 50, 50) == (1, 256)


def test_rows_are_longer_where_that_repeats_less():
  """Of 60 tokens the first 50 are shared: in a row of 128 by seven chains."""
  chains = [
    (np.int32([1] * 50 + [i] * 10), np.int32([59]), np.zeros(60, bool))
    for i in range(2, 9)
  ]
  rows, layout, _ = pack_rows(chains, 1)
  assert rows.tokens.shape == (1, 128)
  assert (rows.positions >= 0).sum() == 50 + 7 * 10
  assert layout.slots[:, 0].tolist() == [*range(7)]


@st.composite
def chains_of_steps(draw):
  """Draws (tokens, step ends, kinds); some begin as others do.

  A token has its kind by its id, and steps may end anywhere.
  """
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  made = []
  for _ in range(draw(st.integers(1, 12))):
    kept, ends = [], []
    if made and rng.random() < 0.7:
      tokens, step_ends, _ = made[rng.integers(len(made))]
      steps = rng.integers(len(step_ends) + 1)
      ends = step_ends[:steps].tolist()
      kept = tokens[: ends[-1] + 1].tolist() if ends else []
    for _ in range(rng.integers(not ends, 4)):
      kept += rng.integers(1, 5, rng.integers(2, 30)).tolist()
      ends.append(len(kept) - 1)
    tokens = np.int32(kept)
    made.append((tokens, np.int32(ends), np.int8(tokens % 3)))
  return made


@given(chains_of_steps(), st.sampled_from([1, 3, 8]))
@settings(deadline=None)
def test_every_chain_stands_in_the_tree_of_its_row(made, multiple):
  rows, layout, paths = pack_rows(made, multiple)
  B, T = rows.tokens.shape
  assert B % multiple == 0
  shortest = bucket(max(len(tokens) for tokens, *_ in made))
  assert T in [shortest * factor for factor in LONGER]
  for array in (*rows[:4], *rows[5:], layout.slots):
    assert array.dtype == np.int32
  assert rows.kinds.dtype == np.int8
  flat = [x.reshape(-1) for x in rows]
  tokens, positions, last, parents, kinds, ends, begins = flat
  at, used = np.arange(T), np.zeros(B * T, bool)
  for i, (ids, step_ends, marks) in enumerate(made):
    path, mask = paths[i], layout.step_mask[i]
    used[path] = True
    np.testing.assert_array_equal(tokens[path], ids)
    np.testing.assert_array_equal(kinds[path], marks)
    np.testing.assert_array_equal(positions[path], np.arange(len(ids)))
    b, inside = np.divmod(path, T)
    assert (b == b[0]).all()
    np.testing.assert_array_equal(parents[path], [-1, *inside[:-1]])
    # What the last token sees are the tokens of the chain.
    row = slice(b[0] * T, (b[0] + 1) * T)
    seen = (at <= inside[-1]) & (inside[-1] <= last[row])
    np.testing.assert_array_equal(np.flatnonzero(seen), inside)
    # The slots of its steps lead to their own last and first tokens.
    assert mask[: len(step_ends)].all() and mask.sum() == len(step_ends)
    slots = layout.slots[i, mask]
    np.testing.assert_array_equal(slots // (T // 2), b[0])
    np.testing.assert_array_equal(ends[slots], inside[step_ends])
    firsts = [0, *(step_ends[:-1] + 1)]
    np.testing.assert_array_equal(begins[slots], firsts)
  np.testing.assert_array_equal(used, positions >= 0)
  alone = np.tile(at, B)[~used]
  np.testing.assert_array_equal(last[~used], alone)
  assert (parents[~used] == -1).all()
  # All of a row's chains share what they can.
  row_of = np.array([path[0] // T for path in paths])
  for b in range(row_of.max() + 1):
    own = [made[i] for i in np.flatnonzero(row_of == b)]
    unique = tries.unique_tokens([x[0] for x in own], [x[2] for x in own])
    assert unique == (rows.positions[b] >= 0).sum()


def test_longer_rows_need_permission():
  def shape(count, longest):
    ids = [np.full(50, i, np.int32) for i in range(count)]
    ends, kinds = np.int32([49]), np.zeros(50, np.int8)
    chains = [(tokens, ends, kinds) for tokens in ids]
    return pack_rows(chains, 1, longest).rows.tokens.shape

  assert shape(5, 256) == (1, 256)
  assert shape(5, 255) == (5, 64)
  # A chain alone may be longer than that.
  assert shape(5, 16) == (5, 64)


@given(chains_of_steps())
@settings(deadline=None)
def test_equal_chains_cost_nothing(made):
  once, twice = pack_rows(made, 1), pack_rows([*made, *made], 1)
  for a, b in zip(once.rows, twice.rows, strict=True):
    np.testing.assert_array_equal(a, b)
  for a in twice.layout:
    np.testing.assert_array_equal(a[: len(made)], a[len(made) :])
