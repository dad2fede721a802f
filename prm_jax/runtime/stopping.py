"""SIGTERM during a job: noted, and obeyed where nothing is half done.

In training it is asked of one process and done by all at one step. Saving a
checkpoint takes all processes, so all must stop after the same step. Each step
they vote on their devices, and look at the vote of the step before, which is
there by then.
"""

import contextlib
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


class Stopped(BaseException):
  """SIGTERM arrived; everything is saved.

  Like KeyboardInterrupt no Exception: nothing that handles faults may catch it.
  """


@contextlib.contextmanager
def noted(number: signal.Signals) -> Iterator[Callable[[], bool]]:
  """Within it the signal only makes what is given here return True.

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
  """Turns SIGTERM into a question that the loop can ask."""

  def __init__(self, mesh: Mesh) -> None:
    self._votes = NamedSharding(mesh, P(AXES))
    self._any = jax.jit(jnp.any)

  def __enter__(self) -> 'StopSignal':
    self._asked = self._vote = False
    self._before = signal.signal(signal.SIGTERM, self._ask)
    return self

  def _ask(self, *_: Any) -> None:
    self._asked = True

  def agreed(self) -> bool:
    """Whether to stop after this step: in all processes, or in none.

    To be asked once a step by every process.
    """
    if processes.count() == 1:
      return self._asked
    before = self._vote
    votes = jax.make_array_from_callback(
      (self._votes.mesh.size,), self._votes, lambda _: np.array([self._asked])
    )
    self._vote = self._any(votes)
    return bool(before)

  def __exit__(self, *_: Any) -> None:
    signal.signal(signal.SIGTERM, self._before)
