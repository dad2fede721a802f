"""What both sides of RL share: the task and its sizes.

Both sides read it, so this module imports nothing but the standard library.

    DIR/rl/task/task.json  config, prompts and truths, written by our side
    DIR/rl/task/policy     the policy that both start from, for transformers
"""

import copy
import pathlib
from typing import Any

# Updates that are not measured, and updates that are.
MEASURED = 10, 30
FEW = 2, 5  # to choose between settings


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
