"""Kills jobs at random instants; every one ends as if nothing had been.

    python -m tests.campaigns.kills --minutes 2

A case takes one of the jobs, on this disk, in Cloud Storage (a server on
loopback) or as two processes, starts it, and interrupts it at a random instant,
by SIGKILL, by SIGTERM, or by SIGSTOP and SIGCONT before either; then the same
command goes on, until it is done. Its outputs are then those of a run that was
never interrupted: parameters, optimizer state, position of the input, chains,
labels, trees and results, bit for bit. A job that asks a server has paid for
what was under way when it was killed, and for nothing else twice. A case counts
the interruptions.
"""

import contextlib
import json
import pathlib
import signal
import tempfile
import time

import numpy as np

from prm_jax.runtime import paths
from tests.campaigns.campaign import Campaign, run
from tests.campaigns.jobs import (
  JUDGED,
  PLACES,
  Kind,
  World,
  compare,
  leftovers,
  nothing_left,
  references,
  world,
)
from tests.shared import cloud_storage
from tests.shared.forked_jobs import Job

MOST = 8  # interruptions of a case; then the job may end
HOW = ('kill', 'terminate', 'pause')


def interrupt(
  own: World, jobs: list[Job], after: float, rng: np.random.Generator
) -> bool:
  """Interrupts one process of a job after some seconds.

  Returns:
    Whether it was interrupted; else it had ended by itself.
  """
  victim = jobs[rng.integers(len(jobs))]
  how = str(rng.choice(HOW))
  with nothing_left(own, jobs):
    code = own.forks.wait(victim, after)
    if code is not None:
      assert code == 0, (code, victim.out, victim.err)
      for job in jobs:
        assert job is victim or own.forks.wait(job, 60) == 0, job.err
      return False
    if how == 'pause':
      victim.signal(signal.SIGSTOP)
      time.sleep(rng.uniform(0, 2))
      victim.signal(signal.SIGCONT)
      time.sleep(rng.uniform(0, 1))
    sent = signal.SIGTERM if how == 'terminate' else signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
      victim.signal(sent)
    code = own.forks.wait(victim, 60)
    assert 'Traceback' not in victim.err, victim.err
    assert code in (0, -sent), victim.err
    # The machine on which the others run may be taken away a little later.
    for job in jobs:
      if job is not victim:
        own.forks.wait(job, rng.uniform(0, 3))
    # It may have ended just before, or stops in good order.
    out = ''.join(job.out for job in jobs)
    return bool(code) or 'the same command resumes' in out


def case(rng: np.random.Generator) -> int:
  """Runs one job to its end, through interruptions; returns how many."""
  own, folder = world(), references()
  place = str(rng.choice([*PLACES], p=(0.6, 0.2, 0.2)))
  kind = Kind(str(rng.choice(PLACES[place])), place)
  seconds = float((folder / f'{kind.reference}.seconds').read_text())
  with tempfile.TemporaryDirectory() as tmp:
    here = pathlib.Path(tmp) / 'run'
    workdir = str(here)
    if place == 'cloud':
      workdir = f'{cloud_storage.BUCKET}/{pathlib.Path(tmp).name}'
    asked, count = len(own.server.asked), 0
    for _ in range(MOST):
      jobs = own.start(kind, folder, workdir, pathlib.Path(tmp) / 'log')
      if not interrupt(own, jobs, rng.uniform(0, seconds), rng):
        break
      count += 1
    own.finish(own.start(kind, folder, workdir, pathlib.Path(tmp) / 'log'))
    if place == 'cloud':
      take_from_cloud(workdir, here)
    compare(kind.job, here, folder / kind.reference)
    assert not leftovers(here), leftovers(here)
    if kind.job == 'judge':
      check_paid(here, len(own.server.asked) - asked, count)
  return count or 1


def take_from_cloud(workdir: str, here: pathlib.Path) -> None:
  """Copies a workdir from Cloud Storage, and deletes it there."""
  there = paths.open_path(workdir)
  copy(there, here)
  there.rmtree()


def copy(there: paths.Path, here: pathlib.Path) -> None:
  """Copies a folder with all that is in it."""
  here.mkdir()
  for path in there.iterdir():
    if path.is_dir():
      copy(path, here / path.name)
    else:
      (here / path.name).write_bytes(path.read_bytes())


def check_paid(workdir: pathlib.Path, asked: int, interrupted: int) -> None:
  """Checks that every answer is there, and none was asked for twice.

  Args:
    asked: requests that reached the server.
    interrupted: how often the job was; each time some were under way.
  """
  ledger = json.loads((workdir / 'ledger.json').read_text())
  under_way = 16 * interrupted  # endpoint.concurrency
  assert JUDGED <= asked <= JUDGED + under_way, asked
  # What was counted when it was asked, and was under way when all ended.
  assert JUDGED <= ledger['server']['calls'] <= asked, ledger['server']


CAMPAIGN = Campaign(
  'kills', 'interruptions of eight jobs', 1000, case, repeats=False
)

if __name__ == '__main__':
  run(CAMPAIGN)
