"""The READMEs of the experiments say what their results say."""

import importlib
import json
import re

import pytest

from prm_jax.report.readme_table import MARK
from tests.shared.command_line import ROOT

pytest.importorskip('matplotlib', reason="needs 'prm_jax[experiments]'")

FOLDER = ROOT / 'experiments'
READMES = sorted(
  str(path.relative_to(FOLDER))
  for path in FOLDER.glob('*/*.md')
  if MARK in path.read_text()
  # Its results are those of chips, and there may be none.
  and path.parent.name != 'accelerator'
)


def table_of(path):
  """Returns the text between the two marks of a README."""
  _, table, _ = path.read_text().split(MARK)
  return table


@pytest.mark.parametrize('name', READMES)
def test_tables_are_made_of_the_results(name):
  readme = FOLDER / name
  stem = readme.stem.lower()
  script, results = stem, f'{stem}.json'
  if stem == 'readme':
    script, results = 'run', 'results.json'
  module = importlib.import_module(f'experiments.{readme.parent.name}.{script}')
  document = json.loads((readme.parent / results).read_text())
  assert table_of(readme) == f'{module.render(document)}\n'
  assert f'python -m {module.__name__}' in readme.read_text()


def test_the_figure_of_the_readme_is_made_of_the_results():
  module = importlib.import_module('experiments.prm_vs_orm.run')
  folder = FOLDER / 'prm_vs_orm'
  document = json.loads((folder / 'results.json').read_text())
  assert (folder / 'figure.svg').read_text() == module.draw(document)


# A share, a ratio, a gain or a time, which a results.json would hold.
MEASURED = re.compile(
  r'\d+\.\d|\d ?%|\dx\b|\d+ (times|points|percent|minutes|seconds|hours)'
)


@pytest.mark.parametrize('name', READMES)
def test_what_it_means_repeats_no_number(name):
  """Such a number would not be written anew together with the table."""
  text = (FOLDER / name).read_text()
  before, _, after = text.split(MARK)
  _, _, meaning = before.partition('## What it means')
  assert not MEASURED.search(meaning + after)


def test_the_first_command_takes_as_long_as_it_says():
  (minutes,) = re.findall(
    r'in less than (\d+) minutes', (ROOT / 'README.md').read_text()
  )
  document = json.loads((FOLDER / 'prm_vs_orm/results.json').read_text())
  seconds = document['first_command']['manifest']['wall_seconds']
  assert seconds < 60 * int(minutes)


def test_what_was_repeated_is_made_of_its_record():
  """Why the others are not is the code's, and may change without a record."""
  module = importlib.import_module('experiments.run_all')
  record = json.loads((FOLDER / 'again.json').read_text())
  assert table_of(FOLDER / 'AGAIN.md') == f'{module.render(record)}\n'


def test_verdicts_are_made_of_the_results():
  module = importlib.import_module('experiments.claims')
  folders = {path.parent.name for path in FOLDER.glob('*/claims.py')}
  assert folders == set(module.FOLDERS)
  assert table_of(FOLDER / 'README.md') == f'{module.render()}\n'


def test_what_has_run_where_is_made_of_the_results():
  module = importlib.import_module('experiments.accelerator.keep')
  machines = module.kept()
  assert table_of(ROOT / 'README.md') == f'{module.where_table(machines)}\n'
  ours = table_of(FOLDER / 'accelerator/README.md')
  assert ours == f'{module.tables(machines)}\n'
