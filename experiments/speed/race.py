"""The race of two RL loops: the time until a policy is as good as the aim.

Both sides import this module, so it imports nothing but the standard library.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

AIM = 0.9  # share of right chains on held-out problems


class Looked:
  """Holds the accuracy of one look at the policy, and time that counts.

  Attributes:
    counted: seconds of the look that belong to training, such as those for
      compiling programs that sampling uses, too.
  """

  accuracy = 0.0
  counted = 0.0


class Race:
  """Measures the time until the policy is as accurate as the aim.

  It begins when this is made. Looks at the policy do not count.

  Args:
    ends: `time.monotonic` after which it is given up.
  """

  def __init__(self, ends: float):
    self._ends, self._began, self._looking = ends, time.monotonic(), 0.0
    self.curve: list[dict[str, float]] = []

  @contextlib.contextmanager
  def look(self, update: int) -> Iterator[Looked]:
    """Takes the time of a look, which sets the accuracy."""
    began, looked = time.monotonic(), Looked()
    yield looked
    self.curve.append(
      {
        'update': update,
        'seconds': began - self._began - self._looking + looked.counted,
        'accuracy': looked.accuracy,
      }
    )
    print(self.curve[-1], flush=True)
    self._looking += time.monotonic() - began - looked.counted

  @property
  def reached(self) -> bool:
    """Says whether the last look met the aim."""
    return bool(self.curve) and self.curve[-1]['accuracy'] >= AIM

  @property
  def ended(self) -> bool:
    """Says whether to train no further."""
    return self.reached or time.monotonic() > self._ends

  def found(self) -> dict[str, Any]:
    """Returns the result of the case."""
    last = self.curve[-1]
    return {
      'reached': self.reached,
      'seconds': last['seconds'],
      'updates': last['update'],
      'accuracy': last['accuracy'],
      'evaluation_seconds': self._looking,
      'curve': self.curve,
    }
