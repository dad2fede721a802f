"""math-verify in a process that can be killed.

`answers.py` asks it what exact arithmetic cannot decide. SymPy can take hours,
or all memory, over a short text, and no signal stops it inside a thread; so it
lives in a child that is killed at the time limit and started anew.
"""

import atexit
import json
import os
import pathlib
import select
import subprocess
import sys
import threading
import time

from prm_jax.runtime.errors import UserError

_CHILD = pathlib.Path(__file__).with_name('symbolic_worker.py')
_START_SECONDS = 120  # importing SymPy on a busy machine


class TimedOut(Exception):
  """The pair took longer than its time limit, or more memory than allowed."""


class Worker:
  """One child process; safe to use from several threads, one at a time.

  Args:
    child: the program that judges, which speaks as `symbolic_worker.py` does.
  """

  def __init__(self, child: pathlib.Path = _CHILD) -> None:
    self._child = child
    self._process = None
    self._owner = None
    self._lock = threading.Lock()
    atexit.register(self.close)

  def equal(self, answer: str, truth: str, seconds: float) -> bool:
    """Are two pieces of LaTeX the same, says math-verify.

    Args:
      seconds: wall time; a child that was not running is started first, which
        does not count.

    Raises:
      TimedOut: killed at the limit, or out of memory.
      UserError: math-verify is not installed.
    """
    with self._lock:
      # A fork's copy of the pipe belongs to the parent's child.
      if self._process is None or self._owner != os.getpid():
        self._start()
      question = json.dumps([answer, truth, seconds]) + '\n'
      reply = None
      try:
        self._process.stdin.write(question.encode())
        self._process.stdin.flush()
        reply = self._reply(seconds)
      except BrokenPipeError:
        pass
      if reply is None or reply['equal'] is None:
        self._kill()
        raise TimedOut(f'{seconds:g} s were not enough')
      return reply['equal']

  def close(self) -> None:
    """Ends the child."""
    if self._process is not None and self._owner == os.getpid():
      self._kill()

  def _start(self) -> None:
    # -P: the folder of the file holds modules of this package.
    self._process = subprocess.Popen(
      [sys.executable, '-P', str(self._child)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
    )
    self._owner = os.getpid()
    reply = self._reply(_START_SECONDS)
    if reply is None or 'missing' in reply:
      self._kill()
      why = reply['missing'] if reply else f'no sign in {_START_SECONDS} s'
      raise UserError(
        f"math-verify does not start ({why}): pip install 'prm_jax[verify]'"
      )

  def _reply(self, seconds: float) -> dict | None:
    """The next line of the child, or None: too late, or it has died."""
    deadline = time.monotonic() + seconds
    pipe, line = self._process.stdout.fileno(), b''
    while not line.endswith(b'\n'):
      left = deadline - time.monotonic()
      if left <= 0 or not select.select([pipe], [], [], left)[0]:
        return None
      piece = os.read(pipe, 4096)
      if not piece:
        return None
      line += piece
    return json.loads(line)

  def _kill(self) -> None:
    self._process.kill()
    self._process.wait()
    self._process.stdin.close()
    self._process.stdout.close()
    self._process = None


WORKER = Worker()
