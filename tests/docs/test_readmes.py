"""The numbers of the experiments' READMEs are those of their results."""

import importlib.util
import json
import re
import sys

import pytest

from prm_jax.report.readme_table import MARK
from tests.shared.command_line import ROOT

pytest.importorskip('matplotlib', reason="needs 'prm_jax[experiments]'")

FOLDER = ROOT / 'experiments'
# Document of each run.py but those named like their folder's README.md.
SPEED = {
  'SAMPLING.md': ('sampling.py', 'sampling.json'),
  'TREE_SEARCH.md': ('tree_search.py', 'tree_search.json'),
  'RL.md': ('rl.py', 'rl.json'),
}
READMES = sorted(
  str(path.relative_to(FOLDER))
  for path in FOLDER.glob('*/*.md')
  if MARK in path.read_text()
)


def parts_of(name):
  """A README, the script that fills it, and the results it fills it from."""
  readme = FOLDER / name
  script, results = SPEED.get(readme.name, ('run.py', 'results.json'))
  return readme, readme.parent / script, readme.parent / results


def load_script(path, monkeypatch):
  """The module of a script, which may import what lies beside it."""
  monkeypatch.syspath_prepend(str(ROOT))
  monkeypatch.syspath_prepend(str(path.parent))
  name = f'script_{path.parent.name}_{path.stem}'
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  monkeypatch.setitem(sys.modules, name, module)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize('name', READMES)
def test_tables_are_made_of_the_results(name, monkeypatch):
  readme, script, results = parts_of(name)
  _, table, _ = readme.read_text().split(MARK)
  module = load_script(script, monkeypatch)
  assert table == f'{module.render(json.loads(results.read_text()))}\n'


# A share, a ratio, a gain or a time: what a results.json would hold.
MEASURED = re.compile(
  r'\d+\.\d|\d ?%|\dx\b|\d+ (times|points|percent|minutes|seconds|hours)'
)


@pytest.mark.parametrize('name', READMES)
def test_what_it_means_repeats_no_number(name):
  """It would not be made anew with the table."""
  text = (FOLDER / name).read_text()
  before, _, after = text.split(MARK)
  _, _, meaning = before.partition('## What it means')
  assert not MEASURED.search(meaning + after)


def test_the_first_command_takes_as_long_as_it_says():
  (told,) = re.findall(
    r'in less than (\d+) minutes', (ROOT / 'README.md').read_text()
  )
  document = json.loads((FOLDER / 'prm_vs_orm/results.json').read_text())
  seconds = [each['wall_seconds'] for each in document['manifests'].values()]
  assert max(seconds) < 60 * int(told)


def test_what_comes_out_again_is_made_of_its_record(monkeypatch):
  _, table, _ = (FOLDER / 'AGAIN.md').read_text().split(MARK)
  record = json.loads((FOLDER / 'again.json').read_text())
  module = load_script(FOLDER / 'run_all.py', monkeypatch)
  assert table == f'{module.render(record)}\n'


def test_verdicts_are_made_of_the_results(monkeypatch):
  _, table, _ = (FOLDER / 'README.md').read_text().split(MARK)
  module = load_script(FOLDER / 'claims.py', monkeypatch)
  folders = {path.parent.name for path in FOLDER.glob('*/claims.py')}
  assert folders == set(module.FOLDERS)
  assert table == f'{module.render()}\n'
