"""Several processes on loopback: one job, the same losses, and clear ends.

Real processes and real collectives (gloo). What stands in the way of a person
who starts them by hand is one line: flags, configs, folders that differ, and
one of them dying.
"""

import json
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests.shared.command_line import (
  ROOT,
  SMALL,
  TINY,
  run_all,
  start,
  the_error,
)
from tests.shared.saved_runs import (
  Moment,
  just_saved,
  load_state,
  logged_step,
  read_metrics,
  saved_steps,
)
from tests.shared.several_processes import (
  free_port,
  process_flags,
  wait_for_all,
)

pytestmark = [pytest.mark.job, pytest.mark.slow]

STEPS = 16
JOB = (
  *SMALL,
  f'--config.train.steps={STEPS}',
  '--config.train.log_every=1',
  '--config.train.checkpoint_every=4',
)
LOST = (
  'lost another process',  # gloo told Python
  'Terminating process because the JAX distributed service detected fatal',
)


def start_job(*each: tuple[str, ...], **env: str) -> list[subprocess.Popen]:
  """A command line for every process."""
  return [
    start(*args, *flags, **env)
    for args, flags in zip(each, process_flags(len(each)), strict=True)
  ]


def steps_of(what: str, folder: pathlib.Path, devices: int, count: int = 0):
  """Starts `run_on_processes`, with no job of several for count=0."""
  jobs = [[]]
  if count:
    port = free_port()
    jobs = [[f'127.0.0.1:{port}', str(count), str(i)] for i in range(count)]
  return [
    subprocess.Popen(
      [
        *(sys.executable, '-m', 'tests.shared.run_on_processes'),
        *(what, str(folder), str(devices), *job),
      ],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for job in jobs
  ]


def results(processes: list[subprocess.Popen]) -> list[dict]:
  done = wait_for_all(processes)
  for process in done:
    assert process.returncode == 0, process.stderr
  return [json.loads(process.stdout.splitlines()[-1]) for process in done]


@pytest.fixture(scope='module')
def steps(tmp_path_factory) -> dict[str, list[dict]]:
  """By name of the run: what each of its processes found."""
  folder = tmp_path_factory.mktemp('saved') / 'checkpoints'
  saved = results(steps_of('save', folder, devices=1, count=4))
  both = [
    *steps_of('alone', folder, devices=8),
    *steps_of('score', folder, devices=4, count=2),
  ]
  alone, *scored = results(both)
  return {name: [found] for name, found in alone.items()} | {
    '4 processes': [found['save'] for found in saved],
    '2 processes of 4': [found['score'] for found in scored],
  }


RUNS = ('2', '4', '8', '4 processes', '2 processes of 4')


@pytest.mark.parametrize('name', RUNS)
def test_losses_are_those_of_one_device(name, steps):
  expected = steps['1'][0]['losses']
  assert np.ptp(expected) > 0.01  # it moves, so that equal means something
  for process in steps[name]:
    np.testing.assert_allclose(process['losses'], expected, rtol=1e-5)


@pytest.mark.parametrize('name', RUNS)
def test_processes_share_the_rows_of_one(name, steps):
  """In process order they are the batch, so none is read twice."""
  for number, expected in enumerate(steps['1'][0]['rows']):
    rows = [row for process in steps[name] for row in process['rows'][number]]
    assert rows == expected
  assert len({len(process['rows'][0]) for process in steps[name]}) == 1


@pytest.mark.parametrize('mesh', ['(1, 1, 1)', '(2, 2, 2)'])
def test_saved_by_four_restores_elsewhere(mesh, steps):
  """Bit-equal arrays, and the very next batch."""
  saved, restored = steps['4 processes'], steps[f'restored {mesh}'][0]
  assert len(saved[0]['state']) > 30
  assert {'step', 'key'} < saved[0]['state'].keys()
  for process in saved:
    assert restored['state'] == process['state']
  next_rows = [row for process in saved for row in process['next']]
  assert restored['next'] == next_rows
  assert next_rows not in steps['1'][0]['rows']


def test_a_checkpoint_of_four_is_what_they_wrote(steps):
  [seal] = steps['seal']
  assert seal['damage'] == ''
  assert seal['sums'] > 10


def test_every_process_reads_the_same_scores(steps):
  first, second = (process['scores'] for process in steps['2 processes of 4'])
  assert first == second
  np.testing.assert_allclose(first, steps['8'][0]['scores'], rtol=1e-5)


def logged(step: int) -> Moment:
  return lambda workdir: logged_step(workdir) >= step


def interrupt(
  workdir: pathlib.Path, victim: int, how: signal.Signals, moment: Moment
) -> list[subprocess.CompletedProcess]:
  """Signals one of two processes at the moment."""
  processes = start_job(*[(*JOB, f'--workdir={workdir}')] * 2)
  try:
    end = time.monotonic() + 200
    while not moment(workdir) and time.monotonic() < end:
      assert all(process.poll() is None for process in processes)
      time.sleep(0.005)
    processes[victim].send_signal(how)
    sent = time.monotonic()
  except BaseException:
    for process in processes:
      process.kill()
    raise
  done = wait_for_all(processes, timeout=60)
  assert time.monotonic() - sent < 60
  return done


def finish(
  workdir: pathlib.Path, **env: str
) -> list[subprocess.CompletedProcess]:
  both = [(*JOB, f'--workdir={workdir}')] * 2
  done = wait_for_all(start_job(*both, **env))
  for process in done:
    assert process.returncode == 0, process.stderr
  return done


def check_survivor(survivor: subprocess.CompletedProcess) -> None:
  assert survivor.returncode not in (0, 2)
  assert any(text in survivor.stderr for text in LOST), survivor.stderr


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp('two') / 'run'
  cache = tmp_path_factory.mktemp('compiled')
  first, second = finish(workdir, JAX_COMPILATION_CACHE_DIR=str(cache))
  # Programs from there would let the processes wait for each other for ever.
  assert not [*cache.iterdir()]
  assert 'report: ' in first.stdout
  assert ' step ' in first.stderr
  # The others are silent but for gloo.
  others = [s for s in second.stdout.splitlines() if '[Gloo]' not in s]
  assert not any(others)
  assert not second.stderr
  return workdir


def assert_same_run(ours: pathlib.Path, theirs: pathlib.Path) -> None:
  """Bit-equal arrays, positions, metrics, results."""
  assert saved_steps(ours)[-1] == saved_steps(theirs)[-1] == STEPS
  a, b = load_state(ours), load_state(theirs)
  assert {'shard_0-of-2.json', 'shard_1-of-2.json'} == a['data'].keys()
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
  lines = [
    [
      {k: v for k, v in line.items() if not k.endswith('tokens_per_second')}
      for line in read_metrics(workdir)
    ]
    for workdir in (ours, theirs)
  ]
  assert lines[0] == lines[1]
  trained = [line['step'] for line in lines[0] if 'loss' in line]
  assert trained == list(range(1, STEPS + 1))
  found = [
    json.loads((workdir / 'results.json').read_text())
    for workdir in (ours, theirs)
  ]
  assert found[0]['results'] == found[1]['results']
  assert found[0]['manifest']['processes'] == 2


def test_stopped_and_killed_and_resumed(uninterrupted, tmp_path):
  """SIGTERM to one stops both in good order; SIGKILL of one ends the other."""
  stopped = interrupt(tmp_path, victim=1, how=signal.SIGTERM, moment=logged(2))
  step = saved_steps(tmp_path)[-1]
  assert step >= 3  # no multiple of 4 is needed
  for process in stopped:
    assert process.returncode == 0, process.stderr
    assert 'error' not in process.stderr
  line = f'prm stopped at step {step}; the same command resumes from there'
  assert line in stopped[0].stdout

  survivor, victim = interrupt(
    tmp_path, victim=1, how=signal.SIGKILL, moment=just_saved(step)
  )
  assert victim.returncode == -signal.SIGKILL
  check_survivor(survivor)
  assert f'resuming from step {step}' in survivor.stdout
  assert STEPS > saved_steps(tmp_path)[-1] > step

  first, _ = finish(tmp_path)
  assert 'resuming from step' in first.stdout
  assert_same_run(tmp_path, uninterrupted)


def test_process_0_is_killed(uninterrupted, tmp_path):
  """With it goes what the others are told by."""
  victim, survivor = interrupt(
    tmp_path, victim=0, how=signal.SIGKILL, moment=logged(6)
  )
  assert victim.returncode == -signal.SIGKILL
  check_survivor(survivor)
  finish(tmp_path)
  assert_same_run(tmp_path, uninterrupted)


def test_faults_that_all_processes_tell(tmp_path):
  """Each in one line, at the same time, before anything is written."""
  (tmp_path / 'foreign').mkdir()
  (tmp_path / 'foreign' / 'config.json').write_text('{}')

  def at(folder, *more):
    return (TINY, f'--workdir={tmp_path}/{folder}', *more)

  foreign = f'workdir {tmp_path}/foreign belongs to another config'
  apart = f'--workdir of process 1 is not the folder {tmp_path}/a of process 0'
  differ = (
    'the configs of process 0 and process 1 differ in data.batch_size (8 and '
    '16), optim.lr (0.001 and 0.5); start all processes with the same --config'
  )
  shards = (
    'data.shards=1 does not divide the 8 rows of data.batch_size so that each '
    'is read by one process; set it to one of 2, 4, 8, or to 0: 2'
  )
  other = ('--config.optim.lr=0.5', '--config.data.batch_size=16')
  jobs = [
    (at('differ'), at('differ', *other), differ, differ),
    (at('foreign'), at('foreign'), foreign, f'process 0 stopped: {foreign}'),
    (at('a'), at('b'), apart, apart.replace('/a of', '/b of')),
    (*[at('one', '--config.data.shards=1')] * 2, shards, shards),
  ]
  command_lines = [
    (*args, *flags)
    for job in jobs
    for args, flags in zip(job[:2], process_flags(2), strict=True)
  ]
  ran = run_all(command_lines, together=True)
  for number, job in enumerate(jobs):
    for i, expected in enumerate(job[2:]):
      line = the_error(ran[2 * number + i])
      assert line.startswith(f'error: process {i} of 2: {expected}'), line
  for folder in ('differ', 'one'):
    assert not list(tmp_path.glob(f'{folder}/*'))


def test_nobody_answers(tmp_path):
  """The wait is a minute; here it is shortened."""
  script = (
    'import sys; from prm_jax import main; '
    'from prm_jax.runtime import processes; '
    'processes.JOIN_SECONDS = 2; main.run(sys.argv)'
  )
  port = free_port()
  process = subprocess.Popen(
    [
      *(sys.executable, '-c', script, TINY, f'--workdir={tmp_path}/run'),
      *(f'--coordinator=127.0.0.1:{port}', '--processes=3', '--process=1'),
    ],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  (alone,) = wait_for_all([process], timeout=60)
  assert the_error(alone) == (
    f'error: process 1: no answer from 127.0.0.1:{port}, where process 0 '
    'should be after 2 s; start all of them with the same command, each with '
    'its own --process (--processes=1 runs alone)'
  )


CLUSTER = """
import sys
from jax._src.clusters import ClusterEnv
from prm_jax import main


class Silent(ClusterEnv):
  @classmethod
  def is_env_present(cls):
    return True

  @classmethod
  def get_coordinator_address(cls, *_, **__):
    raise NotImplementedError


main.run(sys.argv)
"""


def test_a_cluster_that_does_not_say_why_it_cannot_be_joined(tmp_path):
  """JAX finds it, and its exception has no text."""
  process = subprocess.Popen(
    [sys.executable, '-c', CLUSTER, TINY, f'--workdir={tmp_path}/run'],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  (ended,) = wait_for_all([process], timeout=60)
  assert the_error(ended) == (
    'error: this looks like one of several processes, but they cannot be '
    'joined (NotImplementedError); --processes=1 runs alone'
  )


def test_flags_that_cannot_work(tmp_path):
  at = '--coordinator=127.0.0.1:1234'
  cases = {
    (at, '--processes=2'): '--process missing',
    ('--processes=2',): '--coordinator, --process missing',
    (at, '--processes=2', '--process=2'): 'expected 0 to 1',
    (at, '--processes=2', '--process=-1'): 'expected 0 to 1',
    (at, '--processes=0', '--process=0'): 'expected 1 or more',
    ('--coordinator=a', '--processes=2', '--process=0'): 'HOST:PORT',
    (at, '--processes=two', '--process=0'): 'see --help',
  }
  ran = run_all(
    [[TINY, f'--workdir={tmp_path}/run', *flags] for flags in cases]
  )
  for expected, finished in zip(cases.values(), ran, strict=True):
    assert expected in the_error(finished)
  assert not (tmp_path / 'run').exists()
