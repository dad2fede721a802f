"""What was asked of a server and what came of it, on disk as it happens.

`remote.py` writes it down call by call, so that a ledger says what was paid
whatever became of the processes that paid: answers on disk are not paid twice,
attempts that failed and answers that no item got to use are not forgotten.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass
class Usage:
  """Calls to a server.

  Attributes:
    calls: requests sent, those that failed included.
    cached: answers for nothing: those on disk, and those of equal calls.
    corrupt: entries on disk that could not be read and were asked for again.
    tokens: written, in the answers fetched.
    prompt_tokens: read, likewise.
    uncounted: answers fetched that came without a count of their tokens.
    retried: attempts that failed and were followed by another, by reason.
    failed: calls given up, by reason.
    said: the server's words for the first that it refused, by reason.
  """

  calls: int = 0
  cached: int = 0
  corrupt: int = 0
  tokens: int = 0
  prompt_tokens: int = 0
  uncounted: int = 0
  retried: dict[str, int] = dataclasses.field(default_factory=dict)
  failed: dict[str, int] = dataclasses.field(default_factory=dict)
  said: dict[str, str] = dataclasses.field(default_factory=dict)

  def plus(self, more: Mapping[str, Any]) -> 'Usage':
    """The sum with some of the same fields."""
    total = dataclasses.asdict(self)
    for name, value in more.items():
      if name == 'said':
        total[name] = {**value, **total[name]}
      elif isinstance(value, Mapping):
        counts = collections.Counter(total[name])
        counts.update(value)
        total[name] = dict(counts)
      else:
        total[name] += value
    return Usage(**total)


class UsageLog:
  """A process's usage so far, and a line for each call on disk.

  Attributes:
    total: of this process.
  """

  def __init__(self, path: pathlib.Path | None = None) -> None:
    """Goes on with the file, if one is named; half a line at its end is cut."""
    self.total = Usage()
    self._path = path
    if path is not None:
      path.parent.mkdir(parents=True, exist_ok=True)
      path.touch()
      with path.open('r+b') as file:
        file.truncate(len(_whole_lines(path)))

  def add(self, usage: Usage) -> None:
    """Counts a call, or what was found on disk."""
    empty = dataclasses.asdict(Usage())
    counted = {
      name: value
      for name, value in dataclasses.asdict(usage).items()
      if value != empty[name]
    }
    if not counted:
      return
    self.total = self.total.plus(counted)
    if self._path is not None:
      with self._path.open('ab') as file:
        file.write(f'{json.dumps(counted)}\n'.encode())


def _whole_lines(path: pathlib.Path) -> bytes:
  """What stands before the line that a killed process was writing."""
  read = path.read_bytes()
  return read[: read.rfind(b'\n') + 1]


def read(folder: pathlib.Path) -> Usage:
  """The sum of all that the processes of a job have written to a folder."""
  total = Usage()
  for path in sorted(folder.glob('*.jsonl')):
    for line in _whole_lines(path).splitlines():
      total = total.plus(json.loads(line))
  return total
