"""Runs are opened, and named by their parameters, wherever they lie."""

import shutil

import pytest

from prm_jax.inference import loading


def without_the_rest(run, to):
  """A copy of what `docs/training.md` says a run's folder needs."""
  to.mkdir()
  shutil.copy(run / 'model.json', to)
  shutil.copytree(run / 'checkpoints', to / 'checkpoints')
  return to


@pytest.mark.parametrize('folder', ['moved', 'moved/orm'])
def test_a_run_may_lie_anywhere_and_keeps_its_name(
  finished, tmp_path, monkeypatch, folder
):
  (tmp_path / folder).parent.mkdir(exist_ok=True)
  moved = without_the_rest(finished, tmp_path / folder)
  name = loading.load(finished).name
  assert loading.load(moved).name == name
  monkeypatch.chdir(moved)
  assert loading.load('.').name == name


def test_names_tell_parameters_apart(finished):
  steps = [int(path.name) for path in (finished / 'checkpoints').iterdir()]
  names = {loading.load(finished, step).name for step in steps}
  names |= {loading.load(finished, dtype='bfloat16').name}
  assert len(names) == len(steps) + 1 > 2
