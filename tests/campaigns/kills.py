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
import fcntl
import functools
import hashlib
import json
import multiprocessing.util
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from prm_jax.runtime import paths
from tests.campaigns.campaign import Campaign, run
from tests.shared import cloud_storage, command_line
from tests.shared.command_line import LABEL, SMALL, SMALL_POLICY, chain_flags
from tests.shared.faulty_server import FaultyServer, serving, verdict
from tests.shared.finished_jobs import read_outcome
from tests.shared.forked_jobs import Forks, Job
from tests.shared.saved_runs import load_state, read_metrics, saved_steps
from tests.shared.several_processes import process_flags

MOST = 8  # interruptions of a case; then the job may end
PATIENCE = 600  # seconds that a job may take from start to end
HOW = ('kill', 'terminate', 'pause')
POLICY = '--config.policy.workdir={tmp}/policy'
# Name of a job -> its command line; '{tmp}/NAME' is the reference of another.
JOBS: dict[str, tuple[str, ...]] = {
  'policy': SMALL_POLICY,
  'prm': (
    *SMALL,
    '--config.train.steps=40',
    '--config.train.checkpoint_every=5',
    '--config.train.log_every=1',
  ),
  'sample': (
    '--config=configs/sample_math.py:tiny',
    '--config.policy.kind=workdir',
    POLICY,
    '--config.policy.sampling.max_tokens=8',
    '--config.problems.train_problems=15',
    '--config.problems.dev_problems=4',
    '--config.problems.test_problems=8',
    '--config.problems.arithmetic.modulus=3',
    '--config.problems.arithmetic.operations=1',
    '--config.concurrent=2',
  ),
  'label': (f'{LABEL}rollouts', *chain_flags(2000)),
  'judge': (
    f'{LABEL}judge',
    *chain_flags(150),
    '--config.policy.endpoint.base_url={server}',
    '--config.policy.endpoint.model=m',
    '--config.policy.endpoint.attempts=1',
    '--config.judge.samples=2',
  ),
  'search': (
    '--config=configs/search_math.py:beam',
    '--config.problems.train_problems=1',
    '--config.problems.dev_problems=1',
    '--config.problems.test_problems=250',
    '--config.concurrent=2',
  ),
  'rl': (
    '--config=configs/rl_math.py:exact,tiny',
    POLICY,
    '--config.problems.train_problems=15',
    '--config.problems.dev_problems=4',
    '--config.problems.test_problems=8',
    '--config.problems.arithmetic.modulus=3',
    '--config.problems.arithmetic.operations=1',
    '--config.held_out.problems=4',
    '--config.train.updates=9',
    '--config.train.evaluate_every=3',
    '--config.train.checkpoint_every=3',
    '--config.sampling.max_tokens=8',
  ),
  'evaluate': (
    '--config=configs/evaluate_math.py:tiny',
    '--config.prm.path={tmp}/prm',
    '--config.data.dev_problems=4',
    '--config.data.test_problems=4',
    '--config.data.test_samples=4',
    '--config.evaluation.ns=(1, 2, 4)',
    '--config.evaluation.resamples=10',
    '--config.concurrent=2',
  ),
}
TRAINED = ('policy', 'prm', 'rl')
JUDGED = 300  # answers that 'judge' asks for
# Where each is interrupted: what they have in common with others is tried once.
PLACES = {
  'disk': tuple(JOBS),
  'cloud': ('policy', 'prm'),  # other jobs write on a disk alone
  'two': ('prm', 'label', 'search', 'rl'),
}


class Kind(NamedTuple):
  """Is a job at a place.

  Attributes:
    place: 'disk', 'cloud' or 'two': as two processes, on this disk.
  """

  job: str
  place: str

  @property
  def reference(self) -> str:
    """Returns the name of the run that nobody interrupted."""
    return f'{self.job}_two' if self.place == 'two' else self.job


KINDS = [Kind(job, place) for place, jobs in PLACES.items() for job in jobs]


class World(NamedTuple):
  """Holds what the cases of one process share.

  Attributes:
    server: answers the judge's questions.
    env: where Cloud Storage is found.
  """

  forks: Forks
  server: FaultyServer
  env: Mapping[str, str]

  def start(
    self, kind: Kind, tmp: pathlib.Path, workdir: str, log: pathlib.Path
  ) -> list[Job]:
    """Starts the processes of a job.

    Args:
      tmp: the folder of the references.
      log: a folder for what it prints.
    """
    line = [
      flag.format(tmp=tmp, server=self.server.url) for flag in JOBS[kind.job]
    ]
    flags = process_flags(2) if kind.place == 'two' else [[]]
    folder = log / str(time.monotonic_ns())
    return [
      self.forks.start(
        [*line, f'--workdir={workdir}', *each], folder / str(i), self.env
      )
      for i, each in enumerate(flags)
    ]

  def finish(self, jobs: list[Job]) -> None:
    """Waits until all have ended well."""
    with nothing_left(self, jobs):
      for job in jobs:
        code = self.forks.wait(job, PATIENCE)
        assert code == 0, f'{code}: {job.err}'


@functools.cache
def world() -> World:
  """Starts, once in a process, what lives as long as it."""
  stack = contextlib.ExitStack()
  env = stack.enter_context(cloud_storage.serving())
  os.environ.update(env)  # `compare` reads there
  server = stack.enter_context(serving())
  server.fault = verdict
  # At the end of this process, of the pool's, too.
  multiprocessing.util.Finalize(None, stack.close, exitpriority=1)
  return World(Forks(), server, env)


@contextlib.contextmanager
def nothing_left(of: World, jobs: list[Job]) -> Iterator[None]:
  """Kills what still runs after the block."""
  try:
    yield
  finally:
    for job in jobs:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)


def references() -> pathlib.Path:
  """Returns the folder of the runs that nobody interrupts, made once."""
  commit = subprocess.run(
    ['git', 'rev-parse', 'HEAD'],
    cwd=command_line.ROOT,
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  digest = hashlib.sha256((json.dumps(JOBS) + commit).encode()).hexdigest()[:12]
  folder = pathlib.Path(tempfile.gettempdir()) / f'prm_jax_kills_{digest}'
  folder.mkdir(exist_ok=True)
  with (folder / 'lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # one process makes them, others wait
    for kind in KINDS:
      seconds = folder / f'{kind.reference}.seconds'
      if not seconds.exists():
        began, workdir = time.monotonic(), folder / kind.reference
        own = world()
        own.finish(own.start(kind, folder, str(workdir), folder / 'log'))
        seconds.write_text(str(time.monotonic() - began))
  return folder


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
      assert code == 0, victim.err
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
    left = [p for p in os.listdir(here) if '.orbax' in p or '.tmp' in p]
    assert not left, left
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


def compare(name: str, ours: pathlib.Path, theirs: pathlib.Path) -> None:
  """Raises AssertionError unless two runs left the same."""
  if name not in TRAINED and name != 'evaluate':
    assert read_outcome(ours) == read_outcome(theirs)
    return
  first, second = (
    json.loads((workdir / 'results.json').read_text())['results']
    for workdir in (ours, theirs)
  )
  if name == 'evaluate':
    # The last bits of scores depend on which chains are scored together.
    del first['cost'], second['cost']
    jax.tree.map(np.testing.assert_allclose, first, second)
    return
  assert first == second, (name, first, second)
  if name in TRAINED:
    assert saved_steps(ours)[-1] == saved_steps(theirs)[-1]
    a, b = load_state(ours), load_state(theirs)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
      assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    assert untimed(ours) == untimed(theirs)


def untimed(workdir: pathlib.Path) -> list[dict]:
  """Returns the metrics of a run, without what the clock says."""
  return [
    {
      name: value
      for name, value in line.items()
      if 'per_second' not in name and not name.startswith('seconds')
    }
    for line in read_metrics(workdir)
  ]


CAMPAIGN = Campaign(
  'kills', 'interruptions of eight jobs', 1000, case, repeats=False
)

if __name__ == '__main__':
  run(CAMPAIGN)
