"""Starts jobs over many items and interrupts them in the middle."""

import pathlib
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping

from tests.shared import command_line
from tests.shared.command_line import workdir_flag


def fill_in(
  arguments: Iterable[str], values: Mapping[str, object]
) -> list[str]:
  """Puts values for the names in braces of a command line."""
  return [argument.format(**values) for argument in arguments]


def count_journal_lines(workdir: pathlib.Path) -> int:
  """Counts the whole lines of all journals, headers included."""
  paths = (workdir / 'journal').glob('*.jsonl')
  return sum(path.read_bytes().count(b'\n') for path in paths)


def interrupt(
  arguments: list[str], workdir: pathlib.Path, lines: int, how: signal.Signals
) -> subprocess.CompletedProcess:
  """Starts a job and signals it when its journals have `lines` lines."""
  process = command_line.start(*arguments, workdir_flag(workdir))
  end = time.monotonic() + 120
  while count_journal_lines(workdir) < lines and process.poll() is None:
    assert time.monotonic() < end
    time.sleep(0.005)
  process.send_signal(how)
  out, err = process.communicate(timeout=60)
  return subprocess.CompletedProcess(arguments, process.returncode, out, err)
