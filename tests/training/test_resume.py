"""A run that is interrupted and resumed equals an uninterrupted one.

Real processes get SIGKILL between steps, during and just after a checkpoint, or
SIGTERM; then the same command runs again.
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import jax
import numpy as np
import pytest

from tests.shared import command_line
from tests.shared.command_line import LONG
from tests.shared.saved_runs import (
  Moment,
  just_saved,
  load_state,
  logged_step,
  read_metrics,
  saved_steps,
)

pytestmark = pytest.mark.job

IN_PROGRESS = '.orbax-checkpoint-tmp'


def saving(workdir: pathlib.Path) -> list[str]:
  """Unfinished checkpoints, of a running or a killed process."""
  folder = workdir / 'checkpoints'
  names = os.listdir(folder) if folder.exists() else []
  return [name for name in names if IN_PROGRESS in name]


def mid_step(beyond: int) -> Moment:
  """At least two steps after a checkpoint, while none is being written."""
  return lambda workdir: (
    logged_step(workdir) > beyond
    and not saving(workdir)
    and logged_step(workdir) - max(saved_steps(workdir), default=0) >= 2
  )


def mid_checkpoint(beyond: int) -> Moment:
  return lambda workdir: logged_step(workdir) > beyond and bool(saving(workdir))


def last_step(workdir: pathlib.Path) -> int:
  """The last step of a run, whether saved or not."""
  return max([logged_step(workdir), *saved_steps(workdir)])


def interrupt(
  workdir: pathlib.Path, moment: Moment, how: signal.Signals
) -> subprocess.CompletedProcess:
  """Starts or resumes the run, and sends it a signal at the moment."""
  process = command_line.start(*LONG, f'--workdir={workdir}')
  ends = time.monotonic() + 120
  while process.poll() is None and not moment(workdir):
    assert time.monotonic() < ends, 'the moment does not come'
    time.sleep(0.0005)
  process.send_signal(how)
  sent = time.monotonic()
  out, err = process.communicate(timeout=60)
  assert time.monotonic() - sent < 30
  return subprocess.CompletedProcess(LONG, process.returncode, out, err)


def kill_mid_step(workdir: pathlib.Path) -> None:
  before = last_step(workdir)
  died = interrupt(workdir, mid_step(before), signal.SIGKILL)
  assert died.returncode == -signal.SIGKILL, died.stderr
  assert logged_step(workdir) > max(saved_steps(workdir), default=0)


def kill_mid_checkpoint(workdir: pathlib.Path) -> None:
  for _ in range(5):  # the checkpoint may be complete before the signal
    before = last_step(workdir)
    died = interrupt(workdir, mid_checkpoint(before), signal.SIGKILL)
    assert died.returncode == -signal.SIGKILL, died.stderr
    if saving(workdir):
      return
  pytest.fail('no kill fell into a checkpoint')


def kill_after_checkpoint(workdir: pathlib.Path) -> None:
  before = last_step(workdir)
  died = interrupt(workdir, just_saved(before), signal.SIGKILL)
  assert died.returncode == -signal.SIGKILL, died.stderr
  assert max(saved_steps(workdir)) > before


def stop(workdir: pathlib.Path) -> None:
  """Sends SIGTERM: within 30 s the run saves everything and says so."""
  before = last_step(workdir)
  stopped = interrupt(workdir, mid_step(before), signal.SIGTERM)
  assert stopped.returncode == 0, stopped.stderr
  line = re.search(
    r'prm stopped at step (\d+); the same command resumes from there',
    stopped.stdout,
  )
  assert line, stopped.stdout + stopped.stderr
  assert saved_steps(workdir)[-1] == int(line[1]) > before
  assert not saving(workdir)
  assert not (workdir / 'results.json').exists()


def finish(workdir: pathlib.Path) -> subprocess.CompletedProcess:
  done = command_line.run(*LONG, f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  return done


def assert_same_run(ours: pathlib.Path, theirs: pathlib.Path) -> None:
  """Compares parameters, optimizer, input, metrics and results bit for bit."""
  assert saved_steps(ours)[-1] == saved_steps(theirs)[-1] == 60
  a, b = load_state(ours), load_state(theirs)
  assert jax.tree.structure(a) == jax.tree.structure(b)
  names = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(a)]
  assert any('opt_state' in name and 'nu' in name for name in names)
  for name, x, y in zip(
    names, jax.tree.leaves(a), jax.tree.leaves(b), strict=True
  ):
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), name

  def lines(workdir):
    return [
      {k: v for k, v in line.items() if not k.endswith('tokens_per_second')}
      for line in read_metrics(workdir)
    ]

  assert lines(ours) == lines(theirs)
  trained = [line['step'] for line in lines(ours) if 'loss' in line]
  assert trained == list(range(1, 61))
  rated = [line['step'] for line in lines(ours) if 'eval/auc' in line]
  assert rated == list(range(4, 61, 4))
  for name in ('config.json', 'data.json', 'chains.jsonl'):
    assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
  results = [
    json.loads((workdir / 'results.json').read_text())
    for workdir in (ours, theirs)
  ]
  assert results[0]['results'] == results[1]['results']
  assert (
    results[0]['manifest']['data_fingerprint']
    == results[1]['manifest']['data_fingerprint']
  )


@pytest.mark.slow
def test_interrupted_in_every_way(finished, tmp_path):
  kill_mid_step(tmp_path)
  kill_mid_checkpoint(tmp_path)
  kill_mid_checkpoint(tmp_path)
  stop(tmp_path)
  stop(tmp_path)
  kill_after_checkpoint(tmp_path)
  done = finish(tmp_path)
  assert 'prm: resuming from step' in done.stdout
  assert not saving(tmp_path)  # unfinished checkpoints were removed
  assert_same_run(tmp_path, finished)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('how', 'seed'), [(signal.SIGKILL, 0), (signal.SIGTERM, 1)]
)
def test_interrupted_at_random(how, seed, finished, tmp_path):
  """During imports, data, compilation, training, scoring or report."""
  chance = random.Random(seed)
  for _ in range(3):
    deadline = time.monotonic() + chance.uniform(1, 8)
    interrupt(tmp_path, lambda _, end=deadline: time.monotonic() > end, how)
  finish(tmp_path)
  assert_same_run(tmp_path, finished)


def test_a_finished_run_started_again_changes_nothing(finished, tmp_path):
  workdir = tmp_path / 'run'
  command_line.copy_run(finished, workdir)
  finish(workdir)
  assert_same_run(workdir, finished)
