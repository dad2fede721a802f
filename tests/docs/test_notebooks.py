"""Checks the notebooks as text; CI runs them (`pytest --nbmake colab`)."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.shared.command_line import ROOT

NOTEBOOKS = sorted((ROOT / 'colab').glob('*.ipynb'))


def cells_of(path):
  """Returns (kind, text) of each cell."""
  return [
    (cell['cell_type'], ''.join(cell['source']))
    for cell in json.loads(path.read_text())['cells']
  ]


def test_there_are_five():
  assert [path.name[0] for path in NOTEBOOKS] == list('12345')


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_kept(path):
  for cell in json.loads(path.read_text())['cells']:
    assert not cell.get('outputs') and cell.get('execution_count') is None


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_installs(path):
  first, of_the_first = (
    next(text for kind, text in cells_of(each) if kind == 'code')
    for each in (path, NOTEBOOKS[0])
  )
  assert "'pip', 'install', '--quiet', '--editable', '.[experiments]'" in first
  assert first == of_the_first


@pytest.fixture
def repository(tmp_path):
  """A repository from which a notebook may clone the project."""
  folder = tmp_path / 'origin'
  shutil.copytree(ROOT / 'prm_jax', folder / 'prm_jax')
  shutil.copy(ROOT / 'pyproject.toml', folder)
  me = ('-c', 'user.name=test', '-c', 'user.email=test@localhost')
  for step in (
    ('init', '--quiet'),
    ('add', '.'),
    (*me, 'commit', '--quiet', '--message=all'),
  ):
    subprocess.run(['git', *step], cwd=folder, check=True)
  return folder


@pytest.mark.parametrize('place', ['elsewhere', 'colab', '.'])
def test_the_first_cell_finds_or_fetches_the_project(
  place, repository, tmp_path
):
  """The cell may also run twice, as after a restart."""
  _, cell = next(each for each in cells_of(NOTEBOOKS[0]) if each[0] == 'code')
  before, after = cell.split("'https://github.com/OWNER/prm_jax'")
  cell = f'{before}{str(repository)!r}{after}'
  where = tmp_path if place == 'elsewhere' else ROOT / place
  expected = tmp_path / 'checkout' if place == 'elsewhere' else ROOT
  script = f'{cell}\n{cell}\nimport prm_jax\nprint(prm_jax.__file__)'
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=where,
    check=True,
    capture_output=True,
    text=True,
    env=os.environ | {'RUNS': str(tmp_path)},
  )
  # Outside of a checkout the project that was fetched is imported.
  assert done.stdout.split()[-1] == str(expected / 'prm_jax/__init__.py')


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_command_that_fails_fails_the_notebook(path):
  """After `!` a failing command would go unnoticed, so cells use %%bash."""
  for kind, text in cells_of(path)[2:]:
    assert kind != 'code' or not text.startswith('!')
    if kind == 'code' and 'python -m' in text:
      assert text.startswith('%%bash\nset -e\n'), text
