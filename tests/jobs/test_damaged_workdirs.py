"""Files of a finished job that were deleted, emptied or cut off.

What can be made again is, without a word; what cannot ends in one line.
"""

import itertools
import json
import pathlib
import shutil

import pytest

from prm_jax.data import builder, chain_sets
from prm_jax.report import write_report
from prm_jax.report.compare import read_run
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import is_done, write_json
from tests.shared.command_line import (
  SMALL,
  contents,
  copy_run,
  run_all,
  the_error,
)

JOBS = {
  'sample': ['--config=configs/sample_math.py:tiny'],
  'label': ['--config=configs/label_math.py:rollouts,tiny'],
  'search': ['--config=configs/search_math.py:beam,tiny'],
  'prm': SMALL,
  'policy': ['--config=configs/policy_math.py:tiny'],
}
# Made again from the journal or the checkpoint.
DERIVED = {
  'sample': ('results.json', 'ledger.json', 'chains.jsonl', 'data'),
  'label': ('results.json', 'ledger.json', 'chains.jsonl', 'data'),
  'search': (
    'results.json',
    'ledger.json',
    'chains.jsonl',
    'data',
    'trees.jsonl',
    'report.html',
  ),
  'prm': (
    'results.json',
    'step_scores.jsonl',
    'chains.jsonl',
    'data',
    'report.html',
  ),
  'policy': ('results.json', 'data'),
}
# They take seconds to be made again, so each file has one damage.
TRAINED = {'prm', 'policy'}
# Tells what the workdir is of: made again only where it was deleted.
CLAIMS = ('config.json', 'data.json')


def delete(path: pathlib.Path) -> None:
  shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty(path: pathlib.Path) -> None:
  if not path.is_dir():
    path.write_bytes(b'')
    return
  shutil.rmtree(path)
  path.mkdir()


def cut(path: pathlib.Path) -> None:
  if not path.is_dir():
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = (delete, empty, cut)


def kept(workdir: pathlib.Path) -> dict[str, bytes]:
  """All files but those that tell the time. No two ArrayRecords are alike."""
  found = {
    name: b'' if 'array_record' in name else text
    for name, text in contents(workdir).items()
    if not name.startswith(('checkpoints', 'journal'))
    and name not in ('metrics.jsonl', 'report.html', 'results.json')
  }
  document = json.loads((workdir / 'results.json').read_text())
  if made := document.get('dataset'):
    chains = chain_sets.read(str(workdir), 'x')
    assert builder.fingerprint(chains) == made['fingerprint']
  return found | {'results': json.dumps(document['results']).encode()}


@pytest.mark.job
@pytest.mark.parametrize(
  'name',
  ['sample', *(pytest.param(x, marks=pytest.mark.slow) for x in [*JOBS][1:])],
)
def test_a_damaged_workdir(name, tmp_path):
  whole = tmp_path / 'whole'
  (done,) = run_all([[*JOBS[name], f'--workdir={whole}']])
  assert done.returncode == 0, done.stderr
  files = (*DERIVED[name], *CLAIMS)
  every = [(file, damage) for file in files for damage in DAMAGE]
  if name in TRAINED:
    every = zip(files, itertools.cycle(DAMAGE), strict=False)
  cases = [
    (tmp_path / f'{damage.__name__} {file}', file, damage)
    for file, damage in every
  ]
  for folder, file, damage in cases:
    damage(copy_run(whole, folder) / file)
  ran = run_all([[*JOBS[name], f'--workdir={each[0]}'] for each in cases])
  for (folder, file, damage), result in zip(cases, ran, strict=True):
    if file in CLAIMS and damage is not delete:
      error = the_error(result)
      assert f'{folder / file} is no JSON' in error
      assert 'delete it, and the command of its job writes it again' in error
      continue
    assert result.returncode == 0, f'{folder}: {result.stderr}'
    assert kept(folder) == kept(whole), folder


READERS = {
  'chains of a workdir': lambda folder: chain_sets.read(str(folder), 'x'),
  'report': write_report,
  'comparison': lambda folder: read_run(folder, 'x'),
}


@pytest.mark.parametrize('name', READERS)
@pytest.mark.parametrize(
  ('text', 'why'), [('', 'it is empty'), ('{"manifest": {', 'Expecting')]
)
def test_results_that_are_broken(tmp_path, name, text, why):
  (tmp_path / 'results.json').write_text(text)
  with pytest.raises(UserError) as error:
    READERS[name](tmp_path)
  line = str(error.value)
  assert line.startswith(f'{tmp_path / "results.json"} is no JSON ({why}')
  assert line.endswith('; the command of its job writes it again')
  assert not is_done(tmp_path)


def test_done_is_what_has_its_chains(tmp_path):
  assert not is_done(tmp_path)
  write_json(tmp_path / 'results.json', {'results': {}})
  assert is_done(tmp_path)
  made = {'results': {}, 'dataset': {'name': 'labels_1'}}
  write_json(tmp_path / 'results.json', made)
  assert not is_done(tmp_path)
  (tmp_path / 'data' / 'labels_1').mkdir(parents=True)
  assert is_done(tmp_path)


@pytest.mark.parametrize('made', [{}, [], 3, {'name': 3}, {'name': '../x'}])
def test_results_with_other_chains_are_not_done(tmp_path, made):
  write_json(tmp_path / 'results.json', {'results': {}, 'dataset': made})
  assert not is_done(tmp_path)
  with pytest.raises(UserError, match=r'holds no results\.json with chains'):
    chain_sets.read(str(tmp_path), 'x')
