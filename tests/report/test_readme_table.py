"""A README keeps its prose and takes a new table."""

import pathlib

import pytest

from prm_jax.report.readme_table import MARK, fill

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_only_what_stands_between_the_marks_changes(tmp_path):
  readme = tmp_path / 'README.md'
  readme.write_text(f'before\n\n{MARK}| old |\n{MARK}\nafter\n')
  for table in ('| new |\n| - |', '| newer |'):
    fill(readme, table)
    assert readme.read_text() == (f'before\n\n{MARK}{table}\n{MARK}\nafter\n')


def test_a_readme_without_marks_stays_as_it_is(tmp_path):
  readme = tmp_path / 'README.md'
  readme.write_text('prose')
  with pytest.raises(ValueError, match='unpack'):
    fill(readme, 'table')
  assert readme.read_text() == 'prose'


def test_every_experiment_has_a_place_for_its_table():
  for run in sorted((ROOT / 'experiments').glob('*/run.py')):
    assert (run.parent / 'README.md').read_text().count(MARK) == 2
