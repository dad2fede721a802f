"""Hostile programs that want an undeserved verdict, or too many resources.

Each has its expected result. `outside.py` runs them and watches from outside
what they do. `hostile_reaches.py` has programs that reach out of the sandbox.
"""

import dataclasses
import signal
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Program:
  """A program and its expected result.

  Attributes:
    source: the program, to be appended to HEAD.
    words: a part of its expected output.
    outcome: expected `outcome` of the `sandbox.Result`.
    code: expected `exit_code`.
    limits: fields of `sandbox.Limits`.
  """

  source: str
  words: str = ''
  outcome: str = 'passed'
  code: int | None = 0
  limits: Mapping[str, float] = dataclasses.field(default_factory=dict)


# `outside.Outside` fills `out` with names of things outside of the sandbox.
HEAD = """
import contextlib, ctypes, errno, os, signal, socket, subprocess, sys
import threading, time
out = OUT
libc = ctypes.CDLL(None, use_errno=True)
places = [out['folder'], sys.prefix]

def call(name, *arguments):
  '''Makes a system call; returns its result or the name of its error.'''
  numbers = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
  done = libc.syscall(out['calls'][name], *numbers)
  return errno.errorcode[ctypes.get_errno()] if done == -1 else done

def refused(*names):
  '''Prints the results of calls, with arguments that would do no harm.'''
  known = [name for name in names if out['calls'][name] >= 0]
  print({call(name, 0, 0, 0, 0, 0, 0) for name in known})

def attempt(function, *arguments):
  try:
    print(function(*arguments))
  except OSError as error:
    print(type(error).__name__, error)
"""

PROGRAMS = {
  'right': Program(
    """
      answer = 42
      assert answer == 42
    """,
  ),
  'wrong': Program(
    'assert 41 == 42', outcome='failed', code=1, words='AssertionError'
  ),
  'exception': Program(
    '{}["key"]', outcome='failed', code=1, words="KeyError: 'key'"
  ),
  'no Python': Program(
    'def f(:', outcome='failed', code=1, words='SyntaxError'
  ),
  'exit 3': Program('sys.exit(3)', outcome='failed', code=3),
  'exit 0 before the tests': Program('sys.exit(0)', outcome='failed'),
  'hard exit 0': Program('os._exit(0)', outcome='failed'),
  'kills itself': Program('os.kill(os.getpid(), 9)', outcome='failed', code=-9),
  'too large to write down': Program(
    '#' * 100_000,
    words='cannot be written',
    outcome='failed',
    code=1,
    limits={'disk_bytes': 50_000},
  ),
  'no text': Program(
    '"\ud800"', outcome='failed', code=1, words='cannot be written'
  ),
  'fork bomb': Program(
    """
      while True:
        try: os.fork()
        except OSError: pass
    """,
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 1.5},
  ),
  'thread bomb': Program(
    """
      while True:
        try: threading.Thread(target=time.sleep, args=(60,)).start()
        except RuntimeError as e: print(e, flush=True); os._exit(3)
    """,
    outcome='failed',
    code=3,
    words="can't start new thread",
  ),
  'zombies': Program(
    """
      children = 0
      try:
        while children < 1000:
          if os.fork() == 0: os._exit(0)
          children += 1
      except BlockingIOError: print(children < 20)
    """,
    words='True',
  ),
  'infinite loop': Program(
    'while True: pass',
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 0.7},
  ),
  'cpu limit': Program(
    'while True: pass',
    outcome='timed out',
    code=-signal.SIGXCPU,
    limits={'cpu_seconds': 1, 'wall_seconds': 30},
  ),
  'children use the cpu': Program(
    """
      for _ in range(3): os.fork()
      while True: pass
    """,
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 1.5},
  ),
  'timers and no end': Program(
    """
      signal.signal(signal.SIGALRM, lambda *_: None)
      signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
      while True: signal.pause()
    """,
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 0.7},
  ),
  'silent and stopped': Program(
    """
      os.close(1); os.close(2); os.kill(os.getpid(), signal.SIGSTOP)
    """,
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 0.7},
  ),
  'deaf to every signal': Program(
    """
      for number in range(1, 65):
        with contextlib.suppress(OSError, ValueError):
          signal.signal(number, signal.SIG_IGN)
      while True: time.sleep(1)
    """,
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 0.7},
  ),
  '1 GB of output': Program(
    'for _ in range(1000): print("x" * 1_000_000)',
    outcome='output too long',
    code=None,
    words='xxxx',
  ),
  '1 GB of errors from children': Program(
    """
      os.fork(); os.fork()
      for _ in range(1000): print("x" * 1_000_000, file=sys.stderr)
    """,
    outcome='output too long',
    code=None,
    words='xxxx',
  ),
  'child outlives parent': Program(
    """
      if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
          os.close(1); os.close(2); time.sleep(60)
        os._exit(0)
    """,
  ),
  'child of an infinite loop': Program(
    """
      if os.fork() == 0:
        os.setsid(); os.close(1); os.close(2)
      while True: time.sleep(1)
    """,
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 0.7},
  ),
  'dumps core': Program(
    """
      assert not os.path.exists("core")
      if os.fork() == 0: ctypes.string_at(0)
      print(os.wait()[1] & 0x80, os.listdir())
    """,
    words="0 ['program.py']",
  ),
  '10 GB in a file': Program(
    """
      with open("big", "wb") as file:
        for _ in range(10_000): file.write(bytes(1_000_000))
    """,
    outcome='failed',
    code=1,
    words='OSError',
  ),
  'a hole of 10 GB': Program(
    """
      os.truncate(os.open("big", os.O_CREAT | os.O_RDWR), 10 << 30)
    """,
    outcome='failed',
    code=1,
    words='File too large',
  ),
  '10 GB in many files': Program(
    """
      for i in range(10_000):
        with open(f"{i}", "wb") as file: file.write(bytes(1_000_000))
    """,
    outcome='failed',
    code=1,
    words='No space left on device',
  ),
  'a million empty files': Program(
    """
      for i in range(1_000_000): os.close(os.open(f"{i}", os.O_CREAT))
    """,
    outcome='failed',
    code=1,
    words='No space left on device',
  ),
  'a million links': Program(
    'for i in range(1_000_000): os.symlink("x" * 3000, f"{i}")',
    outcome='failed',
    code=1,
    words='No space left on device',
  ),
  '10 GB of memory': Program(
    'memory = bytearray(10 << 30)',
    outcome='out of memory',
    code=1,
    words='MemoryError',
  ),
  'memory of many processes': Program(
    """
      for _ in range(3): os.fork()
      memory = bytearray(os.urandom(1 << 20)) * 150
      time.sleep(60)
    """,
    outcome='out of memory',
    code=None,
    limits={'memory_bytes': 256 << 20},
  ),
  'memory of a dead thread': Program(
    """
      def hold():
        memory = bytearray(os.urandom(1 << 20)) * 150
        time.sleep(60)
      for _ in range(3): os.fork()
      threading.Thread(target=hold, daemon=True).start()
      call("exit", 0)
    """,
    outcome='out of memory',
    code=None,
    limits={'memory_bytes': 256 << 20, 'processes': 40},
  ),
  '60 memfds': Program(
    """
      size = 8 << 20
      for number in range(60):
        done = call("memfd_create", b"x", 0)
        if isinstance(done, str): break
        os.write(done, bytes(size))
      print(number * size)
    """,
    words='0\n',
    limits={'memory_bytes': 256 << 20},
  ),
  'shared memory': Program(
    'print(call("shmget", 0, 1 << 30, 0o1600))', words='ENOSYS'
  ),
  'memory without an owner': Program(
    """
      import mmap
      held = 0
      with contextlib.suppress(OSError):
        for _ in range(4):
          memory = mmap.mmap(-1, 100 << 20)
          memory.write(bytes(100 << 20)); held += 100
          if os.fork() == 0: time.sleep(5)
          memory.close()
      print(held)
    """,
    words='0\n',
    limits={'memory_bytes': 256 << 20},
  ),
  'memory in sockets': Program(
    """
      for _ in range(3): os.fork()
      pairs = []
      for _ in range(50):
        for end in socket.socketpair():
          pairs.append(end); end.setblocking(False)
          with contextlib.suppress(OSError):
            while True: end.send(bytes(1 << 16))
      time.sleep(60)
    """,
    outcome='out of memory',
    code=None,
    limits={'memory_bytes': 128 << 20, 'wall_seconds': 20},
  ),
  'huge pages': Program(
    'print(call("mmap", 0, 2 << 20, 3, 0x40022, -1, 0))', words='ENOSYS'
  ),
}
