"""Handles SIGTERM and Ctrl-C during a job, which stops once all is saved.

In training a single process may get the signal, but all must stop after the
same step, because all take part in saving a checkpoint. So in every step the
processes vote on their devices, and read the vote of the step before, which is
complete by then.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.runtime import processes
from prm_jax.runtime.sharding import AXES

INTERRUPTED = 130  # exit code after Ctrl-C
STDERR = 2


class Stopped(BaseException):
  """Reports that a signal ended the job; the same command resumes it.

  A training loop has saved everything. It heeds no second SIGTERM, which might
  cut that off, or leave the other processes waiting. Jobs that work on items
  end with what their journal has, and at once after a second signal.

  Like KeyboardInterrupt it is no Exception, so that no handler of errors
  catches it.

  Attributes:
    code: exit code of the program.
  """

  def __init__(self, why: str, code: int = 0) -> None:
    super().__init__(why)
    self.code = code


@contextlib.contextmanager
def catch_signal(number: signal.Signals) -> Iterator[Callable[[], bool]]:
  """Catches a signal; the function that it yields then returns True.

  Raises:
    Stopped: at the second signal, wherever the program is.
  """
  arrived = []

  def note(*_: Any) -> None:
    if arrived:
      raise Stopped('stopped at once')
    arrived.append(True)

  before = signal.signal(number, note)
  try:
    yield lambda: bool(arrived)
  finally:
    signal.signal(number, before)


class StopSignal:
  """Catches SIGTERM and Ctrl-C, and lets a loop ask whether to stop.

  A second SIGTERM says nothing new: the loop may be saving. A second Ctrl-C
  raises KeyboardInterrupt, wherever the program is.
  """

  def __init__(self, mesh: Mesh) -> None:
    self._votes = NamedSharding(mesh, P(AXES))
    self._any = jax.jit(jnp.any)

  def __enter__(self) -> 'StopSignal':
    self._asked = self._vote = False
    self._code = 0
    self._before = {signal.SIGTERM: signal.signal(signal.SIGTERM, self._ask)}
    # A shell has the jobs behind it ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
      before = signal.signal(signal.SIGINT, self._interrupt)
      self._before[signal.SIGINT] = before
    return self

  def _ask(self, *_: Any) -> None:
    self._asked = True

  def _interrupt(self, *_: Any) -> None:
    if self._code:
      raise KeyboardInterrupt
    self._asked, self._code = True, INTERRUPTED
    # A handler may not print, as it may have cut a print off.
    text = b'\nsaving and stopping; Ctrl-C once more stops at once\n'
    os.write(STDERR, text)

  def stopped(self, why: str) -> Stopped:
    """Returns what a loop raises that stops."""
    return Stopped(why, self._code)

  def agreed(self) -> bool:
    """Says whether all processes stop after this step.

    Every process must call it exactly once per step.
    """
    if processes.count() == 1:
      return self._asked
    before = self._vote
    votes = jax.make_array_from_callback(
      (self._votes.mesh.size,), self._votes, lambda _: np.array([self._asked])
    )
    self._vote = self._any(votes)
    return bool(before)

  def end(self, why: str, close: Callable[[], None]) -> None:
    """Stops if any process was asked to, even after its last step.

    Every process must call it exactly once, after the steps.

    Args:
      close: ends what is being saved.

    Raises:
      Stopped: one was asked to stop.
    """
    if str(True) in processes.exchange('stop', str(self._asked)):
      close()
      raise self.stopped(why)

  def __exit__(self, *_: Any) -> None:
    for number, before in self._before.items():
      signal.signal(number, before)
