"""Opens paths on disk and in Google Cloud Storage, with the same methods.

Everything that a run writes into its workdir or reads from data.root starts at
a path that `open_path` made: a `pathlib.Path` on disk, an `epath.Path` at
gs://. Where the two differ in more than opening, callers ask `is_remote`.
"""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import IO, Any

from etils import epath

from prm_jax.runtime.errors import UserError, disk_code

Path = pathlib.Path | epath.Path
GS = 'gs://'
# What git leaves in the place of a large file until it is fetched.
LFS = b'version https://git-lfs.github.com/spec/v1'


def is_remote(path: str | os.PathLike) -> bool:
  return str(path).startswith(GS)


def open_path(path: str | os.PathLike) -> Path:
  """Returns the path of a name, in which `~` is the home folder.

  It does not access the path.

  Raises:
    UserError: gs:// without a bucket or without gcsfs, another scheme, `~` of
      nobody, or a name that is not UTF-8.
  """
  text = os.fspath(path)
  if not text.startswith('gs:') and '://' not in text:
    try:
      text.encode()
      return pathlib.Path(text).expanduser()
    except (RuntimeError, UnicodeEncodeError) as error:
      raise UserError(
        f'{text!a}: {error}; expected the path of a folder, in UTF-8'
      ) from None
  if not re.match(f'{GS}[^/]', text):
    raise UserError(
      f'{text}: expected a folder on disk or {GS}BUCKET/FOLDER; other schemes '
      'are not read here'
    )
  if importlib.util.find_spec('gcsfs') is None:
    raise UserError(f'{text}: {GS} is read with gcsfs: pip install gcsfs')
  import fsspec  # noqa: PLC0415

  # Else epath reads with TensorFlow where that happens to be installed.
  os.environ.setdefault('EPATH_USE_TF', 'false')
  # A listing that is kept would hide what the other processes write.
  fsspec.config.conf.setdefault('gs', {})['use_listings_cache'] = False
  return epath.Path(text)


def machine_folder(name: str) -> pathlib.Path:
  """Returns the local folder for files that all runs on this machine share."""
  return pathlib.Path.home() / '.cache' / 'prm_jax' / name


def check_local(path: str | os.PathLike, what: str) -> None:
  """Raises UserError for gs:// where a disk is needed."""
  if is_remote(path):
    raise UserError(
      f'{path}: {what} must be on a disk; name a folder there, and copy with '
      'gcloud storage cp -r'
    )


@contextlib.contextmanager
def as_user_errors(path: Path) -> Iterator[None]:
  """Turns errors of Cloud Storage into a UserError; errors of disks pass."""
  try:
    yield
  except Exception as error:
    if isinstance(error, UserError) or not is_remote(path):
      raise
    if not isinstance(error, _remote_faults()):
      raise
    why = 'no such bucket or object'
    if not isinstance(error, FileNotFoundError):
      why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    raise UserError(
      f'{path}: {why[:200]}; name a bucket that is there and that the account '
      'of this machine may read and write'
    ) from error


def _remote_faults() -> tuple[type[Exception], ...]:
  """Returns the exception types that gcsfs lets through from its libraries."""
  import aiohttp  # noqa: PLC0415
  import gcsfs.retry  # noqa: PLC0415
  import google.auth.exceptions  # noqa: PLC0415

  return (
    OSError,
    ValueError,
    aiohttp.ClientError,
    gcsfs.retry.HttpError,
    google.auth.exceptions.GoogleAuthError,
  )


def make_folder(path: Path) -> None:
  """Makes a folder if it is missing, and checks that it can be written.

  Raises:
    OSError: on disk.
    UserError: at gs://.
  """
  if not is_remote(path):
    path.mkdir(parents=True, exist_ok=True)
    return
  # There are no folders in a bucket, and mkdir would make a misspelt bucket.
  probe = path / '.may_write'
  with as_user_errors(path):
    probe.write_text('')
    probe.unlink(missing_ok=True)  # another run may be looking, too


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
  """Adds the path to a disk's errors while a file is written.

  Python's `write` does not name the file, and the libraries that write
  checkpoints and ArrayRecord raise their own error types.
  """
  try:
    yield
  except OSError as error:
    error.filename = error.filename or str(path)
    raise
  except UserError:
    raise
  except Exception as error:
    code = disk_code(error)
    if not code:
      raise
    raise OSError(code, os.strerror(code), str(path)) from error


def write_text(path: Path, text: str) -> None:
  """Writes a file atomically."""
  write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
  """Writes a file atomically."""
  if is_remote(path):
    with as_user_errors(path):
      path.write_bytes(data)  # appears when it is whole
    return
  part = path.with_name(path.name + '.tmp')
  with writing(path):
    try:
      with part.open('wb') as file:
        file.write(data)
        file.flush()
        # Without it the new name could reach the disk before the content.
        os.fsync(file.fileno())
      part.replace(path)
    except OSError:
      part.unlink(missing_ok=True)  # it would take the room that is missing
      raise


def write_all(file: io.FileIO, data: bytes, path: Path) -> None:
  """Appends to an unbuffered file.

  If the disk is full the rest is lost. A buffer would try to write it again
  when the file is closed, and fail again.
  """
  with writing(path):
    while data:  # a disk that fills up takes the beginning
      data = data[file.write(data) :]


def read_whole_lines(path: Path) -> bytes:
  """Returns a file up to a line that a killed process left unfinished."""
  read = path.read_bytes()
  return read[: read.rfind(b'\n') + 1]


def open_bytes(path: str | os.PathLike) -> IO[bytes]:
  """Opens a file for reading.

  Raises:
    OSError: on disk.
    UserError: at gs://, or git has not fetched the file yet.
  """
  opened = open_path(path)
  with as_user_errors(opened):
    file = opened.open('rb')
    head = file.read(len(LFS))
  if head == LFS:
    file.close()
    raise UserError(
      f'{path} is a Git LFS pointer and not the file itself; run `git lfs '
      f'pull` in {opened.parent}'
    )
  file.seek(0)
  return file


def read_text(path: str | os.PathLike) -> str:
  """Reads a UTF-8 file; raises the errors of `open_bytes`."""
  with io.TextIOWrapper(open_bytes(path), encoding='utf-8') as file:
    return file.read()


def read_json(path: Path, cure: str) -> dict[str, Any]:
  """Reads a JSON object.

  Args:
    cure: what to do if the file is broken, for the error.

  Raises:
    UserError: the file cannot be read, is empty, cut off, or not an object.
  """
  try:
    with open_bytes(path) as file:
      text = file.read()
    if not text.strip():
      raise ValueError('it is empty')
    found = json.loads(text)
  except OSError as error:
    raise UserError(f'{path} cannot be read ({error.strerror}); {cure}') from (
      None
    )
  except UserError:
    raise
  except (ValueError, RecursionError) as error:
    raise UserError(f'{path} is no JSON ({error}); {cure}') from None
  if not isinstance(found, dict):
    raise UserError(
      f'{path} holds a JSON {type(found).__name__}, expected an object; {cure}'
    )
  return found


def read_lines(path: Path) -> list[bytes]:
  """Returns the lines of a file; only a line feed ends one.

  `str.splitlines` would also end them at U+2028, U+0085 and others, which JSON
  does not escape in strings.
  """
  lines = path.read_bytes().split(b'\n')
  return lines if lines[-1] else lines[:-1]
