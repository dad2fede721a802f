"""What a result was made with: versions, commit, seeds, command.

Also the two files that guard a workdir: config.json and data.json are written
once, and a run with another config or with other data is refused, so that no
result mixes two jobs.
"""

import hashlib
import importlib.metadata
import json
import pathlib
import platform
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax

from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError

SHARED_SECONDS = 10
# What a job does not find in its workdir it writes again.
DELETE = 'delete it, and the command of its job writes it again'
ANEW = f'if the workdir is of this job {DELETE}; else choose another --workdir'
# What a workdir's job may go on with other values of: how fast it is done, by
# which server and at what price, not what comes of it.
FREE = (
  'concurrent',
  'price',
  'active.batch_size',
  'policy.cache',
  'policy.sampling.kept',
  'policy.sampling.slots',
  'prm.rows',
  *(
    f'policy.endpoint.{name}'
    for name in (
      'base_url',
      'api_key_variable',
      'concurrency',
      'timeout',
      'attempts',
      'max_failed_in_a_row',
    )
  ),
  # No longer settings: workdirs that were begun with them are resumed.
  'policy.endpoint.backoff',
  'policy.endpoint.max_wait',
)
PACKAGES = (
  'prm_jax',
  'jax',
  'jaxlib',
  'flax',
  'optax',
  'orbax-checkpoint',
  'grain',
  'tensorflow-datasets',
  'numpy',
)


def git_commit() -> str | None:
  """The commit of the package's checkout, '+' if it was changed since."""
  here = pathlib.Path(__file__).parent
  try:
    answer = subprocess.run(
      ['git', 'describe', '--always', '--dirty=+', '--abbrev=12'],
      cwd=here,
      capture_output=True,
      text=True,
      check=True,
      timeout=10,
    )
  except (OSError, subprocess.SubprocessError):
    return None  # installed without a checkout, or without git
  return answer.stdout.strip()


def describe(
  config: Mapping[str, Any], module: str = 'prm_jax.main'
) -> dict[str, Any]:
  """Versions, commit, command, seeds and devices of this process."""
  versions = {name: importlib.metadata.version(name) for name in PACKAGES}
  devices = jax.devices()
  return {
    'command': shlex.join(['python', '-m', module, *sys.argv[1:]]),
    'git_commit': git_commit(),
    'seeds': {'seed': config['seed']},
    'versions': versions | {'python': platform.python_version()},
    'devices': f'{len(devices)} x {devices[0].device_kind}',
    'processes': processes.count(),
  }


def write_json(path: paths.Path, value: Any) -> None:
  """Writes all or nothing."""
  paths.write_text(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


def read_results(workdir: paths.Path) -> dict[str, Any]:
  """results.json of a job that is done; {} where there is none yet.

  Raises:
    UserError: it is empty, cut off or no object.
  """
  path = workdir / 'results.json'
  if not path.is_file():
    return {}
  return paths.read_json(path, 'the command of its job writes it again')


def is_done(workdir: paths.Path) -> bool:
  """Whether a job ended there and its chains are there, where it makes some.

  What is broken or was deleted it makes again.
  """
  try:
    results = read_results(workdir)
  except UserError:
    return False
  made = results.get('dataset')
  return bool(results) and (
    made is None or (workdir / 'data' / made['name']).is_dir()
  )


def differences(ours: Any, theirs: Any, path: str = '') -> list[str]:
  """Dotted names of the values in which two configs differ."""
  if isinstance(ours, dict) and isinstance(theirs, dict):
    names = sorted(set(ours) | set(theirs))
    return [
      found
      for name in names
      for found in differences(
        ours.get(name), theirs.get(name), f'{path}.{name}' if path else name
      )
    ]
  return [] if ours == theirs else [path]


def check_same_config(config: Mapping[str, Any]) -> None:
  """Raises UserError, in every process, where their configs differ."""
  text = json.dumps(config, sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()
  # Configs are long and there may be hundreds: first only their digests.
  if len(set(processes.exchange('digest', digest))) == 1:
    return
  said = [json.loads(it) for it in processes.exchange('config', text)]
  others = [i for i, theirs in enumerate(said) if theirs != said[0]]
  different = differences(said[0], said[others[0]])
  shown = ', '.join(
    f'{name} ({_value(said[0], name)} and {_value(said[others[0]], name)})'
    for name in different[:3]
  )
  more = f' and {len(different) - 3} more' if len(different) > 3 else ''
  raise UserError(
    f'the configs of process 0 and process {others[0]} differ in '
    f'{shown}{more}; start all processes with the same --config'
  )


def _value(config: Any, name: str) -> str:
  """What stands under a dotted name, cut; None where there is nothing."""
  for part in name.split('.'):
    config = config.get(part) if isinstance(config, dict) else None
  text = repr(config)
  return text if len(text) <= 40 else f'{text[:37]}...'


def check_shared(folder: paths.Path, flag: str) -> None:
  """Finds that a folder is one for all processes.

  Args:
    flag: what names it.

  Raises:
    UserError: another process does not see what process 0 wrote there.
  """
  if processes.count() == 1:
    return
  token = processes.exchange('token', secrets.token_hex(8))[0]
  path = folder / f'.shared-{token}'
  processes.first_alone('shared', lambda: _touch(path, flag))
  # Network file systems show a new file to other hosts with some delay.
  end = time.monotonic() + SHARED_SECONDS
  with paths.told_in_a_line(path):
    while not (there := path.exists()) and time.monotonic() < end:
      time.sleep(0.2)
  saw = processes.exchange('saw', 'yes' if there else 'no')
  if processes.is_first():
    path.unlink()
  if 'no' in saw:
    raise UserError(
      f'{flag} of process {saw.index("no")} is not the folder {folder} of '
      'process 0; name one that all processes share'
    )


def _touch(path: paths.Path, flag: str) -> None:
  try:
    paths.make_folder(path.parent)
    path.touch()
  except OSError as error:
    raise UserError(
      f'{flag} {path.parent}: {error.strerror}; choose one that can be written'
    ) from None


def check_workdir(workdir: paths.Path, config: Mapping[str, Any]) -> None:
  """Finds that the workdir is this config's own or new; makes the folder.

  What is FREE may differ.

  Raises:
    UserError: it belongs to another config, or cannot be written.
  """
  try:
    ours = json.loads(json.dumps(config, allow_nan=False))
  except ValueError:
    raise UserError(
      'the config holds inf or nan; give a finite number in its place'
    ) from None
  path = workdir / 'config.json'
  try:
    paths.make_folder(workdir)
    known = path.exists()
  except OSError as error:
    raise UserError(
      f'workdir {workdir}: {error.strerror}; choose one that can be written'
    ) from None
  there = paths.read_json(path, ANEW) if known else ours
  different = [
    name
    for name in differences(ours, there)
    if not any(f'{name}.'.startswith(f'{free}.') for free in FREE)
  ]
  if different:
    raise UserError(
      f'workdir {workdir} belongs to another config (differs in '
      f'{", ".join(different[:5])}); choose another --workdir, or delete it'
    )


def claim_workdir(
  workdir: paths.Path, config: Mapping[str, Any], data_fingerprint: str
) -> None:
  """Makes the workdir this config's and these data's own.

  Called when the data is there: a run that fails before leaves the workdir
  free for the corrected command.

  Raises:
    UserError: what is in the workdir was made from other data.
  """
  check_workdir(workdir, config)
  ours = {'fingerprint': data_fingerprint}
  path = workdir / 'data.json'
  for name, value in (('data.json', ours), ('config.json', config)):
    if not (workdir / name).exists():
      write_json(workdir / name, value)
  if paths.read_json(path, ANEW).get('fingerprint') != data_fingerprint:
    raise UserError(
      f'workdir {workdir} was begun with other data than there is now: see '
      f'{path}, now {data_fingerprint}; bring back the files, or choose '
      'another --workdir'
    )
