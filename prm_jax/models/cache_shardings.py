"""Where what grows token by token lives on the mesh: parameters and caches."""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.models import TransformerConfig
from prm_jax.runtime.sharding import BATCH, fitting_axes, shardings


def decoding_shardings(
  params: Any, config: TransformerConfig, mesh: Mesh
) -> Any:
  """Where the unstacked form of stacked parameters lives.

  Split over `model` only: split over `fsdp` too, they would have to be gathered
  for every token.
  """

  def of(placed: NamedSharding, skip: int) -> NamedSharding:
    spec = [None if axis == 'fsdp' else axis for axis in placed.spec]
    return NamedSharding(mesh, P(*spec[skip:]))

  placed = shardings(params, mesh)
  layer = jax.tree.map(lambda s: of(s, 1), placed.pop('layers'))
  others = jax.tree.map(lambda s: of(s, 0), placed)
  return others | {'layers': (layer,) * config.n_layers}


def cache_sharding(
  config: TransformerConfig, rows: int, mesh: Mesh
) -> NamedSharding:
  """Rows over the data-parallel devices, key heads over `model`."""
  with jax.set_mesh(mesh):
    spec = fitting_axes((rows, config.n_kv_heads), (BATCH, 'model'))
  return NamedSharding(mesh, P(*spec))


def pool_sharding(config: TransformerConfig, mesh: Mesh) -> NamedSharding:
  """Of a `prefix_store.Pool`: key heads over `model`, else whole everywhere.

  A chain may go on in any row, so on any device: to gather is local then, and
  what is sent is the new tokens alone.
  """
  with jax.set_mesh(mesh):
    (heads,) = fitting_axes((config.n_kv_heads,), ('model',))
  return NamedSharding(mesh, P(None, None, heads))
