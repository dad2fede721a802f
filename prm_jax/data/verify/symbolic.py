"""Runs math-verify in a child process that can be killed.

`answers.py` asks it about pairs that exact arithmetic cannot decide. SymPy can
take hours, or all memory, for a short text, and a thread cannot interrupt it.
It therefore runs in a child process, which is killed at the time limit and
started again for the next pair.
"""

import atexit
import contextlib
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
  """Says that a pair exceeded its time limit or its memory limit."""


class Worker:
  """Runs one child process; threads may share it and take turns.

  Args:
    child: a Python file with the protocol of `symbolic_worker.py`.
  """

  def __init__(self, child: pathlib.Path = _CHILD) -> None:
    self._child = child
    self._process = None
    self._owner = None
    self._lock = threading.Lock()
    atexit.register(self.close)

  def equal(self, answer: str, truth: str, seconds: float) -> bool:
    """Returns whether math-verify finds two LaTeX texts equal.

    Args:
      answer: LaTeX, without dollar signs.
      seconds: wall time for the pair, not counting the start of the child.

    Raises:
      TimedOut: the child reached the time limit or its memory limit.
      UserError: math-verify is not installed.
    """
    with self._lock:
      try:
        # After a fork, the pipe that we inherited leads to our parent's child.
        if self._process is None or self._owner != os.getpid():
          self._start()
        reply = self._ask([answer, truth, seconds])
        if reply is None or reply['equal'] is None:
          raise TimedOut(f'{seconds:g} s were not enough')
        return reply['equal']
      except BaseException:
        # The next pair would get the reply that this one did not wait for.
        self.close()
        raise

  def close(self) -> None:
    """Ends the child process; the next call of `equal` starts another."""
    if self._process is not None and self._owner == os.getpid():
      self._kill()

  def _start(self) -> None:
    # Until the child runs there is none to kill; a parent's child is not ours.
    self._process, self._owner = None, os.getpid()
    # -P keeps the file's folder, with this package's modules, off sys.path.
    self._process = subprocess.Popen(
      [sys.executable, '-P', str(self._child)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
    )
    reply = self._reply(_START_SECONDS)
    if reply is None or 'missing' in reply:
      why = reply['missing'] if reply else f'no reply in {_START_SECONDS} s'
      raise UserError(
        f"math-verify does not start ({why}): pip install 'prm_jax[verify]'"
      )

  def _ask(self, pair: list[str | float]) -> dict | None:
    """Returns the reply to [answer, truth, seconds]; None as `_reply` does."""
    try:
      self._process.stdin.write((json.dumps(pair) + '\n').encode())
      self._process.stdin.flush()
    except BrokenPipeError:
      return None
    return self._reply(pair[-1])

  def _reply(self, seconds: float) -> dict | None:
    """Returns the child's next line; None after `seconds` or if it has died."""
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
    # Closing writes what is still buffered, where a write was interrupted.
    with contextlib.suppress(BrokenPipeError):
      self._process.stdin.close()
    self._process.stdout.close()
    self._process = None


WORKER = Worker()
