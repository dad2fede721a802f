"""A full or read-only disk: one error line, no data lost, the job resumes.

Each test mounts a small file system, which needs root.
"""

import contextlib
import json
import pathlib
import re
import subprocess

import pytest

from prm_jax.inference.driver import Cost, Ended
from prm_jax.jobs.journal import Journal, read
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError, user_message
from tests.shared.command_line import SMALL, contents, run_all, the_error
from tests.shared.saved_runs import read_metrics

JOBS = {
  'prm': SMALL,
  'policy': ['--config=configs/policy_math.py:tiny'],
  'sample': ['--config=configs/sample_math.py:tiny'],
  'label': ['--config=configs/label_math.py:rollouts,tiny'],
  'search': ['--config=configs/search_math.py:beam,tiny'],
}
# Job, size in KiB, and the first file that does not fit.
FULL = [
  ('sample', 16, r'run/journal/process-0\.jsonl'),
]
LONG = [
  ('sample', 192, r'run/chains\.jsonl'),
  ('sample', 4, r'run/config\.json'),
  ('sample', 100, r'run/data/samples_\w+/1\.0\.0'),
  ('search', 280, r'run/report\.html'),
  ('label', 60, r'run/journal/process-0\.jsonl'),
  ('prm', 100, r'run/data/arithmetic_\w+/1\.0\.0'),
  ('prm', 320, r'run/data/encoded/arithmetic_\w+/\w+'),
  ('prm', 900, 'run/checkpoints'),
  ('policy', 600, 'run/checkpoints'),
]


@contextlib.contextmanager
def disk(folder: pathlib.Path, kibibytes: int):
  """Mounts a folder of that size; yields a function that remounts it."""
  folder.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o']
  made = subprocess.run(
    [*mount, f'size={kibibytes}k', 'tmpfs', folder],
    capture_output=True,
    text=True,
    check=False,
  )
  if made.returncode:
    pytest.skip(f'cannot mount a file system: {made.stderr.strip()}')
  try:
    yield lambda options: subprocess.run(
      [*mount, f'remount,{options}', folder], check=True
    )
  finally:
    subprocess.run(['umount', folder], check=True)


def without_clock(workdir: pathlib.Path) -> dict:
  """Returns a job's results without those that depend on its speed."""
  found = json.loads((workdir / 'results.json').read_text())['results']
  for name in ('seconds', 'search', 'diagnostics'):
    found.pop(name, None)
  kept = {'results': found}
  for name in ('chains.jsonl', 'trees.jsonl'):
    if (workdir / name).exists():
      kept[name] = (workdir / name).read_text()
  if (workdir / 'metrics.jsonl').exists():
    lines = read_metrics(workdir)
    for line in lines:
      for name in ('tokens_per_second', 'unique_tokens_per_second'):
        line.pop(name, None)
    kept['metrics'] = lines
  return kept


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """Returns a function that runs a job with enough room, once for each job."""
  folder, found = tmp_path_factory.mktemp('whole'), {}

  def results_of(name):
    if name not in found:
      (done,) = run_all([[*JOBS[name], f'--workdir={folder / name}']])
      assert done.returncode == 0, done.stderr
      found[name] = without_clock(folder / name)
    return found[name]

  return results_of


@pytest.mark.job
@pytest.mark.parametrize(
  ('name', 'kibibytes', 'file'),
  [*FULL, *(pytest.param(*each, marks=pytest.mark.slow) for each in LONG)],
)
def test_a_disk_that_fills_up(whole, tmp_path, name, kibibytes, file):
  expected = whole(name)
  with disk(tmp_path / 'disk', kibibytes) as change:
    command = [[*JOBS[name], f'--workdir={tmp_path / "disk" / "run"}']]
    (full,) = run_all(command)
    error = the_error(full)
    assert 'No space left on device' in error
    assert re.search(f'{file}: ', error), error
    assert 'room' in error
    there = contents(tmp_path / 'disk')
    assert not [path for path in there if path.endswith('.tmp')]
    change('size=20m')
    (done,) = run_all(command)
    assert done.returncode == 0, done.stderr
    assert without_clock(tmp_path / 'disk' / 'run') == expected


@pytest.mark.job
def test_a_disk_that_is_read_only(whole, tmp_path):
  whole('sample')
  with disk(tmp_path / 'disk', 20_000) as change:
    command = [[*JOBS['sample'], f'--workdir={tmp_path / "disk" / "run"}']]
    (done,) = run_all(command)
    assert done.returncode == 0, done.stderr
    before = contents(tmp_path / 'disk')
    change('ro')
    (refused,) = run_all(command)
    error = the_error(refused)
    assert 'Read-only file system; check that' in error
    assert contents(tmp_path / 'disk') == before


def test_a_journal_keeps_what_was_whole(tmp_path):
  ended = [Ended(i, (), 'x' * 1500, Cost()) for i in range(20)]
  with disk(tmp_path / 'disk', 12) as change:
    path = tmp_path / 'disk' / 'journal' / 'process-0.jsonl'
    job = {'input': 'a'}
    full = pytest.raises(OSError, match='No space left')
    with full as error, Journal(path, job) as journal:
      for each in ended:
        journal.write(each)
    assert user_message(error.value).startswith(
      f'{path}: No space left on device; make'
    )
    kept = list(read(path.parent, job))
    assert 3 < len(kept) < 20
    change('size=1m')
    with Journal(path, job) as journal:
      for each in ended[len(kept) :]:
        journal.write(each)
    assert list(read(path.parent, job)) == ended


def test_a_file_is_written_whole_or_stays(tmp_path):
  with disk(tmp_path / 'disk', 12):
    path = tmp_path / 'disk' / 'results.json'
    paths.write_text(path, 'before')
    with pytest.raises(OSError, match='No space left') as error:
      paths.write_text(path, 'x' * 20_000)
    assert error.value.filename == str(path)
    assert contents(path.parent) == {'results.json': b'before'}


def with_cause(error: Exception, cause: Exception | None = None) -> Exception:
  error.__cause__ = cause
  return error


@pytest.mark.parametrize(
  'error',
  [
    OSError(28, 'No space left on device'),
    RuntimeError('write() failed: No space left on device; writing x'),
    with_cause(ValueError('saving'), OSError(28, 'No space left on device')),
  ],
)
def test_disk_errors_of_libraries_name_the_file(error):
  full = pytest.raises(OSError, match='No space left')
  with full as found, paths.writing(paths.open_path('/a/b')):
    raise error
  assert user_message(found.value) == (
    '/a/b: No space left on device; make room there, and run the same '
    'command again'
  )


@pytest.mark.parametrize(
  'error',
  [ConnectionResetError(104, 'reset'), KeyError('x'), RuntimeError('a bug')],
)
def test_a_bug_keeps_its_traceback(error):
  assert user_message(error) == ''
  with pytest.raises(type(error)), paths.writing(paths.open_path('/a/b')):
    raise error


def test_a_user_error_is_its_own_line():
  assert user_message(UserError('x is 3; make it 4')) == 'x is 3; make it 4'
