"""Compiles programs by size, each once, for several threads."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from prm_jax.inference.call_sizes import Sizes


class ReadyPrograms:
  """Keeps compiled programs by the sizes of their calls.

  Args:
    compile_one: compiles the program of some sizes.
  """

  def __init__(self, compile_one: Callable[[Sizes], Any]) -> None:
    self._compile = compile_one
    self._programs: dict[Sizes, Future] = {}
    self._lock = threading.Lock()

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
