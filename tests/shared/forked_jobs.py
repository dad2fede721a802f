"""Starts command lines that are interrupted, each in a fork of one process.

As `forked_command_lines.py`, so that the seconds that imports take are spent
once; but here the process that starts them goes on at once, with a number to
which it sends signals.
"""

import contextlib
import gc
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.shared.command_line import NOT_INHERITED, ROOT
from tests.shared.forked_command_lines import run_as_process


class Job(NamedTuple):
  """Is a command line that runs, or has ended.

  Attributes:
    pid: number of its process, and of its group of processes.
    folder: where `out` and `err` are, what it printed.
  """

  pid: int
  folder: pathlib.Path

  @property
  def out(self) -> str:
    return (self.folder / 'out').read_text(errors='replace')

  @property
  def err(self) -> str:
    return (self.folder / 'err').read_text(errors='replace')

  def signal(self, number: int) -> None:
    os.kill(self.pid, number)


class Forks:
  """Starts jobs, and waits for them.

  Args:
    env: added to the environment of the process that forks.
  """

  def __init__(self, env: Mapping[str, str]) -> None:
    own = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
    self._process = subprocess.Popen(
      [sys.executable, '-m', 'tests.shared.forked_jobs'],
      cwd=ROOT,
      env=own | env,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def start(
    self, args: Sequence[str], folder: pathlib.Path, env: Mapping[str, str]
  ) -> Job:
    """Starts `python -m prm_jax.main ARGS`.

    Args:
      folder: an empty one for what it prints.
      env: added to the environment.
    """
    folder.mkdir(parents=True)
    for name in ('out', 'err'):  # it may be killed before it opens them
      (folder / name).touch()
    asked = {'args': [*args], 'folder': str(folder), 'env': dict(env)}
    return Job(self._ask(asked), folder)

  def wait(self, job: Job, seconds: float) -> int | None:
    """Returns the exit code, as Popen has it; None if it still runs."""
    return self._ask({'wait': job.pid, 'seconds': seconds})

  def _ask(self, asked: dict[str, Any]) -> Any:
    self._process.stdin.write(json.dumps(asked) + '\n')
    self._process.stdin.flush()
    answer = self._process.stdout.readline()
    assert answer, 'the process that forks has ended'
    return json.loads(answer)


_ENDED: dict[int, int] = {}  # exit codes of the jobs that have ended


def start(args: list[str], folder: str, env: dict[str, str]) -> int:
  """Forks for a command line; returns the number of the process."""
  pid = os.fork()
  # By whoever comes first: its group is killed by its number.
  with contextlib.suppress(OSError):
    os.setpgid(pid, 0)
  if not pid:
    os.environ.update(env)
    with (
      open(os.path.join(folder, 'out'), 'wb') as out,
      open(os.path.join(folder, 'err'), 'wb') as err,
    ):
      run_as_process(args, out, err)
  _ENDED.pop(pid, None)  # numbers of processes come again
  return pid


def wait(pid: int, seconds: float) -> int | None:
  """Waits at most so long; returns the exit code if it has ended."""
  end = time.monotonic() + seconds
  while True:
    if pid not in _ENDED:
      ended, status = os.waitpid(pid, os.WNOHANG)
      if ended:
        _ENDED[pid] = os.waitstatus_to_exitcode(status)
    if pid in _ENDED:
      return _ENDED[pid]
    if time.monotonic() > end:
      return None
    time.sleep(0.002)


def main() -> None:
  """Does what the lines of stdin ask, until there are no more."""
  gc.freeze()  # forks need not look for garbage in what is imported
  for line in sys.stdin:
    asked = json.loads(line)
    if 'wait' in asked:
      answer = wait(asked['wait'], asked['seconds'])
    else:
      answer = start(asked['args'], asked['folder'], asked['env'])
    print(json.dumps(answer), flush=True)


if __name__ == '__main__':
  main()
