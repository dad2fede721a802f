"""Guards the folder that holds everything a job writes, on a disk or at gs://.

Two files guard it: config.json and data.json are written once, and a run with
another config or other data is rejected, so that no result mixes two jobs. With
several processes only the first writes; the others wait until it is done.
"""

import dataclasses
import fcntl
import json
import logging
import os
import pathlib
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from prm_jax.runtime import paths, processes
from prm_jax.runtime.errors import UserError

SHARED_SECONDS = 10
# A job writes again what is missing from its workdir.
DELETE = 'delete it, and the command of its job writes it again'
OWN_OR_OTHER = (
  f'if the workdir is of this job {DELETE}; else choose another --workdir'
)
# A job may be resumed with other values of these: they change how fast it runs,
# on which server and at what price, and not what comes of it.
OF_SERVERS = (
  'base_url',
  'api_key_variable',
  'concurrency',
  'timeout',
  'attempts',
  'max_failed_in_a_row',
  'max_reply_bytes',
)
_OF_PRM_SERVERS = (
  'base_url',
  'api_key_variable',
  'chains',
  'concurrency',
  'timeout',
  'attempts',
  'max_reply_bytes',
)
MAY_CHANGE = (
  'concurrent',
  'price',
  'active.batch_size',
  'frozen.features',
  'policy.cache',
  'policy.sampling.kept',
  'policy.sampling.slots',
  'prm.rows',
  'prm.generative.cache',
  'prm.generative.sampling.kept',
  'prm.generative.sampling.slots',
  *(f'policy.endpoint.{name}' for name in OF_SERVERS),
  *(f'prm.generative.endpoint.{name}' for name in OF_SERVERS),
  *(f'prm.endpoint.{name}' for name in _OF_PRM_SERVERS),
  # Settings of earlier versions: workdirs begun with them can be resumed.
  'policy.endpoint.backoff',
  'policy.endpoint.max_wait',
)


@dataclasses.dataclass(frozen=True)
class Workdir:
  """Represents the running job's workdir; `workdir / 'name'` is a path in it.

  Attributes:
    config: the content of its config.json.
    defaults: values that a config.json of an earlier version may lack.
  """

  path: paths.Path
  config: Mapping[str, Any]
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @classmethod
  def open(
    cls, name: str, config: Mapping[str, Any], defaults: Mapping[str, Any]
  ) -> 'Workdir':
    """Makes the folder, and checks that it is new or belongs to this config.

    Raises:
      UserError: it belongs to another config, cannot be written, is not one
        folder for all processes, or has a name in which checkpoints are lost.
    """
    workdir = cls(paths.open_path(name), config, defaults)
    # Orbax finds the parts of a checkpoint by a pattern, in which these are no
    # plain characters.
    if found := {*'[\\'} & {*os.path.abspath(workdir.path)}:
      raise UserError(
        f'--workdir={name}: checkpoints below a folder with {found.pop()!r} in '
        'its name cannot be read again; take another name'
      )
    processes.first_alone('workdir', workdir._check)
    check_shared(workdir.path, '--workdir')
    return workdir

  def hold(self) -> None:
    """Keeps the folder for this process until it ends, where it is on a disk.

    Raises:
      UserError: a process that runs holds it.
    """
    if isinstance(self.path, pathlib.Path):
      processes.first_alone('hold', self._hold)

  def __truediv__(self, name: str) -> paths.Path:
    return self.path / name

  def __str__(self) -> str:
    return str(self.path)

  def below(self, name: str) -> 'Workdir':
    """Returns a folder in it, for a second model of the same job."""
    return dataclasses.replace(self, path=self.path / name)

  def check_local(self, job: str) -> None:
    """Raises UserError at gs://, for jobs that need a disk.

    Args:
      job: such as 'a search job'.
    """
    paths.check_local(self.path, f'the workdir of {job}')

  def claim(self, data_fingerprint: str) -> None:
    """Ties the workdir to this config and this data.

    A job calls this when its data is there: a run that fails before leaves the
    workdir free for the corrected command.

    Raises:
      UserError: the workdir belongs to another config or other data.
    """
    processes.first_alone('claim', self._claim, data_fingerprint)

  def write_json(self, name: str, value: Any) -> None:
    """Writes a file atomically in process 0; the others wait."""
    processes.first_alone(name, write_json, self / name, value)

  def write_lines(self, name: str, records: Iterable[Any]) -> None:
    """Writes JSON lines atomically in process 0; the others wait."""
    processes.first_alone(name, write_lines, self / name, records)

  def write_results(
    self, about: Mapping[str, Any], results: Mapping[str, Any]
  ) -> None:
    """Keeps or writes results.json in process 0; the others wait."""
    content = {'results': results}
    processes.first_alone(
      'results', keep_or_write_results, self.path, about, content
    )

  def read_json(self, name: str) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if there is no file yet.

    Raises:
      UserError: the file is empty, cut off, or not an object.
    """
    path = self / name
    return paths.read_json(path, DELETE) if path.exists() else {}

  def _check(self) -> None:
    """Raises UserError unless the folder is new or belongs to this config."""
    try:
      ours = json.loads(json.dumps(self.config, allow_nan=False))
    except ValueError:
      raise UserError(
        'the config holds inf or nan; give a finite number in its place'
      ) from None
    path = self / 'config.json'
    try:
      paths.make_folder(self.path)
      known = path.exists()
    except OSError as error:
      raise UserError(
        f'workdir {self}: {error.strerror}; choose one that can be written'
      ) from None
    if not known:
      return
    defaults = json.loads(json.dumps(self.defaults))  # JSON has no tuples
    theirs = with_defaults(paths.read_json(path, OWN_OR_OTHER), defaults)
    different = [
      name
      for name in differences(ours, theirs)
      if not any(f'{name}.'.startswith(f'{free}.') for free in MAY_CHANGE)
    ]
    if different:
      shown = ' '.join(', '.join(different[:5]).split())  # one line of any keys
      raise UserError(
        f'workdir {self} belongs to another config (differs in {shown}); '
        'choose another --workdir, or delete it'
      )

  def _hold(self) -> None:
    lock_folder(self.path, f'workdir {self}')

  def _claim(self, data_fingerprint: str) -> None:
    self._check()
    ours = {'fingerprint': data_fingerprint}
    for name, value in (('data.json', ours), ('config.json', self.config)):
      if not (self / name).exists():
        write_json(self / name, value)
    path = self / 'data.json'
    there = paths.read_json(path, OWN_OR_OTHER).get('fingerprint')
    if there != data_fingerprint:
      raise UserError(
        f'workdir {self} was begun with other data than there is now: see '
        f'{path}, now {data_fingerprint}; bring back the files, or choose '
        'another --workdir'
      )


def lock_folder(folder: pathlib.Path, name: str) -> int:
  """Locks a folder on a disk.

  Args:
    name: what a message calls it.

  Returns:
    A file descriptor; the lock ends when it is closed, or with the process.

  Raises:
    UserError: a process that runs has locked it.
  """
  held = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    os.close(held)
    raise UserError(
      f'{name}: a job that is running writes there; stop that one, or wait for '
      'its end'
    ) from None
  except OSError as error:  # there are file systems without locks
    logging.warning(
      '%s: %s; start no second job in it while this one runs',
      name,
      error.strerror,
    )
  return held


def write_json(path: paths.Path, value: Any) -> None:
  """Writes a JSON file atomically."""
  paths.write_text(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


def write_lines(path: paths.Path, records: Iterable[Any]) -> None:
  """Writes a file of JSON lines atomically."""
  lines = (json.dumps(record, ensure_ascii=False) for record in records)
  paths.write_text(path, ''.join(f'{line}\n' for line in lines))


def keep_or_write_results(
  workdir: paths.Path, about: Mapping[str, Any], content: Mapping[str, Any]
) -> bool:
  """Writes results.json, unless there is one with the same content.

  That one is kept, and with it the manifest of the processes that did the work.

  Args:
    about: the manifest.
    content: all but the manifest.

  Returns:
    Whether the file was written.
  """
  # As JSON reads it, without tuples.
  if read_content(workdir) == json.loads(json.dumps(content)):
    return False
  write_json(workdir / 'results.json', {'manifest': about, **content})
  return True


def read_content(workdir: paths.Path) -> dict[str, Any]:
  """Returns results.json without its manifest; {} where it is broken."""
  try:
    found = json.loads((workdir / 'results.json').read_bytes())
    del found['manifest']
    return found
  except (FileNotFoundError, ValueError, LookupError, TypeError):
    return {}


def read_results(workdir: paths.Path) -> dict[str, Any]:
  """Returns results.json of a finished job; {} if there is none yet.

  Raises:
    UserError: the file is empty, cut off, or not an object.
  """
  path = workdir / 'results.json'
  if not path.is_file():
    return {}
  return paths.read_json(path, 'the command of its job writes it again')


def is_done(workdir: paths.Path) -> bool:
  """Returns whether a job has ended there, with its chains if it makes some.

  If files are broken or deleted it is not done: the job makes them again.
  """
  try:
    results = read_results(workdir)
  except UserError:
    return False
  made = results.get('dataset')
  if made is None:
    return bool(results)
  name = made.get('name') if isinstance(made, dict) else None
  return isinstance(name, str) and (workdir / 'data' / name).is_dir()


def differences(ours: Any, theirs: Any, path: str = '') -> list[str]:
  """Returns the dotted names of the values in which two configs differ."""
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


def with_defaults(
  config: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns a config in which missing keys have their defaults."""
  filled = dict(config)
  for name, value in defaults.items():
    if isinstance(value, Mapping) and isinstance(filled.get(name), Mapping):
      filled[name] = with_defaults(filled[name], value)
    else:
      filled.setdefault(name, value)
  return filled


def check_shared(folder: paths.Path, flag: str) -> None:
  """Checks that a folder is the same one for all processes.

  Args:
    flag: the flag that names it, for the error.

  Raises:
    UserError: another process does not see what process 0 wrote there.
  """
  if processes.count() == 1:
    return
  token = processes.exchange('token', secrets.token_hex(8))[0]
  path = folder / f'.shared-{token}'
  processes.first_alone('shared', _touch, path, flag)
  # Network file systems show a new file to other hosts with some delay.
  end = time.monotonic() + SHARED_SECONDS
  with paths.as_user_errors(path):
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
