"""A model searches the same in any grouping and on any number of devices."""

import json
import subprocess
import sys

import pytest

from tests.command_line import ROOT


@pytest.mark.slow
def test_what_is_chosen_depends_on_neither():
  done = subprocess.run(
    [sys.executable, '-m', 'tests.search_on_devices'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  first, *others = json.loads(done.stdout).values()
  assert len(others) == 2
  for found in others:
    assert found == first
  # Beams that were grown for several rounds are among them.
  assert max(map(len, filter(None, first['trees']))) > 30
