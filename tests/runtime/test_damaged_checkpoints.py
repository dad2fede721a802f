"""A damaged checkpoint is one line, or a run goes on from the one before."""

import errno
import json
import os
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest

import prm_jax
from prm_jax.runtime import seals
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.train_state import abstract_state, init_state
from tests.shared import command_line, tiny_training
from tests.shared.command_line import LONG, contents, copy_run, the_error
from tests.shared.saved_runs import load_state, saved_steps
from tests.shared.tiny_training import numbers


def bits(tree) -> list[bytes]:
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


# Ways to damage the last checkpoint.
def largest(part: pathlib.Path) -> pathlib.Path:
  return max(part.rglob('d/*'), key=lambda path: path.stat().st_size)


def cut(path: pathlib.Path) -> None:
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_array(step: pathlib.Path) -> None:
  cut(largest(step / 'params'))


def cut_moments(step: pathlib.Path) -> None:
  cut(largest(step / 'rest'))


def delete_array(step: pathlib.Path) -> None:
  largest(step / 'params').unlink()


def delete_metadata(step: pathlib.Path) -> None:
  (step / 'params' / '_METADATA').unlink()


def delete_position(step: pathlib.Path) -> None:
  (step / 'data' / 'shard_0-of-1.json').unlink()


def cut_position(step: pathlib.Path) -> None:
  cut(step / 'data' / 'shard_0-of-1.json')


def delete_optimizer(step: pathlib.Path) -> None:
  shutil.rmtree(step / 'rest')


def empty(step: pathlib.Path) -> None:
  shutil.rmtree(step)
  step.mkdir()


@pytest.fixture(scope='module')
def saved(first_state, tmp_path_factory):
  """A folder with one checkpoint, of step 60. Copy it."""
  folder = tmp_path_factory.mktemp('saved')
  checkpoints = Checkpoints(folder, 2, '')
  checkpoints.save(60, first_state, numbers(), {})
  checkpoints.close()
  return folder


def restore(folder, mesh):
  opened = Checkpoints(folder, 2, '')
  abstract = abstract_state(tiny_training.init, mesh)
  return opened.restore(abstract, numbers())


# Orbax leaves the reading of other parts behind when one fails.
abandoned = pytest.mark.filterwarnings(
  'ignore:coroutine:RuntimeWarning',
  'ignore::pytest.PytestUnraisableExceptionWarning',
)


@abandoned
@pytest.mark.parametrize(
  'damage',
  [
    cut_array,
    cut_moments,
    delete_array,
    delete_metadata,
    delete_optimizer,
    empty,
  ],
)
def test_damage_is_one_line_and_changes_no_file(saved, damage, mesh, tmp_path):
  folder = tmp_path / 'checkpoints'
  shutil.copytree(saved, folder)
  restore(folder, mesh)
  damage(folder / '60')
  before = contents(folder)
  with pytest.raises(UserError, match=f'{folder}/60 cannot be rest') as raised:
    restore(folder, mesh)
  assert 'delete that folder' in str(raised.value)
  assert '\n' not in str(raised.value)
  assert contents(folder) == before


def put_in_other_model(step: pathlib.Path) -> None:
  """The parts of another run's checkpoint, which are whole."""
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  state = init_state(tiny_training.init, mesh, seed=3)
  other = step.parents[2] / 'other'
  checkpoints = Checkpoints(other, 1, '')
  checkpoints.save(60, state, numbers(), {})
  checkpoints.close()
  for part in ('params', 'rest'):
    shutil.rmtree(step / part)
    shutil.copytree(other / '60' / part, step / part)


def flip_a_bit(step: pathlib.Path) -> None:
  path = largest(step / 'rest')
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(bytes(data))


def change_metrics(step: pathlib.Path) -> None:
  path = step / 'metrics' / 'metrics'
  path.write_text(path.read_text().replace('0.', '1.'))


def cut_metrics(step: pathlib.Path) -> None:
  cut(step / 'metrics' / 'metrics')


def delete_seal(step: pathlib.Path) -> None:
  shutil.rmtree(step / 'seal')


DAMAGES = {
  delete_seal: 'its seal is missing',
  delete_position: 'the position of the input is missing',
  cut_position: 'shard_0-of-1.json is not what was written',
  put_in_other_model: 'params: ',
  flip_a_bit: 'rest: opt_state/.* is not what was written',
  change_metrics: 'its metrics are not what was written',
  cut_metrics: 'its metrics are not what was written',
  delete_metadata: '.*params/_METADATA',
  delete_optimizer: '.*rest/_METADATA',
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_checkpoint_is_set_aside(finished, damage, tmp_path):
  run = copy_run(finished, tmp_path / 'run')
  damage(run / 'checkpoints' / '60')
  was = contents(run / 'checkpoints' / '60')
  lines = []
  seals.go_back_to_whole(run / 'checkpoints', lines.append)
  (line,) = lines
  assert re.fullmatch(
    rf'checkpoint {run}/checkpoints/60 is damaged \({DAMAGES[damage]}.*\); it '
    rf'is {run}/damaged_60 now, and the one before it is read',
    line,
  ), line
  assert contents(run / 'damaged_60') == was
  assert saved_steps(run) == saved_steps(finished)[:-1]


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
  finished, tmp_path
):
  """To the bits of a run that nothing was damaged of."""
  run = copy_run(finished, tmp_path / 'run')
  flip_a_bit(run / 'checkpoints' / '60')
  (done,) = command_line.run_all([[*LONG, f'--workdir={run}']])
  assert done.returncode == 0, done.stderr
  assert f'it is {run}/damaged_60 now' in done.stdout
  assert f'resuming from step {saved_steps(finished)[-2]}' in done.stdout
  ours, theirs = load_state(run), load_state(finished)
  assert bits(ours) == bits(theirs)


@pytest.mark.parametrize(
  'error',
  [
    OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    ValueError('UNAVAILABLE: CURL error; reading gs://bucket/run'),
    ValueError(f'reading x: {os.strerror(errno.EIO)}'),
    MemoryError(),
  ],
)
def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(
  finished, error, tmp_path, monkeypatch
):
  folder = copy_run(finished, tmp_path / 'run') / 'checkpoints'

  def fail(*_: object) -> None:
    raise error

  monkeypatch.setattr(seals, 'check_arrays', fail)
  with pytest.raises(UserError, match=r'60 cannot be read .* command again'):
    seals.go_back_to_whole(folder, print)
  assert saved_steps(folder.parent) == saved_steps(finished)


def test_a_checkpoint_of_an_earlier_version_is_taken_as_it_is(
  finished, tmp_path
):
  """It has neither sums nor a sealed position."""
  run = copy_run(finished, tmp_path / 'run')
  last = run / 'checkpoints' / '60'
  shutil.rmtree(last / 'seal')
  about = last / '_CHECKPOINT_METADATA'
  known = json.loads(about.read_text())
  del known['item_handlers']['seal']
  about.write_text(json.dumps(known))
  position = last / 'data' / 'shard_0-of-1.json'
  position.write_text(json.dumps(seals.unseal(position)))
  (done,) = command_line.run_all([[*LONG, f'--workdir={run}']])
  assert done.returncode == 0, done.stderr
  assert 'resuming from step 60' in done.stdout
  assert 'damaged' not in done.stdout


def test_a_run_without_a_whole_checkpoint_stops(finished, tmp_path):
  run = copy_run(finished, tmp_path / 'run')
  steps = saved_steps(run)
  for step in steps:
    delete_position(run / 'checkpoints' / str(step))
  (ran,) = command_line.run_all([[*LONG, f'--workdir={run}']])
  assert the_error(ran).endswith(
    f'checkpoint {run}/checkpoints/{steps[0]} is damaged (the position of the '
    'input is missing), and there is no whole one; delete that folder to begin '
    'anew'
  )
  moved = [path.name for path in run.glob('damaged_*')]
  assert sorted(moved) == sorted(f'damaged_{step}' for step in steps[1:])


def test_a_damaged_model_is_not_scored_with(finished, tmp_path):
  run = copy_run(finished, tmp_path / 'run')
  path = largest(run / 'checkpoints' / '60' / 'params')
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(bytes(data))
  with pytest.raises(UserError, match=r'60 cannot .* is not what was written'):
    prm_jax.load(run, step=60)
  delete_metadata(run / 'checkpoints' / '60')
  with pytest.raises(UserError, match='60 cannot be restored'):
    prm_jax.load(run, step=60)


def test_deleting_a_damaged_checkpoint_works(finished, tmp_path):
  """As the error says; the run repeats the steps after the one before it."""
  workdir = copy_run(finished, tmp_path / 'run')
  folder = workdir / 'checkpoints'
  steps = sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())
  shutil.rmtree(folder / '60')
  (done,) = command_line.run_all([[*LONG, f'--workdir={workdir}']])
  assert done.returncode == 0, done.stderr
  assert f'resuming from step {steps[-2]}' in done.stdout
  for name in ('chains.jsonl', 'config.json'):
    assert (workdir / name).read_bytes() == (finished / name).read_bytes()
  ours, theirs = (
    json.loads((w / 'results.json').read_text())['results']
    for w in (workdir, finished)
  )
  assert ours == theirs


def test_damaged_metrics_name_the_folder(finished, tmp_path):
  folder = tmp_path / 'checkpoints'
  shutil.copytree(finished / 'checkpoints', folder)
  (folder / '60' / 'metrics' / 'metrics').write_text('{"eval')
  with pytest.raises(UserError, match=f'checkpoints in {folder}') as raised:
    Checkpoints(folder, 2, 'eval/auc')
  assert '\n' not in str(raised.value)
