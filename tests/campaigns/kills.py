"""Kills jobs at random instants; every one ends as if nothing had been.

    python -m tests.campaigns.kills --minutes 2

A case takes one of the jobs, starts it, and interrupts it at a random instant,
by SIGKILL, by SIGTERM, or by SIGSTOP and SIGCONT; then the same command goes
on, until it is done. Its outputs are then those of a run that was never
interrupted: parameters, optimizer state, position of the input, chains, labels,
trees and results, bit for bit. A case counts the interruptions.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator

import jax
import numpy as np

from tests.campaigns.campaign import Campaign, run
from tests.shared import command_line
from tests.shared.command_line import LABEL, SMALL, SMALL_POLICY, chain_flags
from tests.shared.finished_jobs import read_outcome
from tests.shared.saved_runs import load_state, read_metrics, saved_steps

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
  'label': (f'{LABEL}rollouts', *chain_flags(300)),
  'search': (
    '--config=configs/search_math.py:beam',
    '--config.problems.train_problems=1',
    '--config.problems.dev_problems=1',
    '--config.problems.test_problems=60',
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


def line_of(name: str, tmp: pathlib.Path, workdir: pathlib.Path) -> list[str]:
  """Returns the command line of a job."""
  flags = [flag.format(tmp=tmp) for flag in JOBS[name]]
  return [*flags, f'--workdir={workdir}']


def references() -> pathlib.Path:
  """Returns the folder of the runs that nobody interrupts, made once."""
  of = (
    json.dumps(JOBS)
    + subprocess.run(
      ['git', 'rev-parse', 'HEAD'],
      cwd=command_line.ROOT,
      capture_output=True,
      text=True,
      check=True,
    ).stdout
  )
  digest = hashlib.sha256(of.encode()).hexdigest()[:12]
  folder = pathlib.Path(tempfile.gettempdir()) / f'prm_jax_kills_{digest}'
  folder.mkdir(exist_ok=True)
  with (folder / 'lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # one process makes them, others wait
    for name in JOBS:
      if not (folder / f'{name}.seconds').exists():
        began = time.monotonic()
        done = command_line.run(*line_of(name, folder, folder / name))
        assert done.returncode == 0, f'{name}: {done.stderr}'
        seconds = str(time.monotonic() - began)
        (folder / f'{name}.seconds').write_text(seconds)
  return folder


@contextlib.contextmanager
def started(line: list[str]) -> Iterator[subprocess.Popen]:
  """Starts a job, of which nothing is left after the block."""
  process = command_line.start(*line)
  try:
    yield process
  finally:
    process.kill()
    process.communicate()


def interrupt(
  line: list[str], how: str, after: float, rng: np.random.Generator
) -> int | None:
  """Starts a job and interrupts it after some seconds.

  Returns:
    Its exit code if it ended by itself; None if it was interrupted.
  """
  with started(line) as process:
    with contextlib.suppress(subprocess.TimeoutExpired):
      out, err = process.communicate(timeout=after)
      assert process.returncode == 0, err
      return process.returncode
    if how == 'pause':
      process.send_signal(signal.SIGSTOP)
      time.sleep(rng.uniform(0, 2))
      process.send_signal(signal.SIGCONT)
      time.sleep(rng.uniform(0, 1))
    sent = signal.SIGTERM if how == 'terminate' else signal.SIGKILL
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert 'Traceback' not in err, err
    assert process.returncode in (0, -sent), err
    # It may have ended just before, or stops in good order.
    stopped = process.returncode or 'the same command resumes' in out
    return None if stopped else 0


def case(rng: np.random.Generator) -> int:
  """Runs one job to its end, through interruptions; returns how many."""
  folder = references()
  name = str(rng.choice([*JOBS]))
  seconds = float((folder / f'{name}.seconds').read_text())
  with tempfile.TemporaryDirectory() as tmp:
    workdir = pathlib.Path(tmp) / 'run'
    line = line_of(name, folder, workdir)
    count = 0
    for _ in range(MOST):
      how = str(rng.choice(HOW))
      if interrupt(line, how, rng.uniform(0, seconds), rng) is not None:
        break
      count += 1
    done = command_line.run(*line)
    assert done.returncode == 0, f'{name}: {done.stderr}'
    compare(name, workdir, folder / name)
    left = [p for p in os.listdir(workdir) if '.orbax' in p or '.tmp' in p]
    assert not left, left
  return count or 1


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
    for results in (first, second):
      del results['cost']['seconds']
  assert first == second, name
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


CAMPAIGN = Campaign('kills', 'interruptions of seven jobs', 1000, case)

if __name__ == '__main__':
  run(CAMPAIGN)
