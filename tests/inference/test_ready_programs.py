"""Programs by size: each is compiled once, whoever asks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from prm_jax.inference.call_sizes import Sizes
from prm_jax.inference.ready_programs import ReadyPrograms

NEEDED = Sizes(2, 8, 32)


def test_a_program_is_compiled_once_for_all_threads():
  asked, threads, all_look = [], set(), threading.Event()

  class Noted(Sizes):
    """Sizes that note which threads look for them in a dict."""

    def __hash__(self):
      threads.add(threading.get_ident())
      if len(threads) == 3:
        all_look.set()
      return super().__hash__()

  def compile_one(sizes):
    asked.append(sizes)
    if sizes == NEEDED:
      assert all_look.wait(60)
    return f'program of {sizes.rows} rows'

  programs = ReadyPrograms(compile_one)
  with ThreadPoolExecutor(3) as pool:
    found = [pool.submit(programs.get, Noted(*NEEDED)) for _ in range(3)]
    assert {each.result() for each in found} == {'program of 2 rows'}
  assert asked == [NEEDED]
  programs.get(Sizes(1, 8, 32))
  assert len(asked) == 2


def test_a_fault_of_the_compiler_is_told_to_whoever_waits():
  def refuse(sizes):
    raise MemoryError(f'no room for {sizes.rows} rows')

  programs = ReadyPrograms(refuse)
  for _ in range(2):  # it is tried again
    with pytest.raises(MemoryError, match='no room for 2 rows'):
      programs.get(NEEDED)
