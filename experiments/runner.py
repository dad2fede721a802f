"""Runs the jobs of an experiment, several at the same time.

A job whose results are there is not run again, so an experiment that was
stopped resumes with the same command. One of other flags is refused.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import flags as absl_flags
from ml_collections import config_flags

from prm_jax.jobs.settings import default_config
from prm_jax.runtime import paths
from prm_jax.runtime import workdir as workdir_lib
from prm_jax.runtime.workdir import (
  MAY_CHANGE,
  differences,
  is_done,
  with_defaults,
)

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The compilation cache of `prm_jax.main`: equal programs are compiled once.
CACHE = {
  'JAX_COMPILATION_CACHE_DIR': str(paths.machine_folder('xla')),
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.2',
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}
SHOWN_EVERY = 60  # seconds between two lines of a job beside others
LAST_LINES = 40  # of a job, shown where it fails
_PRINTING = threading.Lock()


def read_results(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns what a job that is done has measured, from its results.json."""
  return workdir_lib.read_results(workdir)['results']


def slug(name: str) -> str:
  """Makes a name, such as that of an arm, the name of a folder."""
  return name.replace(' + ', '_').replace(', ', '_').replace(' ', '_')


def config_of(config: str, flags: Sequence[str]) -> dict[str, Any]:
  """Returns the whole config of a job, as its config.json has it."""
  argv = ['', f'--config={ROOT / "configs"}/{config}', *flags]
  values = absl_flags.FlagValues()
  config_flags.DEFINE_config_file(
    'config', None, '', flag_values=values, sys_argv=argv
  )
  values(argv)
  raw = values['config'].value.to_dict()
  whole = with_defaults(raw, default_config(raw['task']).to_dict())
  return json.loads(json.dumps(whole))  # JSON has no tuples


def check_config(workdir: pathlib.Path, asked: Mapping[str, Any]) -> None:
  """Checks that a job that is done was run with this config.

  A run of few updates, to see that everything works, is no run of many. Folders
  may have moved since, and what changes no result may differ.

  Raises:
    SystemExit: it was run with another.
  """
  defaults = json.loads(json.dumps(default_config(asked['task']).to_dict()))
  written = json.loads((workdir / 'config.json').read_text())
  found = with_defaults(written, defaults)
  for name in differences(asked, found):
    if any(f'{name}.'.startswith(f'{free}.') for free in MAY_CHANGE):
      continue
    before, now = found, asked
    for part in name.split('.'):
      before, now = before.get(part, {}), now.get(part, {})
    # What the data is, its fingerprint says.
    if (_is_path(before) and _is_path(now)) or name.endswith('.root'):
      continue
    raise SystemExit(
      f'error: {workdir} was run with {name}={before!r}, and this command has '
      f'{now!r}; name another --workdir'
    )


def _is_path(value: Any) -> bool:
  every = value if isinstance(value, list) and value else [value]
  return all(isinstance(each, str) and each.startswith('/') for each in every)


def _say(text: str) -> None:
  """Prints a line, whole: jobs are followed by threads of their own."""
  with _PRINTING:
    print(text, flush=True)


def _follow(name: str, lines: Iterable[str]) -> str:
  """Shows a line a minute of what a job prints; returns the end of it all."""
  last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
  shown_at = time.monotonic()
  for line in lines:
    last.append(line)
    if time.monotonic() - shown_at >= SHOWN_EVERY:
      shown_at = time.monotonic()
      _say(f'{name}: {line.rstrip()}')
  return ''.join(last).strip()[-2000:]


class Runner:
  """Runs command lines.

  SIGTERM and Ctrl-C are passed on to the jobs that run, which keep a checkpoint
  and end.

  Args:
    workdir: folder below which each job has a folder of its own.
    jobs: number of jobs that `all` runs at the same time. They share the cores,
      a core each at least, and of their output a line a minute is shown.
  """

  def __init__(self, workdir: pathlib.Path, jobs: int):
    self.workdir = workdir.absolute()
    self._cores = sorted(getattr(os, 'sched_getaffinity', lambda _: {0})(0))
    self._jobs = jobs
    self._pool = concurrent.futures.ThreadPoolExecutor(jobs)
    self._free = list(range(jobs))
    self._running: list[subprocess.Popen] = []
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, self._stop)

  def main(self, config: str, folder: str, *flags: str) -> pathlib.Path:
    """Runs one job of prm_jax.main unless it is done; returns its workdir.

    Raises:
      SystemExit: it failed, or what is there was run with other flags.
    """
    path = self.workdir / folder
    if is_done(path):
      check_config(path, config_of(config, flags))
    else:
      flags = (f'--config=configs/{config}', f'--workdir={path}', *flags)
      self.run(folder or path.name, '-m', 'prm_jax.main', *flags)
      if not is_done(path):
        raise SystemExit(f'error: {path} was stopped; the same command goes on')
    return path

  def run(self, name: str, *arguments: str) -> None:
    """Runs this Python with some arguments, on a core that is free.

    Raises:
      SystemExit: the run failed; what it said last is printed at once, as the
        runs beside it may take hours.
    """
    own_thread = threading.current_thread() is not threading.main_thread()
    beside = self._jobs > 1 and own_thread
    slot = self._free.pop()
    if beside and hasattr(os, 'sched_setaffinity'):
      count = len(self._cores)
      own = self._cores[slot % count :: min(self._jobs, count)]
      # The affinity of this thread, which the child process inherits.
      os.sched_setaffinity(0, own)
    process = subprocess.Popen(
      [sys.executable, *arguments],
      stdout=subprocess.PIPE if beside else None,
      stderr=subprocess.STDOUT if beside else None,
      text=True,
      errors='replace',
      cwd=ROOT,
      env=CACHE | os.environ,
    )
    self._running.append(process)
    try:
      with process:
        last = _follow(name, process.stdout) if beside else ''
    finally:
      self._running.remove(process)
      self._free.append(slot)
    if process.returncode:
      if beside:
        _say(f'{name}: failed: {last}')
      raise SystemExit(f'error: {name} failed')
    _say(f'{name}: done')

  def _stop(self, *_: Any) -> None:
    for process in list(self._running):
      process.terminate()
    raise SystemExit('error: stopped; the same command goes on')

  def all(self, function: Callable[..., Any], calls: Sequence[tuple]) -> list:
    """Calls a function, such as `main`, with each tuple of arguments.

    A single call has all cores, and all that its job prints is shown.
    """
    if len(calls) == 1:
      return [function(*calls[0])]
    return list(self._pool.map(lambda call: function(*call), calls))
