"""Traces of training steps: of a real run, and of one that ends early."""

import jax
import pytest

from prm_jax.runtime.errors import UserError
from prm_jax.runtime.profiling import Profile, ProfileConfig
from tests.shared.command_line import SMALL, run


def traced_steps(folder):
  """Reads the one trace in a folder: names of all events, recorded steps."""
  (path,) = folder.rglob('*.xplane.pb')
  names, steps = set(), []
  for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
    for line in plane.lines:
      for event in line.events:
        names.add(event.name)
        if event.name == 'train':
          steps.append(dict(event.stats)['step_num'])
  return names, steps


@pytest.mark.slow
def test_a_run_records_its_steps(tmp_path):
  done = run(
    *SMALL,
    '--config.profile.first_step=3',
    '--config.profile.steps=2',
    f'--workdir={tmp_path}',
  )
  assert done.returncode == 0, done.stderr
  folder = tmp_path / 'profile'
  assert f'xprof --logdir {folder}\n' in done.stdout
  names, steps = traced_steps(folder)
  assert steps == [3, 4]
  assert 'PjitFunction(train_step)' in names


@pytest.mark.slow
def test_a_run_that_ends_early_writes_what_there_is(tmp_path):
  with (
    pytest.raises(ZeroDivisionError),
    Profile(ProfileConfig(2, 5), tmp_path, lambda: None) as profile,
  ):
    for step in (1, 2, 3):
      assert profile.run(step, lambda x: 2 * x, step) == 2 * step
    profile.run(4, lambda: 1 / 0)
  assert traced_steps(tmp_path)[1] == [2, 3, 4]
  # The next trace can begin: this one is closed.
  with Profile(ProfileConfig(1, 1), tmp_path / 'b', lambda: None) as profile:
    profile.run(1, lambda: 0)
  assert traced_steps(tmp_path / 'b')[1] == [1]


@pytest.mark.parametrize('first, steps', [(0, 1), (5, 3), (9, 1)])
def test_steps_that_the_run_does_not_have(first, steps):
  with pytest.raises(UserError, match=r'among 1 to train\.steps=6'):
    ProfileConfig(first, steps).check(6)
  ProfileConfig(first, 0).check(6)
