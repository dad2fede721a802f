"""Runs the jobs that campaigns disturb, and compares what they leave.

Kind -> World.start -> processes -> World.finish
references() -> the workdirs of undisturbed runs -> compare
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

from tests.shared import cloud_storage, command_line
from tests.shared.command_line import LABEL, SMALL, SMALL_POLICY, chain_flags
from tests.shared.faulty_server import FaultyServer, serving, verdict
from tests.shared.finished_jobs import read_outcome
from tests.shared.forked_jobs import Forks, Job
from tests.shared.saved_runs import load_state, read_metrics, saved_steps
from tests.shared.several_processes import process_flags

PATIENCE = 600  # seconds that a job may take from start to end
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
  """Says which job runs, and where.

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
    self,
    kind: Kind,
    tmp: pathlib.Path,
    workdir: str,
    log: pathlib.Path,
    **env: str,
  ) -> list[Job]:
    """Starts the processes of a job.

    Args:
      tmp: the folder of the references.
      log: a folder for what it prints.
      env: added to their environment.
    """
    line = [
      flag.format(tmp=tmp, server=self.server.url) for flag in JOBS[kind.job]
    ]
    flags = process_flags(2) if kind.place == 'two' else [[]]
    folder = log / str(time.monotonic_ns())
    return [
      self.forks.start(
        [*line, f'--workdir={workdir}', *each],
        folder / str(i),
        {**self.env, **env},
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
  return World(Forks({}), server, env)


@contextlib.contextmanager
def nothing_left(own: World, jobs: list[Job]) -> Iterator[None]:
  """Kills what still runs after the block."""
  try:
    yield
  finally:
    for job in jobs:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    for job in jobs:
      assert own.forks.wait(job, PATIENCE) is not None


def references() -> pathlib.Path:
  """Returns the folder of the runs that nobody interrupts, made once."""
  code = [
    subprocess.run(
      ['git', *words], cwd=command_line.ROOT, capture_output=True, check=True
    ).stdout
    for words in (('rev-parse', 'HEAD'), ('diff', 'HEAD'))
  ]
  known = b''.join([json.dumps(JOBS).encode(), *code])
  digest = hashlib.sha256(known).hexdigest()[:12]
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


def leftovers(workdir: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that a process that was killed may leave behind."""
  return [
    path
    for path in workdir.rglob('*')
    if '.orbax-checkpoint-tmp' in path.name or path.name.endswith('.tmp')
  ]


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
