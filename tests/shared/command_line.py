"""The command line as tests use it: real processes, and many cheap ones.

`run` and `start` are `python -m prm_jax.main` itself. `run_all` hands a list
of command lines to one process (`forked_command_lines.py`) that imports the
package once and forks for each of them.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A line that says how far a job is: on a slow machine there may be some.
PROGRESS = re.compile(r'^(?!error: ).*[: ][\d,]+(/[\d,]+)?(  |$)')
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


def start(*args: str, **env: str) -> subprocess.Popen:
  """A command line in a process of its own, with its output in pipes."""
  return subprocess.Popen(
    [sys.executable, '-m', 'prm_jax.main', *args],
    cwd=ROOT,
    env=os.environ | env,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def run(*args: str, **env: str) -> subprocess.CompletedProcess:
  process = start(*args, **env)
  out, err = process.communicate(timeout=300)
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


def run_all(
  command_lines: Sequence[Sequence[str]],
  together: bool = False,
) -> list[subprocess.CompletedProcess]:
  """Each command line in a fork of one process that has imported prm_jax.

  Args:
    together: all at the same time, as the processes of a job must be.
  """
  # Where a person keeps data must not cure the command lines that name none.
  env = {k: v for k, v in os.environ.items() if k != 'PRM_JAX_DATA'}
  driver = subprocess.run(
    [
      *(sys.executable, '-m', 'tests.shared.forked_command_lines'),
      *([str(len(command_lines))] if together else []),
    ],
    cwd=ROOT,
    env=env,
    input=json.dumps([list(args) for args in command_lines]),
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert driver.returncode == 0, driver.stderr
  return [
    subprocess.CompletedProcess(args, *result)
    for args, result in zip(
      command_lines, json.loads(driver.stdout), strict=True
    )
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
  """Every file below a folder, to see that nothing was touched."""
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }
