"""A job on files: end to end, and what is said when a file is not right."""

import json
import pathlib
import re
from collections.abc import Callable

import pytest

import prm_jax
from tests.shared.command_line import (
  contents,
  copy_run,
  run,
  run_all,
  the_error,
)
from tests.shared.files_job import (
  bench_records,
  train_records,
  write_job,
  write_lines,
)

pytestmark = pytest.mark.job


@pytest.fixture(scope='module')
def files_run(tmp_path_factory):
  """A finished job on files: its folder, its arguments, what it said."""
  folder = tmp_path_factory.mktemp('files')
  arguments = write_job(folder)
  done = run(*arguments)
  assert done.returncode == 0, done.stderr
  return folder, arguments, done.stdout


def test_a_job_on_files(files_run):
  folder, _, stdout = files_run
  assert 'train.jsonl: 24 records: 24 chains, 48 ratings' in stdout
  assert '1 training chains of 1 problems are in known.jsonl' in stdout
  written = json.loads((folder / 'run' / 'results.json').read_text())
  results = written['results']
  assert 'bench' in results['localisation']
  assert 'bench' in results['calibration']
  assert 'best_of_n' not in results
  assert 'dev chains' in written['manifest']['threshold']['source']
  lines = (folder / 'run' / 'chains.jsonl').read_text().splitlines()
  assert [json.loads(line)['meta']['id'] for line in lines] == [
    'bench-0',
    'bench-1',
  ]
  record = bench_records()[1]
  scores = prm_jax.load(folder / 'run').score(
    record['problem'], record['steps']
  )
  assert scores.shape == (2,)
  shown = json.loads(lines[1])['scores']
  assert abs(scores - shown).max() < 1e-4  # chains.jsonl has four digits


def test_other_data_than_the_run_began_with(files_run, tmp_path):
  """One label turned round: a resumed run would mix two data sets."""
  folder = copy_run(files_run[0], tmp_path / 'copy')
  config = folder / 'job.py'
  config.write_text(config.read_text().replace(str(files_run[0]), str(folder)))
  stored = folder / 'run' / 'config.json'
  stored.write_text(stored.read_text().replace(str(files_run[0]), str(folder)))
  arguments = [f'--config={config}', f'--workdir={folder / "run"}']
  records = train_records()
  records[20]['ratings'][0] = -1
  write_lines(folder / 'data' / 'train.jsonl', records)
  kept = ('results.json', 'metrics.jsonl', 'report.html', 'data.json')
  before = {name: (folder / 'run' / name).read_bytes() for name in kept}
  (refused,) = run_all([arguments])
  assert 'was begun with other data' in the_error(refused)
  after = {name: (folder / 'run' / name).read_bytes() for name in kept}
  assert after == before

  write_lines(folder / 'data' / 'train.jsonl', train_records())
  (done,) = run_all([arguments])
  assert done.returncode == 0, done.stderr
  assert 'resuming from step 6' in done.stdout


def test_an_outcome_model_without_outcomes_is_refused_before_training(tmp_path):
  """And the workdir is left to the corrected command."""
  line = write_job(tmp_path)
  (both,) = run_all([[*line, '--config.orm_baseline=True']])
  assert 'training chains has an outcome' in the_error(both)
  assert the_error(both).endswith('or orm_baseline=False')
  (alone,) = run_all([[*line, '--config.targets.supervision=outcome']])
  assert the_error(alone).endswith("or targets.supervision='process'")
  assert not (tmp_path / 'run' / 'metrics.jsonl').exists()
  (done,) = run_all([line])
  assert done.returncode == 0, done.stderr


# Each takes the folder with the data, and damages it.
def remove(name: str) -> Callable[[pathlib.Path], None]:
  return lambda data: (data / name).unlink()


def write(name: str, content: bytes) -> Callable[[pathlib.Path], None]:
  return lambda data: (data / name).write_bytes(content)


def not_utf8(data: pathlib.Path) -> None:
  path = data / 'train.jsonl'
  path.write_bytes(path.read_bytes().replace(b'Tom has 3', b'Tom \xe9 3'))


def cut(data: pathlib.Path) -> None:
  path = data / 'train.jsonl'
  path.write_bytes(path.read_bytes()[:-30])


def label_too_many(data: pathlib.Path) -> None:
  records = train_records()
  records[4]['ratings'].append(1)
  write_lines(data / 'train.jsonl', records)


def bad_bench_label(data: pathlib.Path) -> None:
  records = bench_records()
  records[2]['label'] = 7
  write_lines(data / 'bench.jsonl', records)


def all_known(data: pathlib.Path) -> None:
  write_lines(
    data / 'known.jsonl',
    [{'question': record['problem']} for record in train_records()],
  )


NOTHING = lambda data: None  # noqa: E731

# name -> (damage, change of the config, what the line has to say)
FAULTS = {
  'missing file': (
    remove('train.jsonl'),
    '',
    r'data/train\.jsonl: cannot be read \(No such file',
  ),
  'missing evaluation': (remove('bench.jsonl'), '', r'bench\.jsonl: cannot'),
  'missing known problems': (remove('known.jsonl'), '', r'known\.jsonl'),
  'empty file': (
    write('train.jsonl', b''),
    '',
    r'train\.jsonl: has no records',
  ),
  'not UTF-8': (not_utf8, '', r'train\.jsonl:4: not UTF-8 \(byte 0xe9 at'),
  'cut in mid-record': (cut, '', r'train\.jsonl:24: .*cut off in mid-record'),
  'not JSON': (
    write('bench.jsonl', b'hello\n'),
    '',
    r'bench\.jsonl:1: not JSON',
  ),
  'a label too many': (label_too_many, '', r'train\.jsonl:5: .*3.*2'),
  'label out of range': (bad_bench_label, '', r"bench\.jsonl:3: 'label' is 7"),
  'wrong format': (
    NOTHING,
    "config.data.train = (('train.jsonl', 'trl'),)",
    r"train\.jsonl:1: .*'completions' is missing.*read as trl",
  ),
  'unknown format': (
    NOTHING,
    "config.data.train = (('train.jsonl', 'prm900k'),)",
    "unknown format 'prm900k': expected one of prm800k, ",
  ),
  'everything is known': (all_known, '', 'leaves 0 chains to train on'),
  'no dev chains': (
    NOTHING,
    'config.data.dev_share = 0.0',
    r'config.data.dev_share=0.0: expected a number in \(0, 1\)',
  ),
  'text that the tokenizer lacks': (
    NOTHING,
    "config.data.tokenizer = 'arithmetic'",
    "chain '.*' cannot be encoded: .* is not a word of the arithmetic token",
  ),
}


@pytest.fixture(scope='module')
def faults(tmp_path_factory):
  folder = tmp_path_factory.mktemp('file_faults')
  jobs, before = [], {}
  for i, (name, (damage, change, _)) in enumerate(FAULTS.items()):
    jobs.append(write_job(folder / str(i), change))
    damage(folder / str(i) / 'data')
    before[name] = contents(folder / str(i))
  ran = run_all(jobs)
  return {
    name: (result, folder / str(i), before[name])
    for i, (name, result) in enumerate(zip(FAULTS, ran, strict=True))
  }


@pytest.mark.parametrize('name', FAULTS)
def test_a_fault_in_the_data(faults, name):
  result, folder, before = faults[name]
  assert re.search(FAULTS[name][2], the_error(result)), the_error(result)
  after = contents(folder)
  assert {path: after.get(path) for path in before} == before
  # Free for the corrected command, which may need another config.
  if name != 'text that the tokenizer lacks':
    assert not (folder / 'run' / 'config.json').exists()


@pytest.mark.slow
def test_the_corrected_file_is_taken_in_the_same_workdir(tmp_path):
  arguments = write_job(tmp_path)
  train = tmp_path / 'data' / 'train.jsonl'
  whole = train.read_bytes()
  cut(tmp_path / 'data')
  (refused,) = run_all([arguments])
  assert 'cut off in mid-record' in the_error(refused)
  train.write_bytes(whole)
  (done,) = run_all([arguments])
  assert done.returncode == 0, done.stderr


def test_bad_records_set_aside(tmp_path):
  """on_error='quarantine' goes on, and says what it left out."""
  arguments = write_job(tmp_path, "config.data.on_error = 'quarantine'")
  label_too_many(tmp_path / 'data')
  (done,) = run_all([arguments])
  assert done.returncode == 0, done.stderr
  assert '24 records: 23 chains, 46 ratings; 1 quarantined' in done.stdout
  side = tmp_path / 'run' / 'train.jsonl.quarantine.jsonl'
  (row,) = map(json.loads, side.read_text().splitlines())
  assert row['line'] == 5
  assert json.loads(row['raw'])['id'] == train_records()[4]['id']
