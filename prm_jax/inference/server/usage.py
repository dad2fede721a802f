"""Counts calls to a server and their tokens, in memory and on disk.

    remote.py -> UsageLog, a line for each call -> read -> the job's ledger

The log is written call by call, so that the ledger knows what was paid even if
processes were killed. It includes attempts that failed and answers that no item
used.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass
class Usage:
  """Counts calls to a server.

  Attributes:
    calls: requests sent, including those that failed.
    cached: answers that cost nothing: from disk, or shared by equal calls.
    corrupt: entries on disk that could not be read and were asked for again.
    tokens: tokens written, in the answers fetched.
    prompt_tokens: tokens read, in the answers fetched.
    uncounted: answers fetched that did not tell their tokens.
    retried: attempts that failed and were followed by another, by reason.
    failed: calls given up, by reason.
    said: the server's message at the first refusal, by reason.
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
    """Returns the sum with `more`, which may have only some of the fields."""
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
  """Counts the usage of a process, and logs each call to a file.

  Attributes:
    total: usage of this process.
  """

  def __init__(self, path: pathlib.Path | None = None) -> None:
    """Counts in memory, and in a file if one is given."""
    self.total = Usage()
    self._path, self._continued = path, False

  def add(self, usage: Usage) -> None:
    """Counts a call, or answers found on disk."""
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
      if not self._continued:
        _continue(self._path)
        self._continued = True
      with self._path.open('ab') as file:
        file.write(f'{json.dumps(counted)}\n'.encode())


def _continue(path: pathlib.Path) -> None:
  """Makes a file if there is none, and cuts off half a line at its end."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.touch()
  with path.open('r+b') as file:
    file.truncate(len(paths.read_whole_lines(path)))


def read(folder: pathlib.Path) -> Usage:
  """Returns the sum of what all processes of a job logged in a folder.

  Raises:
    UserError: a file is damaged.
  """
  total = Usage()
  for path in sorted(folder.glob('*.jsonl')):
    for number, line in enumerate(paths.read_whole_lines(path).splitlines(), 1):
      try:
        total = total.plus(json.loads(line))
      except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
          f'{path}:{number}: is not a line of this log of calls to a server; '
          'delete the line, and its call is not counted'
        ) from None
  return total
