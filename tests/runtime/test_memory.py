"""Memory on the devices when a run loads its best checkpoint."""

import dataclasses

import jax
import pytest

from prm_jax.jobs.settings import read_settings
from prm_jax.jobs.training import open_job, train_best
from prm_jax.models import LoraConfig
from prm_jax.runtime.checkpoints import Checkpoints
from prm_jax.runtime.workdir import Workdir
from tests.shared import configs


def open_tiny(path, **values):
  """A tiny PRM job with some values changed, and its workdir."""
  raw = configs.raw('prm_math', 'tiny', **values)
  workdir = Workdir.open(path, raw, {})
  return open_job(read_settings(raw), workdir, lambda text: None), workdir


def on_devices() -> int:
  """Bytes of all live arrays."""
  return sum(x.nbytes for x in jax.live_arrays())


@pytest.mark.slow
@pytest.mark.parametrize('steps', [2, 0], ids=['trained', 'started again'])
def test_the_last_state_is_freed_before_the_best_is_read(
  tmp_path, monkeypatch, steps
):
  values = {'orm_baseline': False, 'train.steps': 2}
  job, workdir = open_tiny(tmp_path, **values, **{'train.checkpoint_every': 1})

  def train():
    return train_best('prm', job, workdir, lambda params: {}, lambda text: None)

  if not steps:
    train()
  seen = []
  read = Checkpoints.load_params

  def watched(*args):
    seen.append(on_devices() - before)
    return read(*args)

  monkeypatch.setattr(Checkpoints, 'load_params', watched)
  before = on_devices()
  best = train()
  size = sum(x.nbytes for x in jax.tree.leaves(best))
  assert seen[0] < 0.1 * size
  assert on_devices() - before < 1.1 * size


def test_merged_adapters_take_the_memory_of_the_backbone(tmp_path):
  job, _ = open_tiny(tmp_path)
  described = job.model.described

  described = dataclasses.replace(described, lora=LoraConfig(rank=2))
  shapes = described.abstract_params(job.mesh)
  params = jax.tree.map(lambda x: jax.numpy.ones(x.shape, x.dtype), shapes)
  kernel = params['backbone']['layers']['mlp']['up_proj']['kernel']
  kept = described.merged(params)
  assert not kernel.is_deleted()
  given = described.merged(params, give_away=True)
  assert kernel.is_deleted()
  jax.tree.map(
    lambda a, b: (a == b).all() or pytest.fail('another value'), kept, given
  )
