"""Makes the mesh of a job whose processes work on items of their own."""

import jax
from jax.sharding import Mesh

from prm_jax.jobs.settings.shared import MeshConfig
from prm_jax.runtime.sharding import make_mesh


def own_mesh(config: MeshConfig) -> Mesh:
  """Makes a mesh of the devices of this process.

  Sampling, labelling and searching share out their items over processes, and
  each process asks models of its own. So a model has to fit the devices of one
  process.

  Raises:
    UserError: the mesh does not fit them.
  """
  return make_mesh(config.shape, jax.local_devices())
