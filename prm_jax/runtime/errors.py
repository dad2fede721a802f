"""The one exception that reaches a user as a single line, and what disks say.

Raised at the borders (config, files, records, checkpoints) wherever a person
can cause and cure the fault. The command lines print it without a traceback and
exit with code 2, and so they do what a disk answers: that it is full, say.
Everything else is a bug and keeps its traceback.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What a disk answers whatever one writes; others are about one file.
DISK = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


class UserError(ValueError):
  """Names the thing that is wrong and what to do about it, in one line."""


def told(error: BaseException) -> str:
  """The line for a fault that a user can cure; '' for a bug.

  An OSError without a file is a disk's where its number says so: those of
  connections and processes have neither.
  """
  if isinstance(error, UserError):
    return str(error)
  if not isinstance(error, OSError):
    return ''
  name = error.filename2 or error.filename  # a rename has two
  if not name and error.errno not in DISK:
    return ''
  cure = 'see that it is there, and that you may read and write it'
  if error.errno in FULL:
    cure = 'make room there, and give the same command again'
  return f'{name or "a file of this job"}: {error.strerror or error}; {cure}'


@contextlib.contextmanager
def exits_with_a_line() -> Iterator[None]:
  """Ends the process with code 2 and one line for a fault that is a user's."""
  try:
    yield
  except (UserError, OSError) as error:
    if not (line := told(error)):
      raise
    print(f'error: {line}', file=sys.stderr)
    sys.exit(2)


def disk_code(error: BaseException) -> int:
  """The number of what a disk answered, below any error; 0 where none did.

  The libraries in C++ raise errors of their own with the system's words.
  """
  below: BaseException | None = error
  while below is not None:
    for code in DISK:
      if getattr(below, 'errno', 0) == code or os.strerror(code) in str(below):
        return code
    below = below.__cause__ or below.__context__
  return 0
