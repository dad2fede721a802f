"""Checkpoints keep every bit, also while the next step goes on."""

import os

import jax
import numpy as np
import pytest

import prm_jax
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.training.train_state import abstract_state, init_state
from tests.shared import tiny_training
from tests.shared.command_line import copy_run
from tests.shared.tiny_training import numbers


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
  # A save that still runs has some ten open; a thread that stays has five.
  assert min(found[-4:]) <= min(found[:4]) + 12, found
  assert len(os.listdir('/proc/self/fd')) <= max(found[:4])


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


def test_a_step_of_a_run_that_has_saved_none(first_state, tmp_path):
  opened = Checkpoints(tmp_path, 2, '', writes=False)
  with pytest.raises(UserError, match=r'holds no checkpoint yet; train first$'):
    opened.load_params(first_state.params, 7)
  opened.close()


def test_a_step_that_was_not_kept_is_named_with_those_that_are(
  first_state, tmp_path
):
  save_rated(tmp_path, first_state, [{}, {}, {}])
  opened = Checkpoints(tmp_path, 2, '', writes=False)
  with pytest.raises(
    UserError, match=r'no checkpoint of step 7: expected one of 2, 3$'
  ):
    opened.load_params(first_state.params, 7)
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
