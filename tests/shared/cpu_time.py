"""Measures how long a call computes, whatever runs beside it."""

import gc
import time
from collections.abc import Callable


def cpu_seconds(call: Callable[[], object]) -> float:
  """Returns the seconds of this process that a call takes.

  As in timeit no garbage is collected in it: that would take as long as there
  is much that other tests have left.
  """
  gc.disable()
  try:
    began = time.process_time()
    call()
    return time.process_time() - began
  finally:
    gc.enable()
