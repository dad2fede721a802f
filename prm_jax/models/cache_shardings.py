"""Shards decoding parameters, caches and the prefix pool.

Sampling and search place their arrays by these; training uses the table of
`runtime/sharding.py` alone.
"""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.models import TransformerConfig
from prm_jax.runtime.sharding import BATCH, fitting_axes, shardings


def decoding_shardings(
  params: Any, config: TransformerConfig, mesh: Mesh, spread: bool = False
) -> Any:
  """Returns the shardings of `unstack_layers`' result.

  Args:
    params: stacked, or their shapes.
    spread: whether parameters are split over `fsdp` as in training; otherwise
      over `model` only. See `decode`.
  """

  def decoding(sharding: NamedSharding, skip: int) -> NamedSharding:
    left_out = () if spread else ('fsdp',)
    spec = [None if axis in left_out else axis for axis in sharding.spec]
    return NamedSharding(mesh, P(*spec[skip:]))

  placed = shardings(params, mesh)
  layer = jax.tree.map(lambda s: decoding(s, 1), placed.pop('layers'))
  others = jax.tree.map(lambda s: decoding(s, 0), placed)
  return others | {'layers': (layer,) * config.n_layers}


def cache_sharding(
  config: TransformerConfig, rows: int, mesh: Mesh
) -> NamedSharding:
  """Splits a cache's rows over `replica` and `fsdp`, key heads over `model`."""
  with jax.set_mesh(mesh):
    spec = fitting_axes((rows, config.n_kv_heads), (BATCH, 'model'))
  return NamedSharding(mesh, P(*spec))


def pool_sharding(config: TransformerConfig, mesh: Mesh) -> NamedSharding:
  """Splits a `prefix_store.Pool` over `model` by key heads, and not otherwise.

  A chain may be continued in any row, so on any device. With all slots on every
  device a gather is local, and only new tokens are exchanged.
  """
  with jax.set_mesh(mesh):
    (heads,) = fitting_axes((config.n_kv_heads,), ('model',))
  return NamedSharding(mesh, P(None, None, heads))
