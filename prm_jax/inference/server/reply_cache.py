"""Keeps a server's answers on disk, so that none is paid for twice.

    Call -> ReplyCache -> the Answer that an earlier run was given, or None

`remote.py` sends only the calls that have no answer here, and stores an answer
before it hands it on.
"""

import contextlib
import json
import os
import pathlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import diskcache

from prm_jax.inference.server.replies import Answer, Call, believed
from prm_jax.runtime.errors import UserError

# Of the database. Nothing is ever evicted; rows hold their text themselves.
# Processes on several hosts may share the folder over a network file system,
# where SQLite's write-ahead log and its memory map do not work.
_SETTINGS = {
  'eviction_policy': 'none',
  'cull_limit': 0,
  'disk_min_file_size': 2**30,
  'sqlite_journal_mode': 'delete',
  'sqlite_mmap_size': 0,
}


class _TextOnly(diskcache.Disk):
  """Returns only text: a row that someone else wrote could be a pickle."""

  def fetch(
    self, mode: int, filename: str | None, value: Any, read: bool
  ) -> str:
    return value if isinstance(value, str) else ''

  def remove(self, file_path: str) -> None:
    """Removes nothing: our rows have no files, another's could name any."""


class ReplyCache:
  """Answers on disk, in a folder that several processes may share.

  Earlier versions kept a JSON file for each call there; these are still read.

  Attributes:
    corrupt: entries met that could not be read.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    """Opens the folder, and makes it where there is none.

    Raises:
      UserError: it cannot be made, or its database cannot be opened for
        writing, which it has to be even where every answer is there.
    """
    if os.path.expandvars(folder) != str(folder):  # as diskcache would
      raise UserError(
        f'{folder}: the name holds a variable; name a folder without one'
      )
    self._folder = folder
    self.corrupt = 0
    with self._errors_named():
      folder.mkdir(parents=True, exist_ok=True)
      try:
        self._answers = diskcache.Cache(
          str(folder), disk=_TextOnly, **_SETTINGS
        )
      except (TypeError, ValueError) as error:  # settings of another program
        raise sqlite3.DatabaseError(f'cache.db is not ours ({error})') from None

  @contextlib.contextmanager
  def _errors_named(self) -> Iterator[None]:
    try:
      yield
    except (OSError, sqlite3.Error, diskcache.Timeout) as error:
      why = getattr(error, 'strerror', None) or str(error) or 'it stays locked'
      raise UserError(
        f'{self._folder}: replies cannot be kept here: {why}; see to the disk '
        'or choose another policy.cache; if cache.db is broken, move it away, '
        'and its calls are sent again'
      ) from error

  def read(self, call: Call) -> Answer | None:
    """Returns the stored answer to the call, or None."""
    digest = call.digest()
    with self._errors_named():
      text = self._answers.get(digest)
    if text is None:
      try:
        text = (self._folder / digest[:2] / f'{digest}.json').read_bytes()
      except FileNotFoundError:
        return None
    try:
      entry = json.loads(text)
    except (ValueError, RecursionError):
      entry = None
    match entry:
      case {
        'call': dict(asked),
        'answer': {
          'text': str(content),
          'finish': str(finish),
          'tokens': int(tokens),
          'prompt_tokens': int(prompt_tokens),
          **more,
        },
      } if asked == call._asdict():
        likely = more.get('likely', {})
        return Answer(
          content,
          finish,
          tokens,
          prompt_tokens,
          believed(likely) if isinstance(likely, dict) else {},
        )
    self.corrupt += 1
    return None

  def write(self, call: Call, answer: Answer) -> None:
    """Stores an answer; it outlives the process from here on."""
    stored = answer._asdict() | {'likely': dict(answer.likely)}
    entry = {'call': call._asdict(), 'answer': stored}
    with self._errors_named():
      try:
        self._answers.set(call.digest(), json.dumps(entry))
      except BaseException:
        self._answers.close()  # a transaction left open would keep its lock
        raise
