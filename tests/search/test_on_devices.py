"""A model searches the same in any grouping and on any number of devices."""

import pytest

from tests.shared.command_line import run_module


@pytest.mark.slow
def test_grouping_and_devices_do_not_change_what_is_chosen():
  first, *others = run_module('tests.shared.search_on_devices').values()
  assert len(others) == 2
  for found in others:
    assert found == first
  # Some of the trees are beams that grew for several rounds.
  assert max(map(len, filter(None, first['trees']))) > 30
