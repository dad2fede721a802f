"""What both sides of RL share: the task, its sizes, and the race to 90%.

Both sides read it, so this module imports nothing but the standard library.

    DIR/rl/task/task.json  config, prompts and truths, written by our side
    DIR/rl/task/policy     the policy that both start from, for transformers
"""

import contextlib
import copy
import pathlib
import time
from collections.abc import Iterator
from typing import Any

AIM = 0.9  # share of right chains on held-out problems
# Updates that are not measured, and updates that are.
MEASURED = 10, 30
FEW = 2, 5  # to choose between settings
PARTS = ('sampling', 'scoring')  # training is what is left


def path(folder: pathlib.Path) -> pathlib.Path:
  """Returns the file of the task, in the folder of the part."""
  return folder / 'task' / 'task.json'


def measured(task: dict, warmup: int = 0, updates: int = 0) -> dict:
  """Returns the task with as many updates as are measured.

  Args:
    warmup: updates that are not measured; 0 takes those of the task.
    updates: updates that are measured; 0 takes those of the task.
  """
  task = copy.deepcopy(task)
  train = task['config']['train']
  # A tiny task has no more than that.
  warmup = min(warmup or task['warmup'], train['updates'] - 1)
  updates = min(updates or task['measured'], train['updates'] - warmup)
  task['warmup'] = warmup
  train['updates'] = warmup + updates
  train['evaluate_every'] = warmup
  # Only the last one is written.
  train['checkpoint_every'] = warmup * (warmup + updates)
  return task


def rate(task: dict, found: dict) -> dict[str, Any]:
  """Makes the result of a case of what a side measured.

  Args:
    found: tokens and seconds of wall time, whole and by part; share of right
      chains.
  """
  wall, train = found['wall'], task['config']['train']
  updates = train['updates'] - task['warmup']
  chains = updates * train['problems'] * train['samples']
  shares = {k: v / wall for k, v in found['parts'].items()}
  return {
    'tokens_per_second': found['tokens'] / wall,
    'chains_per_second': chains / wall,
    'updates': updates,
    'seconds': wall,
    'seconds_per_update': wall / updates,
    'shares': shares | {'training': 1 - sum(shares.values())},
    'accuracy': found['right'],
  }


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
