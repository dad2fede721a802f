"""Runs the unit tests of untrusted programs in isolation.

Label sources and rewards for code steps run the programs that a model wrote
here. This needs Linux but no root; programs of root run as nobody. These
promises to the caller hold even for a program that tries to break them:

- Files: the program can read the bytes of the files in /usr (with /bin, /lib,
  /etc/alternatives) and in the folders of this Python. It cannot write, lock or
  watch them, and a socket or FIFO there is not connected to the one outside. It
  can write to one folder, empty at first and held in memory. Its only devices
  are /dev/null and /dev/urandom; it has no terminal.
- Communication: it has no network, no named sockets, no keys and no System V
  memory, sees no processes but its own, and gets nothing of the caller's
  environment. The only way out for what it learns is its output, to the caller.
- Rights: it may make only the system calls in `sandbox_filter.py`, may not
  create namespaces, and never runs as root.
- `Limits`: they hold for all of its processes together, but for CPU time, open
  files and address space, which are limited for each process. When it ends,
  everything that it started has ended.

Memory is measured every 20 ms. Between two measurements many processes can use
more, each at most `memory_bytes`; and the kernel's own records of them (some 20
MB each at worst) are not measured. Where we may make a control group, as root
may, the kernel keeps all of that below `memory_bytes + disk_bytes`.

Not promised: that a program is honest (see `run`); that it does not learn the
machine's name, load or time; that the kernel and Python have no faults.

A machine that cannot give one of these promises is refused. bubblewrap would
not need less code: it limits neither memory nor the number of files, and
programs of root stay root.
"""

import base64
import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, BinaryIO

from prm_jax.data.verify import sandbox_filter
from prm_jax.data.verify.sandbox_cgroup import new_cgroup, ran_out_of_memory
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above_up_to
from prm_jax.runtime.errors import UserError

OUTCOMES = (
  'passed',
  'failed',
  'timed out',
  'out of memory',
  'output too long',
)
_LAUNCHER = pathlib.Path(__file__).with_name('sandbox_launcher.py')
# Beyond any use, and within what the kernel takes.
_MOST_SECONDS, _MOST_BYTES, _MOST = 86_400, 2**40, 2**20
_DYING_SECONDS = 10  # that the kernel may take to end killed processes


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
  """Limits the resources of a program.

  Attributes:
    wall_seconds: wall time of the program and everything that it starts.
    cpu_seconds: CPU time of each process, in whole seconds.
    memory_bytes: memory of all processes together, with the data in pipes; also
      the address space of each process.
    disk_bytes: size of all files together, which are held in memory.
    processes: number of processes and threads at one time.
    files: number of files in the folder, and of open files of each process.
    output_bytes: length of standard output and standard error together.
  """

  wall_seconds: Annotated[float, above_up_to(0, _MOST_SECONDS)] = 10.0
  cpu_seconds: Annotated[int, above_up_to(0, _MOST_SECONDS)] = 10
  memory_bytes: Annotated[int, above_up_to(0, _MOST_BYTES)] = 512 << 20
  disk_bytes: Annotated[int, above_up_to(0, _MOST_BYTES)] = 16 << 20
  processes: Annotated[int, above_up_to(0, _MOST)] = 16
  files: Annotated[int, above_up_to(0, _MOST)] = 128
  output_bytes: Annotated[int, above_up_to(0, _MOST_BYTES)] = 64 << 10

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
  """Holds the result of running a program.

  Attributes:
    outcome: one of OUTCOMES.
    exit_code: negative for a signal; None if the sandbox killed the program.
    output: standard output and error, at most `Limits.output_bytes`.
    seconds: wall time.
  """

  outcome: str
  exit_code: int | None
  output: str
  seconds: float

  @property
  def passed(self) -> bool:
    """Says whether the program has passed its tests."""
    return self.outcome == 'passed'


def run(program: str, tests: str = '', limits: Limits | None = None) -> Result:
  """Runs a Python program and, in the same module, its unit tests.

  A program passes if the end of the tests is reached and the exit code is 0. If
  it exits before, with whatever code, it fails. A program that reads its own
  file can forge this on purpose, but not by accident.

  Args:
    program: source, run with this Python and its installed packages.
    tests: source that is appended: assertions, or calls that raise.
    limits: the resources it may use; the defaults of `Limits` if None.

  Raises:
    UserError: this machine cannot isolate a program (it is no Linux, lacks
      libseccomp, or forbids user namespaces). Nothing has been run then.
  """
  limits = limits or Limits()
  if sys.platform != 'linux':
    raise UserError(f'no sandbox on {sys.platform}: run code tests on Linux')
  job = dataclasses.asdict(limits) | {
    'python': sys.executable,
    'real_python': os.path.realpath(sys.executable),
    'folders': python_folders(),
    'filter': base64.b64encode(sandbox_filter.compiled()).decode(),
    'calls': {
      name: sandbox_filter.number(name) for name in ('keyctl', 'pivot_root')
    },
  }
  proof = secrets.token_hex(16)
  start = time.monotonic()
  with contextlib.ExitStack() as stack:
    room = limits.memory_bytes + limits.disk_bytes
    group = stack.enter_context(new_cgroup(room))
    proof_end, proof_start = _pipe(stack)
    status_end, status_start = _pipe(stack)
    inside = [proof_start, status_start]
    if group:
      inside.append(stack.enter_context(open(group / 'cgroup.procs', 'wb')))
    farewell = f"__import__('os').write({proof_start.fileno()}, b'{proof}')"
    job['source'] = f'{program}\n\n{tests}\n\n{farewell}\n'
    job['status'] = status_start.fileno()
    job['group'] = inside[2].fileno() if group else None
    output, ended = _launch(job, inside, start + limits.wall_seconds, limits)
    report = json.loads(status_end.readline() or b'{}')
    proven = proof_end.read(1000) == proof.encode()
    if group and ran_out_of_memory(group):
      report['code'] = None
  if 'isolation' in report:
    raise UserError(
      f'no sandbox on this machine ({report["isolation"]}): code tests need '
      'Linux 5.12 or later where users may make namespaces (Ubuntu: sysctl -w '
      'kernel.apparmor_restrict_unprivileged_userns=0; containers: '
      '--privileged)'
    )
  text = output.decode(errors='replace')
  code = report.get('code') if ended == 'closed' else None
  outcome = _outcome(ended, code, text, proven)
  return Result(outcome, code, text, time.monotonic() - start)


def python_folders() -> list[str]:
  """Returns the folders of this Python and of its virtual environment."""
  return [os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)]


def _pipe(stack: contextlib.ExitStack) -> tuple[BinaryIO, BinaryIO]:
  """Returns the reading and the writing end of a pipe; the stack closes it."""
  end, start = os.pipe()
  return (
    stack.enter_context(os.fdopen(end, 'rb')),
    stack.enter_context(os.fdopen(start, 'wb')),
  )


def _launch(
  job: dict[str, Any],
  inside: Sequence[BinaryIO],
  deadline: float,
  limits: Limits,
) -> tuple[bytes, str]:
  """Runs a job in the launcher.

  Args:
    job: what the launcher reads from its standard input.
    inside: open files that the launcher inherits; they are closed here.
    deadline: on the monotonic clock; the program is killed then.

  Returns:
    The output and how it ended; see `_read`.
  """
  process = subprocess.Popen(
    [sys.executable, '-I', '-S', str(_LAUNCHER)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    pass_fds=[file.fileno() for file in inside],
    env={},
    start_new_session=True,
    cwd='/',
  )
  for file in inside:
    file.close()
  with process, process.stdout:
    try:
      process.stdin.write(json.dumps(job).encode())
      process.stdin.close()
      found = _read(process, deadline, limits)
      process.wait(_DYING_SECONDS)
    finally:
      # After an interruption the program is ended first, then the launcher.
      if process.poll() is None:
        process.terminate()
        try:
          process.wait(_DYING_SECONDS)
        finally:
          process.kill()
  if process.returncode > 0:
    raise RuntimeError(
      'the launcher of the sandbox has failed; its error is printed above'
    )
  return found


def _outcome(ended: str, code: int | None, text: str, proven: bool) -> str:
  if ended != 'closed':
    return ended
  last = text.rstrip().rpartition('\n')[2]
  if code == 0 and proven:
    return 'passed'
  # Without a code, the program has been killed for its memory.
  if code is None or last.startswith('MemoryError'):
    return 'out of memory'
  return 'timed out' if code == -signal.SIGXCPU else 'failed'


def _read(
  process: subprocess.Popen, deadline: float, limits: Limits
) -> tuple[bytes, str]:
  """Reads the output until every writer has ended; kills them at the limits.

  Returns:
    The output, at most `limits.output_bytes`; and 'closed', 'timed out' or
    'output too long'.
  """
  pipe = process.stdout.fileno()
  output, ended = b'', 'closed'
  with selectors.DefaultSelector() as selector:
    selector.register(pipe, selectors.EVENT_READ)
    while True:
      left = deadline - time.monotonic()
      if left <= 0 or not selector.select(left):
        if ended != 'closed':
          break
        ended = 'timed out'
      elif piece := os.read(pipe, 1 << 16):
        room = limits.output_bytes - len(output)
        output += piece[:room]
        if len(piece) <= room or ended != 'closed':
          continue
        ended = 'output too long'
      else:
        break
      # The launcher kills everything inside, and the pipe closes.
      process.terminate()
      deadline = time.monotonic() + _DYING_SECONDS
  return output, ended
