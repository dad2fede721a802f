"""Runs hostile programs in the sandbox, up to fifty at once.

    random programs -> `tests/data/verify/outside.py`, as root or an ordinary
      user -> how each ended, and what it left behind

Each ends as it should, or at its time limit where the machine is busy, and none
reads a secret or reaches anything outside. When they have ended there is no
process, mount or open descriptor of theirs, no file in the folder for temporary
ones, and no control group.
"""

import json
import os
import pathlib
import sys
import tempfile
import time
from unittest import mock

import numpy as np

from tests.campaigns.answer_forms import pick
from tests.campaigns.campaign import Campaign, run
from tests.data.verify.isolation import REFUSED, outside
from tests.data.verify.outside import PROGRAMS, SECRET

GROUPS = (1, 1, 2, 5, 10, 20, 50)
MOST_SECONDS = 300  # of a group, on a busy machine
GONE_SECONDS = 30  # in which another job's control group goes, too


def control_groups() -> set[pathlib.Path]:
  """Returns the control groups of all sandboxes on this machine."""
  return set(pathlib.Path('/sys/fs/cgroup').rglob('prm_jax_*'))


def check_groups_go(before: set[pathlib.Path]) -> None:
  """Checks that no control group is left, but those of other jobs."""
  left = control_groups() - before
  until = time.monotonic() + GONE_SECONDS
  while left and time.monotonic() < until:
    time.sleep(0.2)
    left &= control_groups()
  assert not left, left


def case(rng: np.random.Generator) -> int:
  """Runs a group of programs; returns how many."""
  names = [*PROGRAMS]
  count = min(pick(rng, GROUPS), len(names))
  chosen = [names[i] for i in rng.choice(len(names), count, replace=False)]
  user, before = pick(rng, ('root', 'ordinary')), control_groups()
  with tempfile.TemporaryDirectory(prefix='prm_jax_hostile_') as folder:
    os.chmod(folder, 0o777)
    with (
      mock.patch.dict(os.environ, TMPDIR=folder),
      outside(user, 'together', *chosen) as process,
    ):
      output, _ = process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 0, chosen
    left = os.listdir(folder)
  assert not left, (chosen, left)
  assert not os.path.exists('/tmp/escaped'), chosen
  check_groups_go(before)
  results = json.loads(output)['results']
  assert results.pop('seen') == [], chosen
  for name, result in results.items():
    program = PROGRAMS[name]
    assert result['outcome'] in (program.outcome, 'timed out'), (name, result)
    if result['outcome'] != 'timed out':
      assert result['exit_code'] == program.code, (name, result)
    assert SECRET not in result['output'], name
  return count


# With more than one group at a time, one would see the other's processes.
CAMPAIGN = Campaign('hostile', 'hostile programs', 1_000, case, jobs=1)
if __name__ == '__main__':
  if REFUSED:
    print(f'hostile: {REFUSED}')
    sys.exit()
  run(CAMPAIGN)
