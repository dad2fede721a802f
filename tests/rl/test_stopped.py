"""A signal to stop leaves no checkpoint that changes which one is the best."""

import os
import signal
import types

import jax
import jax.numpy as jnp
import pytest

from prm_jax.jobs.rl import BEST_METRIC
from prm_jax.jobs.rl_problems import iterate_batches
from prm_jax.rl import loop
from prm_jax.rl.schedule import RlLoopConfig
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.metrics import MetricWriter
from prm_jax.runtime.sharding import flat_mesh
from prm_jax.runtime.stopping import Stopped
from prm_jax.training.train_state import TrainState

# Update -> accuracy; the first has the highest, and no checkpoint of its own.
ACCURACY = {0: 0.1, 1: 0.9, 2: 0.5, 3: 0.4, 4: 0.6}
CONFIG = RlLoopConfig(
  updates=4, problems=2, samples=2, evaluate_every=1, checkpoint_every=2
)


class NoChains:
  """Stands in for sampling: it draws the problems, and writes nothing."""

  ahead = 0

  def __init__(self, *args):
    self._data = args[5]

  def lend(self, params):
    return 0.0

  def next(self, params):
    next(self._data)
    rated = types.SimpleNamespace(episodes=[], metrics={})
    return types.SimpleNamespace(rated=rated, staleness=0)

  def close(self):
    pass


class Counts:
  """Learns nothing, and counts the updates."""

  def learn(self, state, rated, update):
    return state._replace(step=state.step + 1), {}, None


@pytest.fixture(autouse=True)
def without_chains(monkeypatch):
  monkeypatch.setattr(loop, 'Batches', NoChains)
  monkeypatch.setattr(loop, '_speed', lambda *_: {'tokens_per_second': 1.0})
  monkeypatch.setattr(loop, '_is_unscored', lambda _: False)
  metrics = {'accuracy': 0.0, 'steps': 0.0}
  monkeypatch.setattr(loop.diagnostics, 'batch_metrics', lambda *_: metrics)


def run(folder, stop_at=None):
  """Runs or resumes a loop; returns its best update."""
  checkpoints = Checkpoints(folder / 'checkpoints', 2, BEST_METRIC)
  data = iterate_batches(8, 2, 0)
  zero = jnp.int32(0)
  state = TrainState(zero, {'w': zero}, (), jax.random.key(0), zero, zero)
  if checkpoints.latest is not None:
    state = checkpoints.restore(
      jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        state,
      ),
      data,
    )

  def evaluate(update):
    if update == stop_at:
      os.kill(os.getpid(), signal.SIGTERM)
    return {BEST_METRIC: ACCURACY[update]}, False

  rater = types.SimpleNamespace(state=None, prm=None, rate=print)
  writer = MetricWriter(folder, checkpoints.latest or -1)
  try:
    loop.improve(
      loop.RlRun(CONFIG, flat_mesh(), folder, checkpoints, writer, evaluate),
      loop.Tools(None, rater, Counts(), lambda params: params),
      [None] * 8,
      state,
      data,
    )
  finally:
    writer.close()
  checkpoints.close()
  return checkpoints.best


def test_the_best_is_that_of_an_uninterrupted_run(tmp_path):
  for name in ('whole', 'cut'):
    (tmp_path / name).mkdir()
  assert run(tmp_path / 'whole') == 4
  with pytest.raises(Stopped):
    run(tmp_path / 'cut', stop_at=1)
  assert run(tmp_path / 'cut') == 4
