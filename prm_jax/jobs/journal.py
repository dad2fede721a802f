"""Keeps a job's finished items, one per line, so that it can be killed.

    driver -> Journal.write -> journal/process-N.jsonl -> read -> the results

Every process of a job appends to its own file and reads the files of all, so a
job can be resumed with another number of processes.

    {"job": {"input": "03...", "policy": "..."}}
    {"index": 7, "chains": [...], "failed": "", "cost": [91, 12, 8, 0, 0.02, 0]}

An item that failed, or was in flight when a model gave up ("interrupted":
true), may be tried again. Then its last line counts, but all costs do.
"""

import fcntl
import json
import os
import pathlib
import time
from collections.abc import Iterable, Iterator, Mapping

from prm_jax.data import chains as chains_lib
from prm_jax.inference.driver import Cost, Ended
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

# A line survives its process when it is written, and its machine when it is
# synced.
SYNC_SECONDS = 1.0


class Journal:
  """Appends to the file of one process; use it as a context manager."""

  def __init__(self, path: pathlib.Path, job: Mapping[str, str]) -> None:
    """Opens or begins the file, and cuts off a line left unfinished by a kill.

    Args:
      job: what must be the same when a job resumes, such as its policy.

    Raises:
      UserError: the file is another job's, damaged, or open in another process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    self._path = path
    self._file = path.open('a+b', buffering=0)
    try:
      # The lock is held until the process ends, in whatever way.
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(
        f'{path} is being written by another process; let it end, or give each '
        'process of one job its own --process'
      ) from None
    with paths.writing(path):
      self._file.truncate(len(paths.read_whole_lines(path)))
    if _lines(path, job) is None:
      self._append({'job': dict(job)})
    self._synced = time.monotonic()

  def write(self, ended: Ended) -> None:
    """Appends a line for a finished item."""
    self._append(
      {
        'index': ended.index,
        'chains': [chains_lib.to_dict(chain) for chain in ended.chains],
        'failed': ended.failed,
        'cost': ended.cost,
        **({'interrupted': True} if ended.interrupted else {}),
      }
    )
    if time.monotonic() - self._synced > SYNC_SECONDS:
      self._sync()
      self._synced = time.monotonic()

  def _append(self, record: Mapping) -> None:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    paths.write_all(self._file, f'{text}\n'.encode(), self._path)

  def _sync(self) -> None:
    with paths.writing(self._path):
      os.fsync(self._file.fileno())

  def __enter__(self) -> 'Journal':
    return self

  def __exit__(self, *_: object) -> None:
    try:
      self._sync()
    finally:
      self._file.close()


def _lines(path: pathlib.Path, job: Mapping[str, str]) -> list[Ended] | None:
  """Reads the items of a file; None if it lacks even a first line.

  Raises:
    UserError: the file is another job's, or damaged.
  """
  items: list[Ended] | None = None
  for i, line in enumerate(paths.read_whole_lines(path).split(b'\n')[:-1], 1):
    try:
      record = json.loads(line)
      if items is None:
        there = dict(record['job'])
      else:
        items.append(_item(record))
    except (ValueError, LookupError, TypeError, RecursionError):
      raise UserError(
        f'{path}:{i}: is not a line of a journal; delete the line to do its '
        'item again, or the file to do all of its items again'
      ) from None
    if items is None:
      _check_job(path, job, there)
      items = []
  return items


def _item(record: Mapping) -> Ended:
  """Builds an item; raises TypeError, LookupError or ValueError."""
  ended = Ended(
    record['index'],
    tuple(map(chains_lib.from_dict, record['chains'])),
    record['failed'],
    Cost(*record['cost']),
    record.get('interrupted', False),
  )
  whole = type(ended.index) is int and type(ended.interrupted) is bool
  numbers = all(type(value) in (int, float) for value in ended.cost)
  if not whole or not numbers or not isinstance(ended.failed, str):
    raise TypeError
  return ended


def _check_job(
  path: pathlib.Path, job: Mapping[str, str], there: Mapping[str, str]
) -> None:
  different = [
    name for name in {**job, **there} if job.get(name) != there.get(name)
  ]
  if different:
    name = different[0]
    why = f'its {name} is {there.get(name)}, not {job.get(name)}'
    raise UserError(
      f'{path} is of another job: {" ".join(why.split())}; bring that back, or '
      'choose another --workdir'
    )


def read(folder: pathlib.Path, job: Mapping[str, str]) -> Iterator[Ended]:
  """Reads every line of every process, file after file.

  Raises:
    UserError: a file is another job's, or damaged.
  """
  for path in sorted(folder.glob('*.jsonl')):
    yield from _lines(path, job) or ()


def latest(all_ended: Iterable[Ended]) -> dict[int, Ended]:
  """Returns the result of each item, in the order of the items.

  An attempt that may be tried again gives way to any other, and a failure to a
  success. Beyond that the order of the lines says nothing about final results,
  because each process writes a file of its own.
  """
  found: dict[int, Ended] = {}
  for ended in all_ended:
    before = found.get(ended.index)
    succeeded = not ended.failed and not ended.interrupted
    if before is None or before.open or (before.failed and succeeded):
      found[ended.index] = ended
  return dict(sorted(found.items()))
