"""Describes what a result was made with: versions, commit, seed, command."""

import hashlib
import importlib.metadata
import json
import pathlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax

from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import differences

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
  """Returns the commit of the checkout, with '+' if it was changed since."""
  here = pathlib.Path(__file__)
  try:
    # Installed into a folder of another repository, it would name that one's.
    _git('ls-files', '--error-unmatch', here.name, folder=here.parent)
    return _git(
      *('describe', '--always', '--dirty=+', '--abbrev=12'), folder=here.parent
    )
  except (OSError, subprocess.SubprocessError):
    return None  # installed without a checkout, or without git


def _git(*arguments: str, folder: pathlib.Path) -> str:
  """Returns what git prints; raises CalledProcessError where it fails."""
  answer = subprocess.run(
    ['git', *arguments],
    cwd=folder,
    capture_output=True,
    text=True,
    check=True,
    timeout=10,
  )
  return answer.stdout.strip()


def version_of(package: str) -> str:
  """Returns a package's version; a checkout on the path has none."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return 'not installed'


def describe(seed: int, module: str = 'prm_jax.main') -> dict[str, Any]:
  """Returns versions, commit, command, seed and devices of this process."""
  versions = {name: version_of(name) for name in PACKAGES}
  devices = jax.devices()
  return {
    'command': shlex.join(['python', '-m', module, *sys.argv[1:]]),
    'git_commit': git_commit(),
    'seeds': {'seed': seed},
    'versions': versions | {'python': platform.python_version()},
    'devices': f'{len(devices)} x {devices[0].device_kind}',
    'processes': processes.count(),
  }


def check_same_config(config: Mapping[str, Any]) -> None:
  """Raises UserError, in every process, where their configs differ."""
  # What JSON cannot hold is refused later, by its name.
  text = json.dumps(config, sort_keys=True, default=repr)
  digest = hashlib.sha256(text.encode()).hexdigest()
  # Configs are long and there may be hundreds: first only their digests.
  if len(set(processes.exchange('digest', digest))) == 1:
    return
  configs = [json.loads(it) for it in processes.exchange('config', text)]
  others = [i for i, theirs in enumerate(configs) if theirs != configs[0]]
  first, other = configs[0], configs[others[0]]
  different = differences(first, other)
  shown = ', '.join(
    f'{name} ({_value(first, name)} and {_value(other, name)})'
    for name in different[:3]
  )
  more = f' and {len(different) - 3} more' if len(different) > 3 else ''
  raise UserError(
    f'the configs of process 0 and process {others[0]} differ in '
    f'{shown}{more}; start all processes with the same --config'
  )


def _value(config: Any, name: str) -> str:
  """Formats the value under a dotted name, shortened; None if there is none."""
  for part in name.split('.'):
    config = config.get(part) if isinstance(config, dict) else None
  text = repr(config)
  return text if len(text) <= 40 else f'{text[:37]}...'
