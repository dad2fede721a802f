"""Killed in the middle and started again, a job ends as if nothing had been.

Real processes and SIGKILL, for every label source, for sampling and search.
"""

import json
import pathlib
import signal
import subprocess
import time

import pytest

from prm_jax.data import builder, chain_sets
from tests.runtime.test_processes import flags_of
from tests.shared import command_line
from tests.shared.command_line import contents, run_all

pytestmark = [pytest.mark.job, pytest.mark.slow]

LABEL = '--config=configs/label_math.py:'


def chains(count: int) -> tuple[str, ...]:
  return (
    f'--config.chains.train_problems={count}',
    '--config.chains.dev_problems=1',
    '--config.chains.test_problems=1',
    '--config.concurrent=20',
  )


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
  'verifier': (f'{LABEL}verifier', *chains(2000)),
  'rollouts': (f'{LABEL}rollouts', *chains(600)),
  'omega': (f'{LABEL}omega', *chains(600)),
  'corruption': (f'{LABEL}corruption', *chains(2000)),
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
    '--config.prm={prm}',
    '--config.concurrent=20',
  ),
  'sample': (SAMPLE, *problems(200)),
  'sample of a model': (SAMPLE, *problems(60), *MODEL),
  'rollouts of a model': (
    f'{LABEL}rollouts',
    *chains(60),
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
  'labelled': (f'{LABEL}verifier', *chains(600)),
  'labelled_otherwise': (f'{LABEL}rollouts', *chains(600)),
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
    lines = [[*of(jobs[name], folders), work(folders[name])] for name in jobs]
    for done in run_all(lines):
      assert done.returncode == 0, done.stderr
  return folders


def of(arguments, folders) -> list[str]:
  return [argument.format(**folders) for argument in arguments]


def work(folder: pathlib.Path) -> str:
  return f'--workdir={folder}'


def lines_of(workdir: pathlib.Path) -> int:
  """Whole lines in the journals, the first of each included."""
  paths = (workdir / 'journal').glob('*.jsonl')
  return sum(path.read_bytes().count(b'\n') for path in paths)


def found(workdir: pathlib.Path) -> dict:
  """All that a job left and that does not depend on the clock."""
  results = json.loads((workdir / 'results.json').read_text())
  ledger = json.loads((workdir / 'ledger.json').read_text())
  assert results['results'] == ledger
  assert ledger.pop('seconds') > 0
  if searching := ledger.get('search'):
    assert searching['cost'].pop('seconds')['mean'] > 0
  # What was under way when a process died was asked for again.
  if ledger.pop('server', None):
    del ledger['money']
  stored = builder.fingerprint(chain_sets.read(str(workdir), 'workdir'))
  assert stored == results['dataset']['fingerprint']
  trees = workdir / 'trees.jsonl'
  return {
    'dataset': results['dataset'],
    'ledger': ledger,
    'chains': (workdir / 'chains.jsonl').read_bytes(),
    'trees': trees.read_bytes() if trees.exists() else b'',
  }


def interrupt(
  arguments: list[str], workdir: pathlib.Path, lines: int, how: signal.Signals
) -> subprocess.CompletedProcess:
  """Starts the job and signals it when its journals have so many lines."""
  process = command_line.start(*arguments, work(workdir))
  end = time.monotonic() + 120
  while lines_of(workdir) < lines and process.poll() is None:
    assert time.monotonic() < end
    time.sleep(0.005)
  process.send_signal(how)
  out, err = process.communicate(timeout=60)
  return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def items_of(workdir: pathlib.Path) -> int:
  """How many items a job has that was never interrupted."""
  return lines_of(workdir) - 1


# Models that compute other chains beside a chain round what they say otherwise.
ROUNDED = 'beam with models'


@pytest.mark.parametrize('name', [name for name in JOBS if name != ROUNDED])
def test_killed_and_resumed_equals_uninterrupted(folders, tmp_path, name):
  arguments, count = of(JOBS[name], folders), items_of(folders[name])
  killed = interrupt(arguments, tmp_path, count // 5, signal.SIGKILL)
  assert killed.returncode == -signal.SIGKILL
  before = lines_of(tmp_path) - 1
  # What labels nothing itself is done with all of it in milliseconds.
  assert count // 5 <= before + 1
  assert before < count or name == 'consensus', f'{before} of {count} done'
  assert not (tmp_path / 'results.json').exists()

  (done,) = run_all([[*arguments, work(tmp_path)]])
  assert done.returncode == 0, done.stderr
  if before < count:
    assert f'{count - before:,} of {count:,} to do' in done.stdout
  assert found(tmp_path) == found(folders[name])
  # Each item once: none was lost, none repeated.
  assert lines_of(tmp_path) == count + 1


def trees_of(workdir: pathlib.Path) -> tuple[list[dict], list[float]]:
  """The trees of a search without what models say of steps; what they say."""
  trees, scores = [], []
  for line in (workdir / 'trees.jsonl').read_text().splitlines():
    trees.append(json.loads(line))
    for node in trees[-1]['tree']['nodes']:
      for said in ('score', 'chain_score', 'logprob'):
        scores.append(node.pop(said, 0.0))
  return trees, scores


def test_a_search_with_a_prm_killed_and_resumed(folders, tmp_path):
  """The same steps, choices and costs; of a score the last digit may differ."""
  arguments, count = of(JOBS[ROUNDED], folders), items_of(folders[ROUNDED])
  interrupt(arguments, tmp_path, count // 5, signal.SIGKILL)
  assert lines_of(tmp_path) - 1 < count
  (done,) = run_all([[*arguments, work(tmp_path)]])
  assert done.returncode == 0, done.stderr
  (ours, scores), (theirs, expected) = map(
    trees_of, (tmp_path, folders[ROUNDED])
  )
  assert ours == theirs
  assert scores == pytest.approx(expected, abs=1e-5)
  assert found(tmp_path)['ledger'] == found(folders[ROUNDED])['ledger']


def test_sigterm_stops_in_good_order(folders, tmp_path):
  arguments, count = of(JOBS['rollouts'], folders), 600
  stopped = interrupt(arguments, tmp_path, count // 4, signal.SIGTERM)
  assert stopped.returncode == 0, stopped.stderr
  assert 'Traceback' not in stopped.stderr
  done = lines_of(tmp_path) - 1
  assert f'stopped with {done:,} of 600 done; the same command' in (
    stopped.stdout
  )
  assert (tmp_path / 'journal/process-0.jsonl').read_bytes()[-1:] == b'\n'
  (resumed,) = run_all([[*arguments, work(tmp_path)]])
  assert resumed.returncode == 0, resumed.stderr
  assert found(tmp_path) == found(folders['rollouts'])


@pytest.mark.parametrize('name', ['rollouts', 'sample'])
def test_two_processes_do_what_one_does(folders, tmp_path, name):
  """Begun by one, killed, finished by two."""
  arguments, count = of(JOBS[name], folders), items_of(folders[name])
  interrupt(arguments, tmp_path, count // 5, signal.SIGKILL)
  before = lines_of(tmp_path) - 1
  together = run_all(
    [[*arguments, work(tmp_path), *flags] for flags in flags_of(2)],
    together=True,
  )
  for done in together:
    assert done.returncode == 0, done.stderr
  assert together[0].stdout
  assert not together[1].stdout.strip()
  assert found(tmp_path) == found(folders[name])
  second = (tmp_path / 'journal/process-1.jsonl').read_bytes().count(b'\n')
  assert abs(second - 1 - (count - before) / 2) <= count / 20
  assert lines_of(tmp_path) == count + 2


def test_all_done_changes_nothing(folders):
  before = contents(folders['corruption'])
  arguments = of(JOBS['corruption'], folders)
  (again,) = run_all([[*arguments, work(folders['corruption'])]])
  assert again.returncode == 0, again.stderr
  assert 'all is done; the results are in' in again.stdout
  assert contents(folders['corruption']) == before


def test_the_journal_of_a_killed_job_may_end_in_half_a_line(folders, tmp_path):
  arguments = of(JOBS['verifier'], folders)
  interrupt(arguments, tmp_path, 500, signal.SIGKILL)
  path = tmp_path / 'journal/process-0.jsonl'
  path.write_bytes(path.read_bytes()[:-30])
  (done,) = run_all([[*arguments, work(tmp_path)]])
  assert done.returncode == 0, done.stderr
  assert found(tmp_path) == found(folders['verifier'])


def test_the_ledger_counts_what_the_chains_hold(folders):
  for name in ('verifier', 'rollouts', 'omega', 'corruption'):
    ledger = found(folders[name])['ledger']
    lines = found(folders[name])['chains'].splitlines()
    values = [s['value'] for line in lines for s in json.loads(line)['labels']]
    assert ledger['labels'] == sum(value is not None for value in values)
    assert ledger['labelled'] == len(lines)
    failed = sum(ledger['failed'].values())
    assert ledger['labelled'] + failed == ledger['chains']
    assert ledger['chains'] == items_of(folders[name])
  # Eight rollouts of each step but the last.
  assert found(folders['rollouts'])['ledger']['calls'] == 600 * 4 * 8
