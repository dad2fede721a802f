"""Tells whether a change left the bits of every job as they were.

    python -m tests.same_bits write /tmp/before.json    # in the old checkout
    python -m tests.same_bits compare /tmp/before.json  # in the new one

Both run the `:tiny` form of every config from the command line and describe
what each job wrote: its results, chains, trees and metrics without times, and
every array of every checkpoint by its hash. Bits depend on the processor and on
the version of JAX, so the two descriptions must come from one machine. With
PRM_JAX_DATA set, the jobs that read real data are run too.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from tests.shared.tiny_jobs import ON_DATA, STAGES, command_line

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The same folder for both, as some records name the run they come from.
FOLDER = pathlib.Path(tempfile.gettempdir()) / 'prm_jax_same_bits'
TIMES = ('seconds', 'per_second')
PROVENANCE = ('command', 'git_commit', 'versions', 'devices', 'processes')
# Hashes over chains that may name the run of their policy; the chains
# themselves are compared.
OF_NAMES = ('data_fingerprint', 'dataset')
# The name of a run is a hash of its config, in which new keys may appear.
RUN_NAME = re.compile(r'\b[0-9a-f]{12}@')
LINES = ('chains.jsonl', 'trees.jsonl', 'evaluations.jsonl', 'metrics.jsonl')


def hash_text(text: str) -> str:
  """16 hex digits over a text."""
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def drop_times(value: Any) -> Any:
  """The same JSON value without what no two versions agree on."""
  if isinstance(value, dict):
    return {
      name: drop_times(each)
      for name, each in value.items()
      if name not in (*PROVENANCE, *OF_NAMES)
      and not any(time in name for time in TIMES)
    }
  if isinstance(value, str):
    return RUN_NAME.sub('run@', value)
  return list(map(drop_times, value)) if isinstance(value, list) else value


def hash_arrays(checkpoint: pathlib.Path) -> dict[str, str]:
  """Hashes of a checkpoint's arrays (dtype, shape, bytes), by their paths."""
  parts = [x for x in checkpoint.iterdir() if (x / '_METADATA').is_file()]
  found = {}
  for part in parts:
    tree = ocp.load_checkpointables(checkpoint, {part.name: None})[part.name]
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      array = np.asarray(leaf)
      about = f'{array.dtype}{array.shape}'.encode()
      digest = hashlib.sha256(about + array.tobytes()).hexdigest()[:16]
      found[f'{part.name}{jax.tree_util.keystr(path)}'] = digest
  return found


def describe(workdir: pathlib.Path) -> dict[str, Any]:
  """What a job left in its workdir, by the names of its files."""
  found: dict[str, Any] = {}
  for path in sorted(workdir.rglob('*')):
    name = str(path.relative_to(workdir))
    if path.name in ('results.json', 'ledger.json', 'model.json'):
      found[name] = drop_times(json.loads(path.read_text()))
    elif path.name in LINES or path.name.startswith('hacked_'):
      lines = path.read_bytes().decode().split('\n')[:-1]
      values = [drop_times(json.loads(line)) for line in lines]
      found[name] = [hash_text(json.dumps(value)) for value in values]
    elif path.parent.name == 'checkpoints' and path.name.isdigit():
      found[name] = hash_arrays(path)
  return found


def run(name: str, job: Sequence[str], cores: queue.Queue) -> None:
  """Runs a job on one core: with more, the order of a sum may differ."""
  core = cores.get()
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'prm_jax.main'),
      *command_line(job, FOLDER, name),
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    preexec_fn=functools.partial(os.sched_setaffinity, 0, {core}),
  )
  cores.put(core)
  if done.returncode:
    raise SystemExit(f'{name}: {done.stderr}')
  print(name, flush=True)


def run_all() -> dict[str, Any]:
  """Runs every job; name of the job -> what it wrote."""
  shutil.rmtree(FOLDER, ignore_errors=True)
  stages = list(STAGES)
  if os.environ.get('PRM_JAX_DATA'):
    stages[1] = stages[1] | ON_DATA
  cores: queue.Queue = queue.Queue()
  for core in sorted(os.sched_getaffinity(0)):
    cores.put(core)
  with concurrent.futures.ThreadPoolExecutor(cores.qsize()) as pool:
    for stage in stages:
      jobs = [pool.submit(run, *job, cores) for job in stage.items()]
      for job in jobs:
        job.result()
  return {name: describe(FOLDER / name) for stage in stages for name in stage}


def differences(before: Any, after: Any, path: str = '') -> list[str]:
  """Names of the values in which two descriptions differ."""
  if isinstance(before, dict) and isinstance(after, dict):
    return [
      found
      for name in sorted({*before, *after})
      for found in differences(
        before.get(name), after.get(name), f'{path}/{name}'
      )
    ]
  return [] if before == after else [path]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('command', choices=('write', 'compare'))
  parser.add_argument('file', type=pathlib.Path)
  args = parser.parse_args()
  found = json.loads(json.dumps(run_all()))
  if args.command == 'write':
    args.file.write_text(json.dumps(found, indent=1))
    return
  different = differences(json.loads(args.file.read_text()), found)
  for name in different:
    print(f'differs: {name}')
  if different:
    after = args.file.with_suffix('.after.json')
    after.write_text(json.dumps(found, indent=1))
    sys.exit(f'{len(different)} values differ; see {after}')
  print(f'the same bits in {len(found)} jobs')


if __name__ == '__main__':
  main()
