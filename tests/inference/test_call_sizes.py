"""Sizes of calls: worked by hand, and beside all ways to split rows."""

import itertools

import numpy as np
import pytest

from prm_jax.inference.call_sizes import (
  CALL_COST,
  Grid,
  Sizes,
  coarse_grid,
  fine_grid,
  most_rows,
)
from prm_jax.inference.score import MAX_TOKENS_PER_CALL

pytestmark = pytest.mark.once


def test_a_search_takes_one_call_where_rows_fit():
  grid = fine_grid(512, 1)
  assert grid.calls([100], 0)[1] == [(Sizes(1, 128, 0), 1)]
  assert grid.calls([100, 9, 9], 32)[1] == [(Sizes(4, 128, 32), 3)]
  # 16,384 tokens in a call: 64 rows of 128 after as many.
  assert grid.calls([128] * 70, 128)[1] == [
    (Sizes(64, 128, 128), 64),
    (Sizes(8, 128, 128), 6),
  ]


def test_a_server_takes_several_calls_where_that_costs_less():
  grid = coarse_grid(512, 1)
  assert grid.rows == (1, 8, 64)
  assert grid.tokens == (16, 32, 64, 128, 256, 512)
  assert grid.prefixes == (0, 128, 512)
  # 64 rows of 64 tokens cost 4,096; 8 and 1 of them 576, and another call.
  _, calls = grid.calls([60] * 9, 0)
  assert calls == [(Sizes(8, 64, 0), 8), (Sizes(1, 64, 0), 1)]
  # One long row: 512 and two calls in place of 8 times 512.
  cost, calls = grid.calls([500, 20, 20, 20], 0)
  assert calls == [(Sizes(1, 512, 0), 1), (Sizes(8, 32, 0), 3)]
  assert cost == 2 * CALL_COST + 512 + 8 * 32
  # A prefix costs a quarter of its tokens.
  assert grid.calls([20], 128)[0] == CALL_COST + 32 + 32


@pytest.mark.parametrize('seed', range(20))
def test_no_way_to_split_rows_costs_less(seed):
  rng = np.random.default_rng(seed)
  grid = Grid((1, 4, 16), (8, 32, 64), (0, 32), 64, int(rng.integers(100)), 1)
  lengths = sorted(rng.integers(1, 65, 9).tolist(), reverse=True)
  S = int(rng.choice([0, 32]))
  cost, calls = grid.calls(lengths, S)
  assert cost == sum(grid.call + sizes.cost for sizes, _ in calls)
  least = float('inf')
  for cuts in itertools.product([False, True], repeat=len(lengths) - 1):
    ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(lengths)]
    total = 0.0
    for begin, end in zip([0, *ends], ends, strict=False):
      T = next(T for T in grid.tokens if lengths[begin] <= T)
      B = next(B for B in grid.rows if end - begin <= B)
      total += grid.call + Sizes(B, T, S).cost
    least = min(least, total)
  assert cost == pytest.approx(least)


@pytest.mark.parametrize('devices', [1, 4])
@pytest.mark.parametrize('longest', [20, 46, 256, 2048, 32_768])
@pytest.mark.parametrize('make_grid', [fine_grid, coarse_grid])
def test_every_call_has_room_and_is_one_of_the_grid(
  make_grid, longest, devices
):
  grid = make_grid(longest, devices)
  sizes = {*grid.sizes()}
  if make_grid is coarse_grid:
    assert len(sizes) <= 100
  assert all(it.rows % devices == 0 for it in sizes)
  rng = np.random.default_rng(0)
  for count, S in itertools.product((1, 3, 20, 300), grid.prefixes):
    lengths = sorted(rng.integers(1, longest + 1, count), reverse=True)
    rest = lengths
    for it, taken in grid.calls(lengths, S)[1]:
      assert it in sizes and it.prefix == S
      assert it.rows <= most_rows(it.tokens + S, devices)
      assert 1 <= taken <= it.rows and rest[0] <= it.tokens
      per_device = it.rows // devices * (it.tokens + S)
      assert it.rows == devices or per_device <= MAX_TOKENS_PER_CALL
      rest = rest[taken:]
    assert len(rest) == 0
