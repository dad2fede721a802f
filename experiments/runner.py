"""Runs jobs of `prm_jax.main` side by side, each on a core of its own.

What is there already is not made again: an experiment that was stopped goes on.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from prm_jax.runtime import manifest, paths

ROOT = pathlib.Path(__file__).resolve().parents[1]
# As `prm_jax.main` has it: equal programs are compiled once.
CACHE = {
  'JAX_COMPILATION_CACHE_DIR': str(paths.machine_folder('xla')),
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.2',
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}


class Runner:
  """Runs command lines.

  Args:
    workdir: below which each job has its folder.
    jobs: how many run at the same time; several have a core each.
  """

  def __init__(self, workdir: pathlib.Path, jobs: int):
    self.workdir = workdir.absolute()
    self._cores = sorted(getattr(os, 'sched_getaffinity', lambda _: {0})(0))
    self._jobs = jobs
    self._pool = concurrent.futures.ThreadPoolExecutor(jobs)
    self._free = list(range(jobs))

  def main(self, config: str, folder: str, *flags: str) -> pathlib.Path:
    """One job of prm_jax.main, unless its results are there; its workdir."""
    path = self.workdir / folder
    if not manifest.is_done(path):
      flags = (f'--config=configs/{config}', f'--workdir={path}', *flags)
      self.run(folder, '-m', 'prm_jax.main', *flags)
    return path

  def run(self, name: str, *arguments: str) -> None:
    """One run of this Python, on a core that is free."""
    slot = self._free.pop()
    if self._jobs > 1 and hasattr(os, 'sched_setaffinity'):
      # Of this thread; the child inherits it.
      os.sched_setaffinity(0, {self._cores[slot % len(self._cores)]})
    try:
      done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=CACHE | os.environ,
      )
    finally:
      self._free.append(slot)
    if done.returncode:
      # Now, too: what runs beside it may take hours.
      print(f'{name}: failed: {done.stderr.strip()[-2000:]}', flush=True)
      raise SystemExit(f'error: {name} failed')
    print(f'{name}: done', flush=True)

  def all(self, function: object, calls: Sequence[tuple]) -> list:
    """What a function, such as `main`, gives for each of several arguments."""
    return list(self._pool.map(lambda call: function(*call), calls))
