"""Unit tests of a program that nobody has read, behind walls.

Label sources and rewards for code steps run a model's program here (Linux; no
root needed, and root's programs run as nobody). What a program may try, on
purpose and with all its means, and what its caller is promised:

- Files: it sees /usr (with /bin, /lib, /etc/alternatives) and this Python, and
  of each file the bytes only: it cannot write, lock or watch it, and no socket
  or FIFO there is the one outside. It has one empty folder, in memory. Of the
  machine's devices it has /dev/null and /dev/urandom, and no terminal.
- Others: no network, no sockets with a name, no processes but its own, no keys,
  no System V memory, nothing of the caller's environment. What it finds out it
  can tell the caller only, by its output.
- Rights: the system calls in `sandbox_filter.py`, no namespaces, never root.
- `Limits`: kept for all of its processes together, but CPU time, files open and
  address space for each. When it ends, all that it started has ended.

Memory is looked at every 20 ms. Between two looks many processes can take more,
each at most `memory_bytes`, and the kernel's own records of them (some 20 MB
each at worst) are not seen. Where we can make a control group, as root can, the
kernel itself keeps all of that below `memory_bytes + disk_bytes`.

Not promised: that a program is honest (see `run`); that it does not learn the
machine's name, load or time; that the kernel and Python have no faults.

A machine that lacks one of the walls is refused. bubblewrap would not be less
code: it limits neither memory nor the number of files, and leaves root root.
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
from prm_jax.data.verify.sandbox_cgroup import new_cgroup, overran
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above
from prm_jax.runtime.errors import UserError

OUTCOMES = (
  'passed',
  'failed',
  'timed out',
  'out of memory',
  'output too long',
)
_LAUNCHER = pathlib.Path(__file__).with_name('sandbox_launcher.py')
_DYING_SECONDS = 10  # for the kernel to end what was killed


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
  """What a program may use.

  Attributes:
    wall_seconds: from start to end, with everything it starts.
    cpu_seconds: of one process; whole seconds.
    memory_bytes: of all processes together, what waits in pipes included; also
      the address space of each.
    disk_bytes: of all files together, in memory.
    processes: and threads, at one time.
    files: open at one time, and in the folder.
    output_bytes: standard output and error together.
  """

  wall_seconds: Annotated[float, above(0)] = 10.0
  cpu_seconds: Annotated[int, above(0)] = 10
  memory_bytes: Annotated[int, above(0)] = 512 << 20
  disk_bytes: Annotated[int, above(0)] = 16 << 20
  processes: Annotated[int, above(0)] = 16
  files: Annotated[int, above(0)] = 128
  output_bytes: Annotated[int, above(0)] = 64 << 10

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
  """What became of a program.

  Attributes:
    outcome: one of OUTCOMES.
    exit_code: negative for a signal; None where it was killed by us.
    output: standard output and error, at most `Limits.output_bytes`.
    seconds: wall time.
  """

  outcome: str
  exit_code: int | None
  output: str
  seconds: float

  @property
  def passed(self) -> bool:
    return self.outcome == 'passed'


def run(program: str, tests: str = '', limits: Limits | None = None) -> Result:
  """Runs a Python program and, in the same module, its unit tests.

  It has passed when the last line of the tests has been reached and the exit
  code is 0; leaving earlier, with whatever code, is a failure. (A program that
  reads its own file can forge that. None does by accident.)

  Args:
    program: source, run with this Python and its installed packages.
    tests: source that follows it: assertions, or calls that raise.

  Raises:
    UserError: this machine cannot isolate a program (no Linux, no libseccomp,
      or user namespaces are forbidden); nothing has been run then.
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
    if group and overran(group):
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
  """Where this Python is, and its environment."""
  return [os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)]


def _pipe(stack: contextlib.ExitStack) -> tuple[BinaryIO, BinaryIO]:
  """Where to read and where to write, closed with the stack."""
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
  """Runs a job to its end; what it wrote, and how that ended.

  Args:
    inside: files for the launcher, closed here.
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
      if process.poll() is None:  # interrupted: what is inside goes first
        process.terminate()
        try:
          process.wait(_DYING_SECONDS)
        finally:
          process.kill()
  if process.returncode > 0:
    raise RuntimeError('the launcher of the sandbox has failed; it says why')
  return found


def _outcome(ended: str, code: int | None, text: str, proven: bool) -> str:
  if ended != 'closed':
    return ended
  last = text.rstrip().rpartition('\n')[2]
  if code == 0 and proven:
    return 'passed'
  # No code: the kernel, short of memory, has killed the whole namespace.
  if code is None or last.startswith('MemoryError'):
    return 'out of memory'
  return 'timed out' if code == -signal.SIGXCPU else 'failed'


def _read(
  process: subprocess.Popen, deadline: float, limits: Limits
) -> tuple[bytes, str]:
  """The output until all who could write have gone; kills at the limits."""
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
      # Everything inside is killed; then the pipe closes.
      process.terminate()
      deadline = time.monotonic() + _DYING_SECONDS
  return output, ended
