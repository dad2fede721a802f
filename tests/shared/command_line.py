"""The command line as tests use it: real processes, and many cheap ones.

`run` and `start` are `python -m prm_jax.main` itself. `run_all` hands a list
of command lines to a process (`forked_command_lines.py`) that has imported the
package and forks for each of them.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A line that says how far a job is: on a slow machine there may be some.
PROGRESS = re.compile(r'^(?!error: ).*[: ][\d,]+(/[\d,]+)?(  |$)')
# Where a person keeps data must not cure the command lines that name none.
NOT_INHERITED = {'PRM_JAX_DATA', 'PYTEST_CURRENT_TEST'}
TIMEOUT = 600  # seconds that `run_all` may take
TINY = '--config=configs/prm_math.py:tiny'
SMALL = (
  TINY,
  '--config.orm_baseline=False',
  '--config.data.dev_problems=4',
  '--config.data.test_problems=4',
  '--config.data.test_samples=4',
  '--config.evaluation.ns=(1, 2, 4)',
  '--config.evaluation.resamples=10',
)
# Long enough to be interrupted anywhere.
LONG = (
  *SMALL,
  '--config.train.steps=60',
  '--config.train.log_every=1',
  '--config.train.checkpoint_every=4',
)
# A policy on a domain that it learns in seconds: the 3 m^2 facts of one step,
# the mistakes of its solver included, as in `mod 3 : 2 * 2 = 1`.
SMALL_POLICY = (
  '--config=configs/policy_math.py:tiny',
  '--config.data.arithmetic.modulus=3',
  '--config.data.arithmetic.operations=1',
  '--config.data.max_length=15',
  '--config.data.row_length=45',
  '--config.data.max_steps_per_row=3',
  '--config.data.train_problems=15',
  '--config.data.train_samples=40',
  '--config.data.dev_problems=4',
  '--config.data.test_problems=8',
  '--config.evaluation.max_problems=8',
  '--config.train.steps=150',
  '--config.train.checkpoint_every=50',
  '--config.train.keep=3',
  '--config.optim.lr=1e-2',
)
# A label job; the name of a variant follows.
LABEL = '--config=configs/label_math.py:'


def chain_flags(count: int) -> tuple[str, ...]:
  """Returns the flags of a label job of `count` chains."""
  return (
    f'--config.chains.train_problems={count}',
    '--config.chains.dev_problems=1',
    '--config.chains.test_problems=1',
    '--config.concurrent=20',
  )


def workdir_flag(folder: pathlib.Path) -> str:
  """Returns the flag that puts a job in this folder."""
  return f'--workdir={folder}'


def start(
  *args: str, file: IO[str] | None = None, **env: str
) -> subprocess.Popen:
  """A command line in a process of its own, with its output in pipes.

  Args:
    file: takes all output in place of the pipes, which would fill up.
  """
  return subprocess.Popen(
    [sys.executable, '-m', 'prm_jax.main', *args],
    cwd=ROOT,
    env=os.environ | env,
    stdout=file or subprocess.PIPE,
    stderr=file or subprocess.PIPE,
    text=True,
  )


def run(*args: str, **env: str) -> subprocess.CompletedProcess:
  process = start(*args, **env)
  try:
    out, err = process.communicate(timeout=300)
  finally:  # one that hangs would slow down all others
    process.kill()
  return subprocess.CompletedProcess(args, process.returncode, out, err)


def run_module(name: str, *args: str | os.PathLike) -> Any:
  """What a module of the tests prints as JSON, in a process of its own.

  For what needs many devices: their number is fixed when JAX starts.
  """
  done = subprocess.run(
    [sys.executable, '-m', name, *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert 'rematerialization' not in done.stderr
  return json.loads(done.stdout)


class Asked(NamedTuple):
  """Command lines that a process is asked to run.

  Attributes:
    command_lines: the arguments of each.
    at_a_time: how many run at a time; what waits for each other must. 0 is one
      a core.
  """

  command_lines: Sequence[Sequence[str]]
  at_a_time: int = 0


class _Driver:
  """A process that forks for command lines, and ends with this one.

  Args:
    env: its environment, and theirs.
  """

  def __init__(self, env: Mapping[str, str]):
    self._env = env
    self._errors = tempfile.TemporaryFile('w+')  # noqa: SIM115 it lives as long
    self._process = subprocess.Popen(
      [sys.executable, '-m', 'tests.shared.forked_command_lines'],
      cwd=ROOT,
      env=env,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
      start_new_session=True,
    )

  def ask(self, asked: Asked) -> list[tuple[int, str, str]]:
    """Returns exit code, stdout and stderr of each command line."""
    # What it has forked keeps its pipes open, so that has to end, too.
    watch = threading.Timer(
      TIMEOUT, os.killpg, (self._process.pid, signal.SIGKILL)
    )
    watch.start()
    try:
      self._process.stdin.write(json.dumps(asked) + '\n')
      self._process.stdin.flush()
      answer = self._process.stdout.readline()
    finally:
      watch.cancel()
    if not answer:
      self._errors.seek(0)
      raise AssertionError(
        f'no answer in {TIMEOUT} seconds, or: {self._errors.read()}'
      )
    return json.loads(answer)

  def serves(self, env: Mapping[str, str]) -> bool:
    """Returns whether it runs, and in this environment."""
    return self._env == env and self._process.poll() is None

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.wait()


_DRIVERS: list[_Driver] = []


def _driver() -> _Driver:
  """Returns the process for this environment; there is one at a time."""
  env = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
  if _DRIVERS and not _DRIVERS[0].serves(env):
    _DRIVERS.pop().close()
  if not _DRIVERS:
    _DRIVERS.append(_Driver(env))
  return _DRIVERS[0]


def run_all(
  command_lines: Sequence[Sequence[str]],
  together: bool = False,
) -> list[subprocess.CompletedProcess]:
  """Each command line in a fork of one process that has imported prm_jax.

  Args:
    together: all at the same time, as the processes of a job must be.
  """
  asked = Asked(
    [list(args) for args in command_lines],
    len(command_lines) if together else 0,
  )
  return [
    subprocess.CompletedProcess(args, *result)
    for args, result in zip(command_lines, _driver().ask(asked), strict=True)
  ]


def the_error(finished: subprocess.CompletedProcess) -> str:
  """The one line that a user's fault is reported with; checks it is one."""
  told = f'{finished.args}\n{finished.stdout}\n{finished.stderr}'
  assert finished.returncode == 2, told
  assert 'Traceback' not in finished.stdout + finished.stderr, told
  others = [
    line for line in finished.stderr.splitlines() if not PROGRESS.search(line)
  ]
  assert len(others) == 1, told
  assert others[0].startswith('error: '), told
  return others[0]


def copy_run(workdir: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
  """A workdir that a test may damage."""
  return pathlib.Path(shutil.copytree(workdir, to))


def contents(folder: pathlib.Path) -> dict[str, bytes]:
  """Every file below a folder, to see that nothing was touched.

  Without `__pycache__`, which Python may make beside a config that it imports.
  """
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob('*'))
    if path.is_file() and path.parent.name != '__pycache__'
  }
