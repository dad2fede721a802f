"""Hostile programs that use up descriptors or time, or want to remain."""

from tests.data.verify.hostile_programs import Program

REMAINS = {
  'opens all it can': Program(
    """
      held = []
      try:
        while True: held.append(open(os.devnull))
      except OSError as error: name = errno.errorcode[error.errno]
      print(name, len(held) < 128)
    """,
    words='EMFILE True',
  ),
  'pipes without end': Program(
    """
      held = []
      try:
        while True: held.append(os.pipe())
      except OSError as error: print(errno.errorcode[error.errno])
    """,
    words='EMFILE',
  ),
  'descriptors in flight': Program(
    """
      held = []
      with contextlib.suppress(OSError):
        while True:
          one, other = socket.socketpair()
          held.append(one)
          fds = [one.fileno(), other.fileno()]
          attempt(socket.send_fds, one, [b"x"], fds)
          other.close()
    """,
    words='Function not implemented',
  ),
  'deleted files that are held open': Program(
    """
      held = []
      while True:
        held.append(open("big", "wb", buffering=0)); os.unlink("big")
        held[-1].write(bytes(1 << 20))
    """,
    outcome='failed',
    code=1,
    words='No space left on device',
  ),
  'folders in folders': Program(
    """
      for _ in range(1000): os.mkdir("x"); os.chdir("x")
    """,
    outcome='failed',
    code=1,
    words='No space left on device',
  ),
  'daemons that start daemons': Program(
    """
      if os.fork() == 0:
        os.setsid(); os.close(1); os.close(2)
        while True:
          if os.fork(): os._exit(0)
          os.setsid()
    """,
  ),
  'children deaf to every signal': Program(
    """
      for _ in range(4):
        if os.fork() == 0:
          os.setsid()
          for number in range(1, 65):
            with contextlib.suppress(OSError, ValueError):
              signal.signal(number, signal.SIG_IGN)
          os.close(1); os.close(2)
          while True: time.sleep(1)
    """,
  ),
  'stopped children': Program(
    """
      for _ in range(4):
        if os.fork() == 0:
          os.close(1); os.close(2); os.kill(os.getpid(), signal.SIGSTOP)
      time.sleep(0.2)
    """,
  ),
  'stops the first process': Program(
    """
      with contextlib.suppress(PermissionError): os.kill(1, signal.SIGSTOP)
      sys.exit(3)
    """,
    outcome='failed',
    code=3,
  ),
  'stops its whole group': Program(
    'os.killpg(0, signal.SIGSTOP)',
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 0.7},
  ),
  'sleeps for ever': Program(
    'time.sleep(1e9)',
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 0.7},
  ),
  'waits for a lock that it holds': Program(
    'lock = threading.Lock(); lock.acquire(); lock.acquire()',
    outcome='timed out',
    code=None,
    limits={'wall_seconds': 0.7},
  ),
  'output drop by drop': Program(
    """
      while True: print("x", flush=True); time.sleep(0.05)
    """,
    outcome='timed out',
    code=None,
    words='x',
    limits={'wall_seconds': 0.7},
  ),
  'kernel settings': Program(
    """
      for name in ("/proc/sys/kernel/panic", "/proc/self/oom_score_adj",
                   "/proc/self/uid_map", "/sys/kernel/mm/ksm/run",
                   "/sys/fs/cgroup/memory.max", "/proc/self/attr/current"):
        attempt(open, name, "w")
    """,
    words='FileNotFoundError',
  ),
}
