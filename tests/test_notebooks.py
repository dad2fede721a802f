"""The notebooks as they are kept; CI runs them (`pytest --nbmake colab`)."""

import json

import pytest

from tests.command_line import ROOT

NOTEBOOKS = sorted((ROOT / 'colab').glob('*.ipynb'))


def cells_of(path):
  """(kind, text) of each cell."""
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


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_command_that_fails_fails_the_notebook(path):
  """After `!` it would not."""
  for kind, text in cells_of(path)[2:]:
    assert kind != 'code' or not text.startswith('!')
    if kind == 'code' and 'python -m' in text:
      assert text.startswith('%%bash\nset -e\n'), text
