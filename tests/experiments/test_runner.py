"""Jobs of an experiment: what is shown of them, and how they are stopped."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from experiments import runner
from experiments.runner import Runner
from tests.shared.command_line import ROOT

STEPS = """
import sys, time
for step in range(5):
  print(f'step {step}', file=sys.stderr, flush=True)
  time.sleep(0.05)
"""
FAILURE = "print('half done', flush=True); raise SystemExit('error: no data')"
# Says when it runs, and keeps what it has when it is asked to end.
STOPPED = """
import pathlib, signal, sys, time
def keep(*_):
  pathlib.Path(sys.argv[1] + '.kept').touch()
  sys.exit(0)
signal.signal(signal.SIGTERM, keep)
pathlib.Path(sys.argv[1]).touch()
while True:
  print('busy', flush=True)
  time.sleep(0.05)
"""
EXPERIMENT = """
import pathlib, sys
from experiments.runner import Runner
workdir, job, count = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
runner = Runner(workdir, jobs=count)
calls = [(str(i), '-c', job, str(workdir / str(i))) for i in range(count)]
runner.all(runner.run, calls) if count > 1 else runner.run(*calls[0])
"""


@pytest.mark.parametrize(('every', 'shown'), [(0, range(5)), (60, ())])
def test_jobs_side_by_side_show_their_progress(
  tmp_path, capfd, monkeypatch, every, shown
):
  monkeypatch.setattr(runner, 'SHOWN_EVERY', every)
  jobs = Runner(tmp_path, jobs=2)
  jobs.all(jobs.run, [('one', '-c', STEPS), ('two', '-c', STEPS)])
  lines = capfd.readouterr().out.splitlines()
  for name in ('one', 'two'):
    assert [line for line in lines if line.startswith(name)] == [
      *(f'{name}: step {step}' for step in shown),
      f'{name}: done',
    ]


def test_a_single_call_has_all_cores(tmp_path, capfd):
  code = 'import os; print(sorted(os.sched_getaffinity(0)))'
  jobs = Runner(tmp_path, jobs=2)
  jobs.all(jobs.run, [('one', '-c', code)])
  cores = sorted(os.sched_getaffinity(0))
  assert capfd.readouterr().out.splitlines() == [str(cores), 'one: done']


def test_a_job_alone_shows_all_that_it_prints(tmp_path, capfd):
  Runner(tmp_path, jobs=2).run('one', '-c', STEPS)
  told = capfd.readouterr()
  assert told.err.splitlines() == [f'step {step}' for step in range(5)]
  assert told.out == 'one: done\n'


@pytest.mark.parametrize('count', [1, 2])
def test_a_failure_shows_what_was_printed_last(tmp_path, capfd, count):
  jobs = Runner(tmp_path, count)
  with pytest.raises(SystemExit, match='error: one failed'):
    jobs.all(jobs.run, [('one', '-c', FAILURE)])
  told = capfd.readouterr()
  assert 'half done\nerror: no data' in told.out + told.err


def wait_for(*paths: pathlib.Path) -> None:
  until = time.monotonic() + 60
  while not all(path.exists() for path in paths):
    assert time.monotonic() < until
    time.sleep(0.02)


@pytest.mark.parametrize('count', [1, 2])
def test_jobs_end_with_the_experiment_and_keep_what_they_have(tmp_path, count):
  process = subprocess.Popen(
    [sys.executable, '-c', EXPERIMENT, tmp_path, STOPPED, str(count)],
    cwd=ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )
  wait_for(*(tmp_path / str(i) for i in range(count)))
  process.send_signal(signal.SIGTERM)
  error = process.communicate(timeout=60)[1]
  assert process.returncode == 1
  assert error == 'error: stopped; the same command goes on\n'
  for i in range(count):
    assert (tmp_path / f'{i}.kept').exists()


def test_a_job_that_was_stopped_is_not_done(tmp_path, monkeypatch):
  # Such a job ends with 0, as this command does, and without results.
  monkeypatch.setattr(sys, 'executable', shutil.which('true'))
  with pytest.raises(SystemExit, match='policy was stopped; the same command'):
    Runner(tmp_path, 1).main('prm_math.py:tiny', 'policy')
