"""The programs that are compiled before the first client asks."""

import itertools

import pytest

from prm_jax.inference.packing import bucket
from prm_jax.inference.piece_runs import most_rows, rows_of_call
from prm_jax.inference.ready_programs import ReadyPrograms, Sizes
from prm_jax.serve.warm import SPARE, sizes_to_warm

pytestmark = pytest.mark.once


@pytest.mark.parametrize('devices', [1, 4])
@pytest.mark.parametrize('longest', [46, 256, 2048, 4096])
def test_every_request_fits_into_one_of_few_programs(longest, devices):
  sizes = sizes_to_warm(longest, devices)
  assert len(set(sizes)) == len(sizes) <= 40
  programs = ReadyPrograms(lambda _: None, SPARE)
  programs.compile_ahead(sizes)
  prefixes = {0, *(min(32 << n, longest) for n in range(8))}
  tokens = [8 << n for n in range(10) if 8 << n <= bucket(longest)]
  few = slow = 0
  for T, S, rows in itertools.product(tokens, prefixes, (1, 3, 16, 64)):
    B = min(rows_of_call(rows, devices), most_rows(T + S, devices))
    needed = Sizes(B, T, S)
    assert any(it.cost_of(needed) < float('inf') for it in sizes)
    few += 1
    slow += programs.fit(needed) not in sizes
  # For the others, all short after a short prefix, the compiler is worth it.
  assert slow < few / 4
