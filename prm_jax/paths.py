"""Paths on disk and in Google Cloud Storage, with the same methods.

Everything that a run writes into its workdir or reads from data.root starts at
a path that `open_path` made: a `pathlib.Path` on disk, an `epath.Path` at
gs://. What differs between the two is in this file.
"""

import contextlib
import importlib.util
import os
import pathlib
import re
from collections.abc import Iterator
from typing import IO

from etils import epath

from prm_jax.errors import UserError

Path = pathlib.Path | epath.Path
GS = 'gs://'


def is_remote(path: str | os.PathLike) -> bool:
  return str(path).startswith(GS)


def open_path(path: str | os.PathLike) -> Path:
  """The path of that name; nothing is looked at.

  Raises:
    UserError: gs:// without a bucket or without gcsfs, or another scheme.
  """
  text = os.fspath(path)
  if not text.startswith('gs:') and '://' not in text:
    return pathlib.Path(text)
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
  """Where this machine keeps for all runs what must be on a disk."""
  return pathlib.Path.home() / '.cache' / 'prm_jax' / name


def check_local(path: str | os.PathLike, what: str) -> None:
  """Raises UserError for gs:// where only a disk will do."""
  if is_remote(path):
    raise UserError(
      f'{path}: {what} must be on a disk; name a folder there, and copy with '
      'gcloud storage cp -r'
    )


@contextlib.contextmanager
def told_in_a_line(path: Path) -> Iterator[None]:
  """What Cloud Storage answers to a request as a UserError; disks' stay."""
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
  """Everything that gcsfs lets through from below it."""
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
  """Makes a folder where there is none; finds that one may write there.

  Raises:
    OSError: on disk.
    UserError: at gs://.
  """
  if not is_remote(path):
    path.mkdir(parents=True, exist_ok=True)
    return
  # There are no folders in a bucket, and mkdir would make a misspelt bucket.
  probe = path / '.may_write'
  with told_in_a_line(path):
    probe.write_text('')
    probe.unlink(missing_ok=True)  # another run may be looking, too


def write_text(path: Path, text: str) -> None:
  """Writes a file, all or nothing."""
  if is_remote(path):
    with told_in_a_line(path):
      path.write_text(text, encoding='utf-8')  # appears when it is whole
    return
  part = path.with_name(path.name + '.tmp')
  part.write_text(text, encoding='utf-8')
  part.replace(path)


def open_bytes(path: str | os.PathLike) -> IO[bytes]:
  """A file for reading."""
  opened = open_path(path)
  with told_in_a_line(opened):
    return opened.open('rb')
