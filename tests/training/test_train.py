"""The train step and the loop: microbatches, non-finite steps, meshes."""

import json
import os
import subprocess
import sys

import grain
import jax
import numpy as np
import optax
import pytest

from prm_jax.models import HeadConfig
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.loop import (
  TrainConfig,
  TrainingRun,
  compile_train_step,
  fit,
  make_train_step,
)
from prm_jax.training.objective import LossConfig, ObjectiveConfig
from prm_jax.training.optim import make_schedule
from prm_jax.training.train_state import init_state, make_init
from tests.shared import tiny_training
from tests.shared.command_line import ROOT

pytestmark = pytest.mark.once

ONE, MESHES = '1,1,1,1', ('2,4,1,1', '1,4,2,1', '2,2,2,2', '1,2,4,1')


@pytest.mark.parametrize('loss', ['bce', 'ranking'])
def test_microbatches_add_up_to_the_batch(loss):
  """Rows have different numbers of labels, so a mean of means would differ.

  Plain gradient descent makes the update the gradient; AdamW would amplify
  rounding where a gradient is almost 0.
  """
  sgd = optax.sgd(1.0)
  init = make_init(tiny_training.MODEL, HeadConfig(), sgd)
  state = jax.jit(init)(jax.random.key(0))
  updates, metrics = {}, {}
  counts = (1, 4) if loss == 'bce' else (1, 2)
  for parts in counts:
    step = make_train_step(
      ObjectiveConfig(
        tiny_training.MODEL, HeadConfig(), LossConfig(loss, lm_weight=0.5)
      ),
      sgd,
      optax.constant_schedule(1.0),
      parts,
    )
    step = jax.jit(step)
    after, metrics[parts] = step(state, tiny_training.batch(1))
    updates[parts] = jax.tree.map(np.subtract, after.params, state.params)
  # float32 rounds at 6e-8; a wrongly weighted microbatch changes a tenth.
  for parts in counts[1:]:
    apart = optax.tree.norm(optax.tree.sub(updates[parts], updates[1]))
    assert apart < 1e-6 * optax.tree.norm(updates[1])
    for name in ('loss', 'step_loss', 'lm_loss', 'grad_norm'):
      np.testing.assert_allclose(
        metrics[parts][name], metrics[1][name], rtol=1e-6
      )


BAD = {'nan': np.nan, 'inf': np.inf}


def batches(bad_steps: tuple[int, ...], kind: str, steps: int) -> list[dict]:
  """One batch per step; `bad_steps` have a label that is not finite."""
  made = [tiny_training.batch(i) for i in range(1, steps + 1)]
  for step in bad_steps:
    labelled = np.argwhere(made[step - 1]['step_weights'] > 0)
    made[step - 1]['step_labels'][tuple(labelled[0])] = BAD[kind]
  return made


@pytest.fixture(scope='module')
def one_device():
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  state = init_state(tiny_training.init, mesh, seed=0)
  return mesh, compile_train_step(tiny_training.train_step(), state, mesh)


def run_fit(one_device, data: list[dict], limit: int, workdir):
  """Runs fit; returns the first state and the parameters after each step."""
  mesh, step_fn = one_device
  state = init_state(tiny_training.init, mesh, seed=0)
  start = jax.tree.map(np.array, state._replace(key=0))
  rated = []
  checkpoints = Checkpoints(workdir / 'checkpoints', len(data), '')
  config = TrainConfig(
    steps=len(data),
    log_every=1,
    checkpoint_every=1,
    keep=len(data),
    max_skipped_in_a_row=limit,
  )

  def evaluate(params):
    rated.append(jax.tree.map(np.array, params))
    return {}

  writer = MetricWriter(workdir, 0)
  iterator = iter(grain.MapDataset.source(data).to_iter_dataset())
  try:
    run = TrainingRun('test', config, mesh, workdir, checkpoints, writer)
    fit(run, step_fn, state, iterator, evaluate)
  finally:
    writer.close()
    checkpoints.close()
  return start, rated


def metrics_of(workdir) -> list[dict]:
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [line for line in map(json.loads, lines) if 'loss' in line]


def assert_equal_bits(a, b) -> None:
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize('kind', BAD)
def test_a_step_that_is_not_finite_changes_nothing(one_device, kind):
  mesh, step_fn = one_device
  good, bad = tiny_training.batch(0), batches((1,), kind, 1)[0]
  state = init_state(tiny_training.init, mesh, seed=0)
  with jax.set_mesh(mesh):
    state, _ = step_fn(state, good)
    before = jax.tree.map(np.array, state._replace(key=0))
    state, metrics = step_fn(state, bad)
    after = jax.tree.map(np.array, state._replace(key=0))
    again, good_metrics = step_fn(state, good)
  assert not np.isfinite(metrics['loss'])
  assert_equal_bits(after.params, before.params)
  assert_equal_bits(after.opt_state, before.opt_state)
  assert (after.step, after.skipped, after.skipped_in_a_row) == (2, 1, 1)
  assert (again.step, again.skipped, again.skipped_in_a_row) == (3, 1, 0)
  # The schedule counts updates, like the optimizer's own.
  schedule = make_schedule(tiny_training.OPTIM, tiny_training.TOTAL_STEPS)
  assert good_metrics['lr'] == schedule(1)


def test_skipped_steps_are_counted_and_a_good_one_resets(one_device, tmp_path):
  data = batches((2, 3, 5, 6), 'nan', 7)
  start, rated = run_fit(one_device, data, 3, tmp_path)
  assert [m['skipped'] for m in metrics_of(tmp_path)] == [0, 1, 2, 2, 3, 4, 4]
  in_a_row = [m['skipped_in_a_row'] for m in metrics_of(tmp_path)]
  assert in_a_row == [0, 1, 2, 0, 1, 2, 0]
  history = [start.params, *rated]
  for step in range(1, 8):
    same = all(
      np.array_equal(a, b)
      for a, b in zip(
        jax.tree.leaves(history[step - 1]),
        jax.tree.leaves(history[step]),
        strict=True,
      )
    )
    assert same == (step in (2, 3, 5, 6)), step
  assert not list(tmp_path.glob('*.npz'))


@pytest.mark.parametrize('kind', BAD)
def test_too_many_skipped_steps_end_the_run(one_device, kind, tmp_path):
  data = batches((2, 4, 5, 6), kind, 8)
  with pytest.raises(UserError) as raised:
    run_fit(one_device, data, 3, tmp_path)
  assert '3 steps in a row' in str(raised.value)
  assert '\n' not in str(raised.value)
  (path,) = tmp_path.glob('*.npz')
  assert path.name == 'not_finite_step_6.npz'
  assert str(path) in str(raised.value)
  kept = np.load(path)
  assert sorted(kept) == sorted(data[5])
  for name, value in data[5].items():
    np.testing.assert_array_equal(kept[name], value, err_msg=name)


@pytest.fixture(scope='module')
def on_devices():
  """Losses, shards and scores on one device and on four meshes of eight."""
  done = subprocess.run(
    [sys.executable, '-m', 'tests.shared.run_on_devices', ONE, *MESHES],
    cwd=ROOT,
    # The emitter that other tests have makes loops of scatters, which are asked
    # for here.
    env=os.environ | {'XLA_FLAGS': '--xla_backend_optimization_level=0'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('mesh', MESHES)
def test_eight_devices_give_the_losses_of_one(on_devices, mesh):
  results, _ = on_devices
  losses = results[ONE]['losses']
  np.testing.assert_allclose(results[mesh]['losses'], losses, atol=1e-5, rtol=0)
  assert len(set(losses)) == len(losses)  # it did train


@pytest.mark.slow
def test_eight_devices_give_the_scores_of_one(on_devices):
  results, _ = on_devices
  scores = results[ONE]['scores']
  np.testing.assert_allclose(
    results[MESHES[-1]]['scores'], scores, atol=1e-5, rtol=0
  )
  assert 0 < min(scores) < max(scores) < 1


# V 110, L 2, D 32, F 64, N 4, K 2, H 8: what one device holds of each.
SHARD_SHAPES = {
  '2,4,1,1': {
    'embed_tokens': [110, 8],
    'q_proj/kernel': [2, 8, 4, 8],
    'k_proj/kernel': [2, 8, 2, 8],
    'o_proj/kernel': [2, 4, 8, 8],
    'gate_proj/kernel': [2, 8, 64],
    'down_proj/kernel': [2, 64, 8],
  },
  '1,4,2,1': {
    'embed_tokens': [55, 8],
    'q_proj/kernel': [2, 8, 2, 8],
    'k_proj/kernel': [2, 8, 1, 8],
    'o_proj/kernel': [2, 2, 8, 8],
    'gate_proj/kernel': [2, 8, 32],
    'down_proj/kernel': [2, 32, 8],
  },
  '2,2,2,2': {
    'embed_tokens': [55, 16],
    'q_proj/kernel': [2, 16, 2, 8],
    'k_proj/kernel': [2, 16, 1, 8],
    'o_proj/kernel': [2, 2, 8, 16],
    'gate_proj/kernel': [2, 16, 32],
    'down_proj/kernel': [2, 32, 16],
  },
  # 110 tokens and 2 key heads do not divide by 4.
  '1,2,4,1': {
    'embed_tokens': [110, 16],
    'q_proj/kernel': [2, 16, 1, 8],
    'k_proj/kernel': [2, 16, 2, 8],
    'o_proj/kernel': [2, 1, 8, 16],
    'gate_proj/kernel': [2, 16, 16],
    'down_proj/kernel': [2, 16, 16],
  },
}


@pytest.mark.slow
@pytest.mark.parametrize('mesh', MESHES)
def test_parameters_and_moments_are_split(on_devices, mesh):
  shards = on_devices[0][mesh]['shards']
  for name, part in SHARD_SHAPES[mesh].items():
    arrays = [path for path in shards if path.endswith(name)]
    assert len(arrays) == 3  # the parameter, and AdamW's mu and nu
    for path in arrays:
      assert shards[path][1] == [part] * 8, path
  whole = sum(np.prod(shape) for shape, _ in shards.values())
  held = sum(np.prod(parts[0]) for _, parts in shards.values())
  assert held < whole / 3  # norms and the head are on every device


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [m for m in MESHES if m.split(',')[2] != '1'])
def test_no_device_computes_with_the_kernels_of_others(on_devices, mesh):
  """Products, and what is exchanged, have a part of the feed-forward units."""
  made = on_devices[0][mesh]['made']
  used = [size for name in made if name != 'scatter' for size in made[name]]
  assert used and not [sizes for sizes in used if 64 in sizes]


@pytest.mark.slow
@pytest.mark.parametrize('mesh', MESHES)
def test_gradients_of_words_are_added_up_where_they_are_kept(on_devices, mesh):
  assert (
    SHARD_SHAPES[mesh]['embed_tokens'] in on_devices[0][mesh]['made']['scatter']
  )
  assert [110, 32] not in on_devices[0][mesh]['made']['scatter']


@pytest.mark.slow
@pytest.mark.parametrize('mesh', MESHES)
def test_between_layers_a_device_keeps_its_part_of_the_tokens(on_devices, mesh):
  """Of 16 rows of 24 tokens; it is what most memory of a long row is for."""
  replica, fsdp, model, _ = map(int, mesh.split(','))
  rows, kept = 16 // (replica * fsdp), on_devices[0][mesh]['kept']
  assert [3, rows, 24 // model, 32] in kept
  assert model == 1 or [3, rows, 24, 32] not in kept


@pytest.mark.slow
def test_no_activation_is_copied_to_every_device(on_devices):
  assert 'rematerialization' not in on_devices[1]
