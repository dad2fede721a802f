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

POLICY = f'--config.policy.workdir={FOLDER}/policy'
PRM = f'--config.prm.path={FOLDER}/prm'
TRAINED = (
  '--config.policy.kind=workdir',
  POLICY,
  '--config.policy.sampling.slots=8',
)
SAMPLES = (
  '--config.chains.kind=workdir',
  f'--config.chains.workdir={FOLDER}/sample_trained',
)
# Name of a job -> its config, and its other flags. Each stage may read what
# earlier stages wrote.
STAGES: tuple[dict[str, tuple[str, ...]], ...] = (
  {
    'prm': ('prm_math:tiny',),
    'policy': ('policy_math:tiny',),
    'prm_orm': ('prm_math:orm,tiny',),
    'sample': ('sample_math:tiny',),
    'label_verifier': ('label_math:verifier,tiny',),
    'label_rollouts': ('label_math:rollouts,tiny',),
    'label_omega': ('label_math:omega,tiny',),
    'label_corruption': ('label_math:corruption,tiny',),
    **{
      f'search_{method}': (f'search_math:{method},tiny',)
      for method in (
        *('best_of_n', 'majority', 'weighted_vote', 'beam', 'dvts'),
        *('lookahead', 'rebase', 'mcts', 'refine', 'early_rejection'),
      )
    },
    'prm_two_class': (
      'prm_math:tiny',
      '--config.head.kind=two_class',
      '--config.loss.name=cross_entropy',
      '--config.loss.lm_weight=0.5',
      '--config.orm_baseline=False',
      '--config.train.microbatches=2',
    ),
    'prm_words': ('prm_math:words,tiny',),
  },
  {
    'prm_from_run': (
      'prm_math:from_run,tiny',
      f'--config.base={FOLDER}/policy',
    ),
    'prm_on_labels': (
      'prm_math:tiny',
      f'--config.data.labels={FOLDER}/label_rollouts',
      '--config.targets.hard_above=0.0',
    ),
    # Chains that fit the window of the PRM that label_active scores them with.
    'sample_trained': (
      'sample_math:tiny',
      *TRAINED,
      '--config.policy.sampling.max_tokens=24',
    ),
    'search_trained': (
      'search_math:beam,tiny',
      *TRAINED,
      '--config.prm.kind=workdir',
      PRM,
    ),
    **{
      f'rl_{variant}': (f'rl_math:{variant},tiny', POLICY, PRM)
      for variant in ('grpo', 'rloo', 'ppo', 'exact')
    },
    **{
      f'rl_{variant}': (f'rl_math:{variant},tiny', POLICY)
      for variant in ('outcome', 'prime')
    },
  },
  {
    'label_active': (
      'label_math:active,tiny',
      *SAMPLES,
      f'--config.prm={FOLDER}/prm',
    ),
    'label_consensus': (
      'label_math:consensus,tiny',
      '--config.chains.kind=workdir',
      f'--config.chains.workdir={FOLDER}/label_rollouts',
      f'--config.agrees_with={FOLDER}/label_verifier',
    ),
  },
)
# Run too where PRM_JAX_DATA is set.
ON_DATA = {
  'prm_human': ('prm_math:human,tiny',),
  'prm_smollm2': ('prm_math:smollm2,lora,tiny',),
  'policy_smollm2': ('policy_math:smollm2,lora,tiny',),
}


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


def run(name: str, args: Sequence[str], cores: queue.Queue) -> None:
  """Runs a job on one core: with more, the order of a sum may differ."""
  config, *flags = args
  config_file, _, variants = config.partition(':')
  core = cores.get()
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'prm_jax.main'),
      f'--config=configs/{config_file}.py:{variants}',
      f'--workdir={FOLDER / name}',
      *flags,
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
