"""The reference shows the comments behind parameters and fields."""

import pytest

from tests.shared.command_line import ROOT

griffe = pytest.importorskip('griffe', reason="needs 'prm_jax[docs]'")

SOURCE = '''
"""A module."""
from typing import NamedTuple


class Rows(NamedTuple):
  """Packed.

  Attributes:
    tokens: ids.
  """

  mask: Array  # [B, T] bool
  tokens: Array  # [B, T]
  name: str

  def read(
    self,
    mask: Array,  # [T] of one row
  ) -> Array:  # [B]
    return mask


def read(
  rows: Rows,  # of B chains
  scores: Array = None,  # [B, P] in [0, 1]
  how: str = 'min',
) -> Array:  # [B]
  """Reads.

  Args:
    how: an aggregate.

  Raises:
    ValueError: never.
  """
  total: Array = None  # [B] is no parameter
  return total


def two(
  *rows: Array,
  x: Array,  # one of these:
  y: Array,  # [T]
) -> Array:  # [B, T]
  """Has words of its own.

  Args:
    *rows: any.

  Returns:
    A result that is told
    in two lines.
  """


def one(x: Array) -> Array:
  """Says nothing of shapes."""
'''


@pytest.fixture
def module(tmp_path):
  (tmp_path / 'shown.py').write_text(SOURCE)
  loader = griffe.GriffeLoader(
    extensions=griffe.load_extensions(str(ROOT / 'docs/shapes.py')),
    search_paths=[tmp_path],
    docstring_parser=griffe.Parser.google,
    docstring_options={'returns_multiple_items': False},  # as in mkdocs.yml
  )
  return loader.load('shown')


def rows(thing):
  return {
    each.kind.value: [(row.name, row.description) for row in each.value]
    for each in thing.docstring.parsed
    if each.kind.value in ('parameters', 'attributes', 'returns')
  }


def test_a_field_has_its_comment_and_what_the_docstring_says(module):
  assert rows(module['Rows']) == {
    'attributes': [('mask', '`[B, T]` bool'), ('tokens', '`[B, T]`; ids.')]
  }


def test_a_parameter_and_the_result_have_theirs(module):
  assert rows(module['read']) == {
    'parameters': [
      ('rows', 'of B chains'),
      ('scores', '`[B, P]` in `[0, 1]`'),
      ('how', 'an aggregate.'),
    ],
    'returns': [('', '`[B]`')],
  }
  kinds = [each.kind.value for each in module['read'].docstring.parsed]
  assert kinds == ['text', 'parameters', 'returns', 'raises']


def test_lines_of_a_description_stay_together(module):
  assert rows(module['two']) == {
    'parameters': [('x', 'one of these:'), ('y', '`[T]`'), ('*rows', 'any.')],
    'returns': [('', '`[B, T]`; A result that is told\nin two lines.')],
  }


def test_no_comment_no_table(module):
  assert rows(module['one']) == {}
