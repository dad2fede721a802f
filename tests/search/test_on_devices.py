"""A model searches the same in any grouping and on any number of devices."""

import pytest

from tests.shared.command_line import run_module


@pytest.mark.slow
def test_what_is_chosen_depends_on_neither():
  first, *others = run_module('tests.shared.search_on_devices').values()
  assert len(others) == 2
  for found in others:
    assert found == first
  # Beams that were grown for several rounds are among them.
  assert max(map(len, filter(None, first['trees']))) > 30
