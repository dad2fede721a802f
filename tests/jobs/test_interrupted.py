"""Killed in the middle and started again, a job ends as if nothing had been.

Real processes and SIGKILL, for every label source, for sampling and search.
"""

import json
import pathlib
import signal

import pytest

from tests.shared.command_line import (
  LABEL,
  chain_flags,
  contents,
  run_all,
  workdir_flag,
)
from tests.shared.finished_jobs import read_outcome, read_trees_and_scores
from tests.shared.interruptions import count_journal_lines, fill_in, interrupt
from tests.shared.several_processes import process_flags

pytestmark = [pytest.mark.job, pytest.mark.slow]


def problems(count: int) -> tuple[str, ...]:
  return (
    f'--config.problems.train_problems={count}',
    '--config.problems.dev_problems=1',
    '--config.problems.test_problems=1',
    '--config.samples=16',
    '--config.concurrent=2',
  )


def searched(method: str, count: int, *more: str) -> tuple[str, ...]:
  return (
    f'--config=configs/search_math.py:{method}',
    '--config.problems.train_problems=1',
    '--config.problems.dev_problems=1',
    f'--config.problems.test_problems={count}',
    '--config.concurrent=2',
    *more,
  )


SAMPLE = '--config=configs/sample_math.py'
MODEL = (
  '--config.policy.kind=workdir',
  '--config.policy.workdir={policy}',
  # Untrained as it is, it would write to the window's end.
  '--config.policy.sampling.max_tokens=12',
)
# Every source, with as many items as keep it busy for a while.
JOBS = {
  'verifier': (f'{LABEL}verifier', *chain_flags(2000)),
  'rollouts': (f'{LABEL}rollouts', *chain_flags(600)),
  'omega': (f'{LABEL}omega', *chain_flags(600)),
  'corruption': (f'{LABEL}corruption', *chain_flags(2000)),
  'consensus': (
    f'{LABEL}consensus',
    '--config.chains.workdir={labelled}',
    '--config.agrees_with={labelled_otherwise}',
  ),
  'active': (
    f'{LABEL}rollouts,active',
    '--config.chains.workdir={sampled}',
    '--config.active.method=random',
    '--config.concurrent=20',
  ),
  'active by a PRM': (
    f'{LABEL}rollouts,active',
    '--config.chains.workdir={sampled}',
    '--config.prm.path={prm}',
    '--config.concurrent=20',
  ),
  'sample': (SAMPLE, *problems(200)),
  'sample of a model': (SAMPLE, *problems(60), *MODEL),
  'rollouts of a model': (
    f'{LABEL}rollouts',
    *chain_flags(60),
    *MODEL,
    '--config.rollouts.samples=2',
    '--config.concurrent=4',
  ),
  'beam': searched('beam', 100),
  'beam with models': searched(
    'beam',
    30,
    *MODEL,
    '--config.prm.kind=workdir',
    '--config.prm.path={prm}',
  ),
  'best of recorded': searched(
    'best_of_n',
    80,
    '--config.policy.kind=recorded',
    '--config.policy.workdir={sampled}',
    '--config.problems.split=train',
    '--config.problems.train_problems=80',
    '--config.problems.test_problems=1',
  ),
}
# What the jobs above begin with.
BEFORE = {
  'labelled': (f'{LABEL}verifier', *chain_flags(600)),
  'labelled_otherwise': (f'{LABEL}rollouts', *chain_flags(600)),
  'sampled': (SAMPLE, *problems(80)),
  'policy': ('--config=configs/policy_math.py:tiny',),
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory, finished) -> dict[str, pathlib.Path]:
  """Workdirs of jobs that were never interrupted."""
  tmp = tmp_path_factory.mktemp('jobs')
  folders = {name: tmp / name for name in (*BEFORE, *JOBS)}
  folders['prm'] = finished
  for jobs in (BEFORE, JOBS):
    lines = [
      [*fill_in(jobs[name], folders), workdir_flag(folders[name])]
      for name in jobs
    ]
    for done in run_all(lines):
      assert done.returncode == 0, done.stderr
  return folders


def items_of(workdir: pathlib.Path) -> int:
  """How many items a job has that was never interrupted."""
  return count_journal_lines(workdir) - 1


# Models that compute other chains beside a chain round what they say otherwise.
ROUNDED = 'beam with models'


@pytest.mark.parametrize('name', [name for name in JOBS if name != ROUNDED])
def test_killed_and_resumed_equals_uninterrupted(folders, tmp_path, name):
  arguments, count = fill_in(JOBS[name], folders), items_of(folders[name])
  killed = interrupt(arguments, tmp_path, count // 5, signal.SIGKILL)
  assert killed.returncode == -signal.SIGKILL
  before = count_journal_lines(tmp_path) - 1
  # What labels nothing itself is done with all of it in milliseconds.
  assert count // 5 <= before + 1
  assert before < count or name == 'consensus', f'{before} of {count} done'
  assert not (tmp_path / 'results.json').exists()

  (done,) = run_all([[*arguments, workdir_flag(tmp_path)]])
  assert done.returncode == 0, done.stderr
  if before < count:
    assert f'{count - before:,} of {count:,} to do' in done.stdout
  assert read_outcome(tmp_path) == read_outcome(folders[name])
  # Each item once: none was lost, none repeated.
  assert count_journal_lines(tmp_path) == count + 1


def test_a_search_with_a_prm_killed_and_resumed(folders, tmp_path):
  """The same steps, choices and costs; of a score the last digit may differ."""
  arguments, count = fill_in(JOBS[ROUNDED], folders), items_of(folders[ROUNDED])
  interrupt(arguments, tmp_path, count // 5, signal.SIGKILL)
  assert count_journal_lines(tmp_path) - 1 < count
  (done,) = run_all([[*arguments, workdir_flag(tmp_path)]])
  assert done.returncode == 0, done.stderr
  (ours, scores), (theirs, expected) = map(
    read_trees_and_scores, (tmp_path, folders[ROUNDED])
  )
  assert ours == theirs
  assert scores == pytest.approx(expected, abs=1e-5)
  assert (
    read_outcome(tmp_path)['ledger'] == read_outcome(folders[ROUNDED])['ledger']
  )


def test_sigterm_stops_in_good_order(folders, tmp_path):
  arguments, count = fill_in(JOBS['rollouts'], folders), 600
  stopped = interrupt(arguments, tmp_path, count // 4, signal.SIGTERM)
  assert stopped.returncode == 0, stopped.stderr
  assert 'Traceback' not in stopped.stderr
  done = count_journal_lines(tmp_path) - 1
  assert f'stopped with {done:,} of 600 done; the same command' in (
    stopped.stdout
  )
  assert (tmp_path / 'journal/process-0.jsonl').read_bytes()[-1:] == b'\n'
  (resumed,) = run_all([[*arguments, workdir_flag(tmp_path)]])
  assert resumed.returncode == 0, resumed.stderr
  assert read_outcome(tmp_path) == read_outcome(folders['rollouts'])


@pytest.mark.parametrize('name', ['rollouts', 'sample'])
def test_two_processes_do_what_one_does(folders, tmp_path, name):
  """Begun by one, killed, finished by two."""
  arguments, count = fill_in(JOBS[name], folders), items_of(folders[name])
  interrupt(arguments, tmp_path, count // 5, signal.SIGKILL)
  before = count_journal_lines(tmp_path) - 1
  together = run_all(
    [
      [*arguments, workdir_flag(tmp_path), *flags] for flags in process_flags(2)
    ],
    together=True,
  )
  for done in together:
    assert done.returncode == 0, done.stderr
  assert together[0].stdout
  assert not together[1].stdout.strip()
  assert read_outcome(tmp_path) == read_outcome(folders[name])
  second = (tmp_path / 'journal/process-1.jsonl').read_bytes().count(b'\n')
  assert abs(second - 1 - (count - before) / 2) <= count / 20
  assert count_journal_lines(tmp_path) == count + 2


def test_all_done_changes_nothing(folders):
  before = contents(folders['corruption'])
  arguments = fill_in(JOBS['corruption'], folders)
  (again,) = run_all([[*arguments, workdir_flag(folders['corruption'])]])
  assert again.returncode == 0, again.stderr
  assert 'all is done; the results are in' in again.stdout
  assert contents(folders['corruption']) == before


def test_the_journal_of_a_killed_job_may_end_in_half_a_line(folders, tmp_path):
  arguments = fill_in(JOBS['verifier'], folders)
  interrupt(arguments, tmp_path, 500, signal.SIGKILL)
  path = tmp_path / 'journal/process-0.jsonl'
  path.write_bytes(path.read_bytes()[:-30])
  (done,) = run_all([[*arguments, workdir_flag(tmp_path)]])
  assert done.returncode == 0, done.stderr
  assert read_outcome(tmp_path) == read_outcome(folders['verifier'])


def test_the_ledger_counts_what_the_chains_hold(folders):
  for name in ('verifier', 'rollouts', 'omega', 'corruption'):
    ledger = read_outcome(folders[name])['ledger']
    lines = read_outcome(folders[name])['chains'].splitlines()
    values = [s['value'] for line in lines for s in json.loads(line)['labels']]
    assert ledger['labels'] == sum(value is not None for value in values)
    assert ledger['labelled'] == len(lines)
    failed = sum(ledger['failed'].values())
    assert ledger['labelled'] + failed == ledger['chains']
    assert ledger['chains'] == items_of(folders[name])
  # Eight rollouts of each step but the last.
  assert read_outcome(folders['rollouts'])['ledger']['calls'] == 600 * 4 * 8
