"""Programs by size: which one a call takes, and when others are compiled."""

import threading

import pytest

from prm_jax.inference.ready_programs import WANTED, ReadyPrograms, Sizes


class Compiler:
  """Compiles nothing, and keeps what it was asked for."""

  def __init__(self):
    self.asked = []
    self.done = threading.Event()

  def __call__(self, sizes):
    self.asked.append(sizes)
    self.done.set()
    return f'program of {sizes.rows} rows'


def test_what_is_needed_is_compiled_once():
  compiler = Compiler()
  programs = ReadyPrograms(compiler)
  needed = Sizes(2, 8, 32)
  assert programs.fit(needed) == needed
  assert programs.get(needed) == programs.get(needed) == 'program of 2 rows'
  assert compiler.asked == [needed]
  # Without room to spare nothing else will do, nor two calls of half the rows.
  assert programs.fit(Sizes(4, 8, 32)) == Sizes(4, 8, 32)
  assert programs.fit(Sizes(1, 8, 32)) == Sizes(1, 8, 32)


def test_the_cheapest_program_that_fits_is_taken():
  programs = ReadyPrograms(Compiler(), spare=8.0)
  ready = [Sizes(1, 32, 0), Sizes(8, 32, 256), Sizes(64, 32, 256)]
  programs.compile_ahead(ready)
  for needed, taken in (
    (Sizes(1, 16, 0), Sizes(1, 32, 0)),
    # Two calls of 8 rows cost less than one of 64.
    (Sizes(16, 32, 128), Sizes(8, 32, 256)),
    (Sizes(64, 32, 64), Sizes(64, 32, 256)),
    (Sizes(4, 32, 64), Sizes(8, 32, 256)),
    # Too long for all of them.
    (Sizes(1, 64, 0), Sizes(1, 64, 0)),
    (Sizes(1, 8, 512), Sizes(1, 8, 512)),
    # Eight rows of 288 tokens would cost more than 8 times one of 40.
    (Sizes(1, 8, 32), Sizes(1, 8, 32)),
  ):
    assert programs.fit(needed) == taken, needed


def test_what_is_wanted_often_is_compiled_beside_the_calls():
  compiler = Compiler()
  programs = ReadyPrograms(compiler, spare=8.0)
  programs.get(Sizes(8, 32, 0))
  compiler.done.clear()
  needed = Sizes(4, 32, 0)
  for _ in range(WANTED):
    assert programs.fit(needed) == Sizes(8, 32, 0)
  assert compiler.done.wait(10)
  assert compiler.asked == [Sizes(8, 32, 0), needed]
  programs.get(needed)  # waits until it is there
  assert programs.fit(needed) == needed


def test_a_fault_of_the_compiler_is_told_to_whoever_waits():
  def refuse(sizes):
    raise MemoryError(f'no room for {sizes.rows} rows')

  programs = ReadyPrograms(refuse)
  for _ in range(2):  # it is tried again
    with pytest.raises(MemoryError, match='no room for 3 rows'):
      programs.get(Sizes(3, 8, 0))
  assert programs.fit(Sizes(1, 8, 0)) == Sizes(1, 8, 0)
