"""Checkpoints keep every bit, and damage to them is one line."""

import json
import os
import pathlib
import re
import shutil

import grain
import jax
import numpy as np
import pytest

import prm_jax
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.train_state import abstract_state, init_state
from tests.shared import command_line, tiny_training
from tests.shared.command_line import LONG, contents, copy_run, the_error
from tests.shared.saved_runs import load_state, saved_steps


@pytest.fixture(scope='module')
def mesh():
  return make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])


@pytest.fixture(scope='module')
def first_state(mesh):
  return init_state(tiny_training.init, mesh, seed=3)


def numbers():
  return iter(grain.MapDataset.range(100).to_iter_dataset())


def bits(tree) -> list[bytes]:
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def key_bits(state):
  return state._replace(key=jax.random.key_data(state.key))


def test_restores_bits_key_and_the_next_batch(mesh, first_state, tmp_path):
  checkpoints = Checkpoints(tmp_path, 2, '')
  data = numbers()
  for _ in range(7):
    next(data)
  state = first_state._replace(step=first_state.step + 7)
  checkpoints.save(7, state, data, {})
  for _ in range(5):  # while the save goes on in the background
    next(data)
  checkpoints.close()

  opened, fresh = Checkpoints(tmp_path, 2, ''), numbers()
  restored = opened.restore(abstract_state(tiny_training.init, mesh), fresh)
  opened.close()
  assert bits(key_bits(restored)) == bits(key_bits(state))
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  assert jax.random.uniform(restored.key) == jax.random.uniform(state.key)
  assert next(fresh) == 7


def test_a_prm_beside_a_policy(mesh, first_state, tmp_path):
  """Both states are restored, and readers load the policy's parameters."""
  other = init_state(tiny_training.init, mesh, seed=4)
  checkpoints = Checkpoints(tmp_path, 2, '')
  checkpoints.save(1, first_state, numbers(), {}, other)
  checkpoints.close()
  opened = Checkpoints(tmp_path, 2, '')
  abstract = abstract_state(tiny_training.init, mesh)
  for expected, restored in (
    (first_state, opened.restore(abstract, numbers())),
    (other, opened.restore_prm(abstract)),
  ):
    assert bits(key_bits(restored)) == bits(key_bits(expected))
  params = opened.load_params(abstract.params, 1)
  opened.close()
  assert bits(params) == bits(first_state.params) != bits(other.params)


def test_donating_the_state_does_not_change_a_running_save(mesh, tmp_path):
  """The next step overwrites the buffers while the save still runs."""
  state = init_state(tiny_training.init, mesh, seed=5)
  overwrite = jax.jit(
    lambda state: jax.tree.map(
      lambda x: x if x.dtype == state.key.dtype else x * 0 - 1, state
    ),
    donate_argnums=0,
  )
  expected = bits(state.params)
  checkpoints = Checkpoints(tmp_path, 3, '')
  checkpoints.save(1, state, numbers(), {})
  state = overwrite(state)
  jax.block_until_ready(state.params)
  checkpoints.close()
  saved = checkpoints.load_params(state.params, 1)
  assert bits(saved) == expected != bits(state.params)


def test_many_saves_leave_no_open_files(first_state, tmp_path):
  """Orbax ends the thread of a save when it is asked how that went."""
  checkpoints = Checkpoints(tmp_path, 1, '')
  found = []
  for step in range(1, 13):
    checkpoints.save(step, first_state, numbers(), {})
    found.append(len(os.listdir('/proc/self/fd')))
  checkpoints.close()
  assert max(found[-3:]) <= found[3] + 12, found
  assert len(os.listdir('/proc/self/fd')) <= found[0]


def save_rated(folder, first_state, rated: list[dict]) -> Checkpoints:
  checkpoints = Checkpoints(folder, 2, 'eval/auc')
  for step, metrics in enumerate(rated, 1):
    checkpoints.save(step, first_state, numbers(), metrics)
  checkpoints.close()
  return checkpoints


@pytest.mark.parametrize(
  ('aucs', 'best', 'kept'),
  [
    ([0.9, 0.5, 0.6, 0.7], 1, ['1', '3', '4']),
    ([0.5, 0.9, 0.9, 0.7], 3, ['3', '4']),  # the later of equals
    ([0.5, 0.6, 0.7, 0.8], 4, ['3', '4']),
    ([None, 0.6, None, None], 2, ['2', '3', '4']),  # stopped by SIGTERM
    ([None, None, None], 3, ['2', '3']),  # without metrics the latest
  ],
)
def test_keeps_the_latest_and_the_best(aucs, best, kept, first_state, tmp_path):
  rated = [{'eval/brier': 0.1} | ({'eval/auc': a} if a else {}) for a in aucs]
  checkpoints = save_rated(tmp_path, first_state, rated)
  assert (checkpoints.best, checkpoints.latest) == (best, len(aucs))
  assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == kept
  opened = Checkpoints(tmp_path, 2, 'eval/auc')
  assert (opened.best, opened.latest) == (best, len(aucs))
  opened.close()


def test_reading_leaves_a_save_in_progress_alone(
  finished, first_state, tmp_path
):
  """`prm_jax.load` beside a run that is writing; only a run cleans up."""
  workdir = copy_run(finished, tmp_path / 'run')
  part = workdir / 'checkpoints' / '64.orbax-checkpoint-tmp'
  (part / 'params').mkdir(parents=True)
  prm_jax.load(workdir)
  assert (part / 'params').exists()
  writing = Checkpoints(workdir / 'checkpoints', 2, '')
  writing.save(64, first_state, numbers(), {})
  writing.close()
  assert not part.exists()
  assert writing.latest == 64


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


DAMAGES = {
  delete_position: 'the position of the input is missing',
  cut_position: 'shard_0-of-1.json is not what was written',
  put_in_other_model: 'params: ',
  flip_a_bit: 'rest: opt_state/.* is not what was written',
  change_metrics: 'its metrics are not what was written',
  cut_metrics: 'its metrics are not what was written',
  delete_metadata: 'params: .*_METADATA',
  delete_optimizer: 'rest: ',
}


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
  finished, tmp_path
):
  """To the bits of a run that nothing was damaged of."""
  runs = []
  for damage in DAMAGES:
    runs.append(copy_run(finished, tmp_path / damage.__name__ / 'run'))
    damage(runs[-1] / 'checkpoints' / '60')
  damaged = [contents(run / 'checkpoints' / '60') for run in runs]
  before = saved_steps(finished)[-2]
  ran = command_line.run_all([[*LONG, f'--workdir={run}'] for run in runs])
  for run, was, why, done in zip(
    runs, damaged, DAMAGES.values(), ran, strict=True
  ):
    assert done.returncode == 0, done.stderr
    assert re.search(
      rf'checkpoint {run}/checkpoints/60 is damaged \({why}.*\); it is '
      rf'{run}/damaged_60 now',
      done.stdout,
    ), done.stdout
    assert f'resuming from step {before}' in done.stdout
    assert contents(run / 'damaged_60') == was
    ours, theirs = load_state(run), load_state(finished)
    assert bits(ours) == bits(theirs)


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
