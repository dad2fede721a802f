"""Finds weights that are NaN or infinite, on the devices that hold them.

Such a model loads like any other, and all its scores are NaN: who opens
weights, asks here first.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.runtime.sharding import path_name

CURE = (
  'holds NaN or infinite values, with which every score is NaN; the file is '
  'damaged, or the model diverged while it was trained: '
)


def first_not_finite(params: Any) -> tuple[str, int] | None:
  """The path of the first parameter that is not finite, and its layer.

  Every device reads its own part once, and nothing else leaves it. All
  processes of a mesh have to ask, and all get the answer.

  Args:
    params: a tree of arrays on one mesh.

  Returns:
    None where all are finite; 0 for the layer of what has no layers.
  """
  mesh = getattr(jax.tree.leaves(params)[0].sharding, 'mesh', None)
  whole = None if mesh is None else NamedSharding(mesh, P())
  look = jax.jit(_finite, static_argnames='layered', out_shardings=whole)
  # One parameter after another: of each the compiler may keep a bool a number.
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    name = path_name(path)
    fine = jax.device_get(look(x, layered='layers/' in name))
    if not fine.all():
      return name, int(fine.argmin())
  return None


def _finite(x: jax.Array, layered: bool) -> jax.Array:
  """Whether all is finite, of each layer of what has layers: [L], else [1]."""
  fine = jnp.isfinite(x if layered else x[None])
  return fine.all(tuple(range(1, fine.ndim)))
