"""Defines errors that reach a user as a single line.

UserError is raised at the borders (config, files, records, checkpoints)
wherever a person can cause and correct the fault. Command lines print it
without a traceback and exit with code 2, and do the same with errors of the
disk, such as no space left. Any other error is a bug and keeps its traceback.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Errors of the whole disk; other error numbers concern a single file.
DISK = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


class UserError(ValueError):
  """Reports a fault that the user can correct, and how, in one line."""


def show(value: Any) -> str:
  """Returns a short text of one line for a value, for error messages."""
  if isinstance(value, list | dict):
    kind = 'a list' if isinstance(value, list) else 'an object'
    return f'{kind} of {len(value)}'
  text = repr(value)
  return text if len(text) <= 60 else f'{text[:57]}...'


def user_message(error: BaseException) -> str:
  """Returns the line for a fault that a user can correct; '' for a bug.

  An OSError counts if it names a file or its number is one of DISK. Errors of
  connections and processes have neither.
  """
  if isinstance(error, UserError):
    return str(error)
  if not isinstance(error, OSError):
    return ''
  name = error.filename2 or error.filename  # a rename has two
  if not name and error.errno not in DISK:
    return ''
  cure = 'check that it exists, and that you may read and write it'
  if error.errno == errno.EIO:
    cure = 'see to the disk, and run the same command again'
  if error.errno in FULL:
    cure = 'make room there, and run the same command again'
  return f'{name or "a file of this job"}: {error.strerror or error}; {cure}'


@contextlib.contextmanager
def exit_on_user_error() -> Iterator[None]:
  """Prints a fault that the user can correct as one line, and exits with 2."""
  try:
    yield
  except (UserError, OSError) as error:
    if not (line := user_message(error)):
      raise
    print(f'error: {line}', file=sys.stderr)
    sys.exit(2)


def disk_code(error: BaseException) -> int:
  """Returns the number of the disk error behind an error; 0 if there is none.

  Libraries in C++ raise their own errors with the text of the system's.
  """
  below: BaseException | None = error
  while below is not None:
    for code in DISK:
      if getattr(below, 'errno', 0) == code or os.strerror(code) in str(below):
        return code
    below = below.__cause__ or below.__context__
  return 0
