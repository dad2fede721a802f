"""Unit tests of a program that nobody has read, behind walls.

Label sources and rewards for code steps run a model's program here. It runs in
namespaces of its own (Linux; no root needed, and root becomes nobody first):
no network, no other processes to see or signal, all disks read-only, one empty
folder in memory, no environment. It is killed with everything it started. It
can still read the files that its user may read, but tell no one but the caller.
"""

import base64
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

from prm_jax.errors import UserError
from prm_jax.verify import sandbox_filter

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
    memory_bytes: address space of one process.
    disk_bytes: of all files together, in memory.
    processes: and threads, at one time.
    files: open at one time, and in the folder.
    output_bytes: standard output and error together.
  """

  wall_seconds: float = 10.0
  cpu_seconds: int = 10
  memory_bytes: int = 512 << 20
  disk_bytes: int = 16 << 20
  processes: int = 16
  files: int = 128
  output_bytes: int = 64 << 10


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
    UserError: this machine cannot isolate a program (no Linux, or user
      namespaces are forbidden); nothing has been run then.
  """
  limits = limits or Limits()
  if sys.platform != 'linux':
    raise UserError(f'no sandbox on {sys.platform}: run code tests on Linux')
  proof = secrets.token_hex(16)
  proof_end, proof_start = os.pipe()
  status_end, status_start = os.pipe()
  farewell = f"\n\n__import__('os').write({proof_start}, b'{proof}')\n"
  job = dataclasses.asdict(limits) | {
    'source': f'{program}\n\n{tests}{farewell}',
    'python': sys.executable,
    'real_python': os.path.realpath(sys.executable),
    'folders': python_folders(),
    'proof': proof_start,
    'status': status_start,
    'filter': base64.b64encode(sandbox_filter.compiled()).decode(),
    'calls': {
      name: sandbox_filter.number(name) for name in ('keyctl', 'pivot_root')
    },
  }
  start = time.monotonic()
  try:
    process = subprocess.Popen(
      [sys.executable, '-I', '-S', str(_LAUNCHER)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      pass_fds=(proof_start, status_start),
      env={},
      start_new_session=True,
      cwd='/',
    )
    os.close(proof_start)
    os.close(status_start)
    with process, process.stdout, os.fdopen(status_end, 'rb') as status:
      try:
        process.stdin.write(json.dumps(job).encode())
        process.stdin.close()
        output, ended = _read(process, start + limits.wall_seconds, limits)
        process.wait(_DYING_SECONDS)
      finally:
        process.kill()
      said = status.read()
    proven = os.read(proof_end, 1000) == proof.encode()
  finally:
    os.close(proof_end)
  report = json.loads(said.split(b'\n')[0] or b'{}')
  if 'isolation' in report:
    raise UserError(
      f'no sandbox on this machine ({report["isolation"]}): code tests need '
      'Linux 5.12 or later with user namespaces allowed'
    )
  text = output.decode(errors='replace')
  code = report.get('code') if ended == 'closed' else None
  outcome = _outcome(ended, code, text, proven)
  return Result(outcome, code, text, time.monotonic() - start)


def python_folders() -> list[str]:
  """Where this Python is, and its environment."""
  return [os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)]


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
