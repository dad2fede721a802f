"""Programs that try to get out, each with what must become of it.

Run as a script it is the ordinary user's half of `test_sandbox.py`: it gives up
root, then runs them all and prints what happened as JSON.
"""

import dataclasses
import json
import os
import pathlib
import signal
import socket
import sys

from prm_jax.verify import sandbox, sandbox_launcher

SECRET = 'PRM_JAX_TEST_SECRET'
ESCAPED = '/tmp/prm_jax_escaped'
IMPORTS = 'import os, signal, socket, sys, time\n'

# Name: (program, limits, outcome, exit code, words in the output).
PROGRAMS = {
  'right': ('answer = 42\nassert answer == 42', {}, 'passed', 0, ''),
  'wrong': ('assert 41 == 42', {}, 'failed', 1, 'AssertionError'),
  'exception': ('{}["key"]', {}, 'failed', 1, "KeyError: 'key'"),
  'no Python': ('def f(:', {}, 'failed', 1, 'SyntaxError'),
  'exit 3': ('sys.exit(3)', {}, 'failed', 3, ''),
  'exit 0 before the tests': ('sys.exit(0)', {}, 'failed', 0, ''),
  'hard exit 0': ('os._exit(0)', {}, 'failed', 0, ''),
  'kills itself': ('os.kill(os.getpid(), 9)', {}, 'failed', -9, ''),
  'kills all it can': (
    # Its parent is the init of a namespace, or this would kill the tester.
    'assert os.getppid() == 1\n'
    'if os.fork() == 0: time.sleep(60)\nos.kill(-1, 9)',
    {},
    'passed',
    0,
    '',
  ),
  'writes to every descriptor': (
    'for fd in range(3, 64):\n'
    '  try: os.write(fd, b\'{"code": 0}\\n\')\n'
    '  except OSError: pass\n'
    'sys.exit(3)',
    {},
    'failed',
    3,
    '',
  ),
  'too large to write down': (
    '#' * 100_000,
    {'disk_bytes': 50_000},
    'failed',
    1,
    'cannot be written',
  ),
  'no text': ('"\ud800"', {}, 'failed', 1, 'cannot be written'),
  'fork bomb': (
    'while True:\n  try: os.fork()\n  except OSError: pass',
    {'wall_seconds': 0.9},
    'timed out',
    None,
    '',
  ),
  'infinite loop': (
    'while True: pass',
    {'wall_seconds': 0.7},
    'timed out',
    None,
    '',
  ),
  'cpu limit': (
    'while True: pass',
    {'cpu_seconds': 1, 'wall_seconds': 30},
    'timed out',
    -signal.SIGXCPU,
    '',
  ),
  'silent and stopped': (
    'os.close(1); os.close(2); os.kill(os.getpid(), signal.SIGSTOP)',
    {'wall_seconds': 0.7},
    'timed out',
    None,
    '',
  ),
  '1 GB of output': (
    'for _ in range(1000): print("x" * 1_000_000)',
    {},
    'output too long',
    None,
    'xxxx',
  ),
  'writes outside': (
    f'open({ESCAPED!r}, "w").write("x")',
    {},
    'failed',
    1,
    'Read-only file system',
  ),
  'mounts it writable': (
    'import ctypes\nlibc = ctypes.CDLL(None)\n'
    'assert libc.mount(None, b"/", None, 32 | 4096, None) == -1\n'
    'libc.unshare(0x10020000)\n'
    'assert libc.mount(None, b"/", None, 32 | 4096, None) == -1\n'
    f'open({ESCAPED!r}, "w")',
    {},
    'failed',
    1,
    'Read-only file system',
  ),
  'network': (
    'socket.create_connection(("127.0.0.1", PORT), timeout=2)',
    {},
    'failed',
    1,
    'OSError',
  ),
  'child outlives parent': (
    'if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n'
    '    os.close(1); os.close(2); time.sleep(60)\n  os._exit(0)',
    {},
    'passed',
    0,
    '',
  ),
  'child of an infinite loop': (
    'if os.fork() == 0:\n  os.setsid(); os.close(1); os.close(2)\n'
    'while True: time.sleep(1)',
    {'wall_seconds': 0.7},
    'timed out',
    None,
    '',
  ),
  'parents environment': (
    'found = [dict(os.environ)]\n'
    'for pid in [*os.listdir("/proc"), str(os.getppid())]:\n'
    '  try: found.append(open(f"/proc/{pid}/environ").read())\n'
    '  except OSError: pass\n'
    'print(len(found), found)',
    {},
    'passed',
    0,
    'HOME',
  ),
  '10 GB of memory': (
    'memory = bytearray(10 << 30)',
    {},
    'out of memory',
    1,
    'MemoryError',
  ),
  '10 GB in a file': (
    'with open("big", "wb") as file:\n'
    '  for _ in range(10_000): file.write(bytes(1_000_000))',
    {},
    'failed',
    1,
    'OSError',
  ),
  'a hole of 10 GB': (
    'os.truncate(os.open("big", os.O_CREAT | os.O_RDWR), 10 << 30)',
    {},
    'failed',
    1,
    'File too large',
  ),
  '10 GB in many files': (
    'for i in range(10_000):\n'
    '  with open(f"{i}", "wb") as file: file.write(bytes(1_000_000))',
    {},
    'failed',
    1,
    'No space left on device',
  ),
}


def left_behind() -> list[str]:
  """Command lines of the programs that still run."""
  found = []
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      command = (folder / 'cmdline').read_bytes()
    except OSError:  # it has ended
      continue
    if command.endswith(b'\0program.py\0'):
      found.append(command.decode())
  return found


def run_all() -> dict[str, dict]:
  """Every program's result, and what ran on after it."""
  results = {}
  with socket.create_server(('127.0.0.1', 0)) as server:
    port = server.getsockname()[1]
    for name, (program, limits, *_) in PROGRAMS.items():
      source = IMPORTS + program.replace('PORT', str(port))
      result = sandbox.run(source, limits=sandbox.Limits(**limits))
      results[name] = dataclasses.asdict(result) | {'left': left_behind()}
    server.settimeout(0)
    try:
      server.accept()
    except BlockingIOError:
      results['network']['reached'] = False
  return results


def main():
  if os.getuid() == 0:
    root = pathlib.Path(__file__).resolve().parents[2]
    sandbox_launcher.open_way([*sandbox.python_folders(), str(root)])
    sandbox_launcher.leave_root()
  json.dump({'user': os.getuid(), 'results': run_all()}, sys.stdout)


if __name__ == '__main__':
  main()
