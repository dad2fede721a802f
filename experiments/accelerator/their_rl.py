"""TRL's side of RL: GRPOTrainer on the task that our side wrote.

Generation is that of transformers. TRL offers it with a cache that grows, with
a static one, and with continuous batching. On a GPU `grpo` takes the faster of
the first two and says which; the third is measured last, by itself. Both sides
compute in float32, with products in TF32 on a GPU.
"""

import functools
import json
import pathlib
import tempfile
import traceback
from typing import Any

import torch

from experiments.accelerator import cases, rl_task
from experiments.speed import their_rl

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
# Name -> arguments of a GRPOConfig.
CACHES = {
  'growing cache': {},
  'static cache': {'cache_implementation': 'static'},
}
CONTINUOUS = {'use_transformers_continuous_batching': True}


def read_task(folder: pathlib.Path) -> dict:
  """Reads the task.

  Raises:
    FileNotFoundError: our side has not written it.
  """
  path = rl_task.path(folder)
  if not path.exists():
    raise FileNotFoundError(
      f'{path} is not there: our side writes it in its case `policy`; run that '
      'first'
    )
  return json.loads(path.read_text())


def measure(task: dict, **options: Any) -> dict:
  """Measures the loop; `options` are arguments of a GRPOConfig."""
  with tempfile.TemporaryDirectory() as folder:
    return their_rl.run(task, folder, DEVICE, **options)


def fastest(task: dict) -> tuple[str, list[str]]:
  """Returns the cache with which a few updates are fastest, and notes.

  Raises:
    RuntimeError: with none of them updates work.
  """
  if DEVICE == 'cpu':
    chosen = next(iter(CACHES))  # a static one is for a GPU's sake
    return chosen, [chosen]
  few = rl_task.measured(task, *rl_task.FEW)
  seconds, notes = {}, []
  for name, options in CACHES.items():
    try:
      found = rl_task.rate(few, measure(few, **options))
    except Exception as error:
      # The other one may work; the notes say that this one does not.
      traceback.print_exc()
      notes.append(f'{name}: {type(error).__name__}')
      continue
    seconds[name] = found['seconds_per_update']
    notes.append(f'{name}: {1e3 * seconds[name]:.0f} ms an update')
  if not seconds:
    raise RuntimeError(f'no cache works: {", ".join(notes)}')
  return min(seconds, key=lambda name: seconds[name]), notes


def grpo(folder: pathlib.Path) -> dict:
  """Measures the tokens per second of the loop."""
  task = read_task(folder)
  chosen, notes = fastest(task)
  task = rl_task.measured(task)
  found = rate(task, measure(task, **CACHES[chosen]))
  return found | {'cache': chosen, 'notes': notes}


def continuous(folder: pathlib.Path) -> dict:
  """Measures two updates of the loop with continuous batching.

  Each of them starts its threads and its cache anew, which takes seconds.
  """
  few = rl_task.measured(read_task(folder), 1, 2)
  found = rate(few, measure(few, **CONTINUOUS))
  return found | {'notes': ['continuous batching']}


def rate(task: dict, found: dict) -> dict:
  """Makes the result of a case of what the loop measured."""
  peak = torch.cuda.max_memory_allocated() if DEVICE == 'cuda' else None
  return rl_task.rate(task, found) | {'memory_bytes': peak, 'device': DEVICE}


def to_90(folder: pathlib.Path, grpo_file: pathlib.Path, ends: float) -> dict:
  """Measures the time until 90% of held-out chains are right.

  Args:
    grpo_file: what `grpo` measured, which names the cache.
    ends: `time.monotonic` after which it gives up.
  """
  task = read_task(folder)
  chosen = next(iter(CACHES))
  if grpo_file.exists():
    chosen = json.loads(grpo_file.read_text())['cache']
  with tempfile.TemporaryDirectory() as written:
    found = their_rl.race(task, ends, written, DEVICE, **CACHES[chosen])
  return found | {'notes': [chosen]}


def main() -> None:
  setup = cases.read_arguments()
  folder = setup.folder
  chosen = {
    'grpo': functools.partial(grpo, folder),
    'to_90': functools.partial(
      to_90, folder, setup.path('grpo', 'json'), setup.ends
    ),
  }
  if DEVICE == 'cuda':
    chosen['grpo_continuous'] = functools.partial(continuous, folder)
  cases.run(setup, chosen)


if __name__ == '__main__':
  main()
