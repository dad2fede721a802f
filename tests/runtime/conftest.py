"""What several tests of checkpoints begin with."""

import jax
import pytest

from prm_jax.runtime.sharding import make_mesh
from prm_jax.training.train_state import init_state
from tests.shared import tiny_training


@pytest.fixture(scope='module')
def mesh():
  return make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])


@pytest.fixture(scope='module')
def first_state(mesh):
  return init_state(tiny_training.init, mesh, seed=3)
