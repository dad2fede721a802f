"""Runs jobs on disks that fail; each ends in one line, and goes on later.

    python -m tests.campaigns.disks --minutes 2

A library that is loaded before all others (`faulty_disk.c`, which needs a C
compiler) makes calls that write below the workdir fail: one of them, or all
after some, as on a disk that is full, broken or read-only; or writes take a
half of their bytes, which is no fault. A job ends as if nothing had been, or
with one line that names a file and what the system said. Then the same command
on a whole disk ends with the bits of an undisturbed run.
"""

import errno
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

from tests.campaigns.campaign import Campaign, run
from tests.campaigns.jobs import (
  JOBS,
  PATIENCE,
  Kind,
  World,
  compare,
  leftovers,
  nothing_left,
  references,
  world,
)
from tests.shared.command_line import PROGRESS
from tests.shared.forked_jobs import Forks

SOURCE = pathlib.Path(__file__).parents[1] / 'shared' / 'faulty_disk.c'
SHORT = 0  # in place of an error number
CODES = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT, SHORT)
MOST_CALLS = 300  # that work before the first fault


@functools.cache
def faulty_world() -> World:
  """Returns a world whose jobs have disks that can fail."""
  library = pathlib.Path(tempfile.mkdtemp()) / 'faulty_disk.so'
  subprocess.run(
    ['cc', '-shared', '-fPIC', '-O1', '-o', library, SOURCE, '-ldl'], check=True
  )
  return world()._replace(forks=Forks({'LD_PRELOAD': str(library)}))


def check_line(text: str, code: int, workdir: pathlib.Path) -> None:
  """Checks that a job said in one line what the disk did, and where."""
  assert 'Traceback' not in text, text
  lines = [line for line in text.splitlines() if not PROGRESS.search(line)]
  [error] = lines
  # SQLite, which keeps replies, has words of its own for each.
  known = (os.strerror(code), 'disk is full', 'disk I/O', 'unable to open')
  assert any(words in error for words in known), text
  assert re.search(rf'{workdir}\S*: ', error), text


def case(rng: np.random.Generator) -> int:
  """Runs one job on a disk that fails, then on a whole one."""
  own, folder = faulty_world(), references()
  name = str(rng.choice([*JOBS]))
  code, many = int(rng.choice(CODES)), bool(rng.integers(2))
  after = int(MOST_CALLS ** rng.uniform(0, 1)) - 1
  kind = Kind(name, 'disk')
  with tempfile.TemporaryDirectory() as tmp:
    workdir = pathlib.Path(tmp) / 'disk' / 'run'
    log = pathlib.Path(tmp) / 'log'
    env = {
      'FAULTY_FOLDER': f'{tmp}/disk',
      'FAULTY_AFTER': str(after),
      'FAULTY_COUNT': '-1' if many else '1',
      'FAULTY_CODE': str(code),
    }
    [job] = jobs = own.start(kind, folder, str(workdir), log, **env)
    with nothing_left(own, jobs):
      ended = own.forks.wait(job, PATIENCE)
    what = (name, env, ended, job.out, job.err)
    assert ended == 0 or (code != SHORT and ended == 2), what
    if ended:
      check_line(job.err, code, workdir)
    else:
      compare(name, workdir, folder / name)
    own.finish(own.start(kind, folder, str(workdir), log))
    compare(name, workdir, folder / name)
    assert not leftovers(workdir), what
  return 1


CAMPAIGN = Campaign(
  'disks', 'jobs on disks that fail', 100, case, repeats=False
)

if __name__ == '__main__':
  if not shutil.which('cc'):
    print('disks: there is no C compiler here, so nothing is tried')
    sys.exit()
  run(CAMPAIGN)
