"""Reads what a training run has saved so far, even while it runs."""

import json
import os
import pathlib
from collections.abc import Callable

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

# Whether a run in this workdir has got as far as a test waits for.
Moment = Callable[[pathlib.Path], bool]


def saved_steps(workdir: pathlib.Path) -> list[int]:
  """Returns the steps with a complete checkpoint, ascending."""
  folder = workdir / 'checkpoints'
  names = os.listdir(folder) if folder.exists() else []
  return sorted(int(name) for name in names if name.isdigit())


def read_metrics(workdir: pathlib.Path) -> list[dict]:
  """Returns the whole lines of metrics.jsonl."""
  text = (workdir / 'metrics.jsonl').read_text()
  # A process may be in the middle of the last line.
  return [json.loads(line) for line in text.split('\n')[:-1]]


def logged_step(workdir: pathlib.Path) -> int:
  """Returns the last step in metrics.jsonl, or 0."""
  if not (workdir / 'metrics.jsonl').exists():
    return 0
  return max((line['step'] for line in read_metrics(workdir)), default=0)


def just_saved(beyond: int) -> Moment:
  """Waits for a checkpoint of a step after `beyond`."""
  return lambda workdir: max(saved_steps(workdir), default=0) > beyond


def load_state(workdir: pathlib.Path, which: int = -1) -> dict:
  """Returns all arrays of a checkpoint, and the position of the input.

  Args:
    which: index into the saved steps; by default the last.
  """
  folder = workdir / 'checkpoints' / str(saved_steps(workdir)[which])
  saved = ocp.checkpointables_metadata(folder).metadata
  # On one device, wherever it was saved from.
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  shapes = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
    {
      name: tree for name, tree in saved.items() if name not in ('data', 'seal')
    },
  )
  state = ocp.load_checkpointables(folder, shapes)
  data = {
    path.name: json.loads(path.read_text())
    for path in (folder / 'data').glob('shard_*.json')
  }
  return jax.tree.map(np.asarray, state) | {'data': data}
