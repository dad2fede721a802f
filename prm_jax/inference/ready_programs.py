"""Keeps compiled programs by size, for calls that cannot wait for a compiler.

    sizes of a call -> fit -> those of a program that is there -> get
                         `-> a thread compiles what is wanted often

A program with room to spare gives the same scores. A search compiles exactly
what it needs; a server takes the cheapest program that fits, while a better one
is compiled beside it.
"""

import collections
import logging
import math
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

WANTED = 3  # times that a size is asked for before it is compiled beside calls


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
  def cost(self) -> int:
    """Returns the tokens that a call attends to."""
    return self.rows * (self.tokens + self.prefix)

  def cost_of(self, needed: 'Sizes') -> float:
    """Returns the cost of calls of these sizes that do what is needed.

    It takes several where there are fewer rows, and none where rows or what
    precedes them are too long.
    """
    if self.tokens < needed.tokens or self.prefix < needed.prefix:
      return math.inf
    return -(-needed.rows // self.rows) * self.cost


class ReadyPrograms:
  """Compiles programs, each once, and finds one that fits a call.

  Args:
    compile_one: compiles the program of some sizes.
    spare: how many times as costly as needed a program may be that is used
      while a better one is compiled; 1 always compiles what is needed.
  """

  def __init__(
    self, compile_one: Callable[[Sizes], Any], spare: float = 1.0
  ) -> None:
    self._compile, self._spare = compile_one, spare
    self._programs: dict[Sizes, Future] = {}
    self._wanted: collections.Counter[Sizes] = collections.Counter()
    self._lock = threading.Lock()
    self._queue: queue.SimpleQueue[Sizes] = queue.SimpleQueue()
    self._thread: threading.Thread | None = None

  def get(self, sizes: Sizes) -> Any:
    """Returns a program; compiles it, or waits for whoever compiles it."""
    with self._lock:
      mine = sizes not in self._programs
      future = self._programs.setdefault(sizes, Future())
    if mine:
      try:
        future.set_result(self._compile(sizes))
      except BaseException as error:
        with self._lock:
          del self._programs[sizes]
        future.set_exception(error)
    return future.result()

  def compile_ahead(self, wanted: Iterable[Sizes]) -> None:
    """Compiles programs that are not there, one after another."""
    for sizes in wanted:
      self.get(sizes)

  def fit(self, needed: Sizes) -> Sizes:
    """Returns the sizes of the program to call; it may have fewer rows."""
    with self._lock:
      ready = [sizes for sizes, it in self._programs.items() if it.done()]
    if self._spare <= 1 or needed in ready:
      return needed  # many calls of few rows may cost as much, but take longer
    # Of equal ones that with the most rows, which takes the fewest calls.
    best = min(
      ready, key=lambda it: (it.cost_of(needed), -it.rows), default=needed
    )
    if best.cost_of(needed) > self._spare * needed.cost:
      return needed
    self._want(needed)
    return best

  def _want(self, sizes: Sizes) -> None:
    """Has a program compiled beside the calls, if it is wanted often."""
    self._wanted[sizes] += 1
    if self._wanted[sizes] != WANTED:
      return
    self._queue.put(sizes)
    if self._thread is None:
      self._thread = threading.Thread(
        target=self._compile_wanted, name='compiler', daemon=True
      )
      self._thread.start()

  def _compile_wanted(self) -> None:
    while True:
      sizes = self._queue.get()
      try:
        self.get(sizes)
      except Exception:
        # Calls go on with the program that has room to spare.
        logging.exception('the program of %s cannot be compiled', sizes)
