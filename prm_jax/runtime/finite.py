"""Finds weights that are NaN or infinite, on the devices that hold them.

A model with such weights loads without an error and all its scores are NaN, so
every loader of weights calls `first_not_finite`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.runtime.sharding import path_name

# The middle of an error message, between the tensor's name and what to do.
NOT_FINITE = (
  'holds NaN or infinite values, which make every score NaN; the file is '
  'damaged, or the model diverged while it was trained: '
)


def first_not_finite(params: Any) -> tuple[str, int] | None:
  """Returns the path and layer of the first parameter that is not finite.

  Every device reads its own part once, and only booleans leave it. All
  processes of a mesh must call this; all get the same result.

  Args:
    params: a tree of arrays on one mesh.

  Returns:
    None if all are finite. The layer is 0 for parameters without layers.
  """
  mesh = getattr(jax.tree.leaves(params)[0].sharding, 'mesh', None)
  whole = None if mesh is None else NamedSharding(mesh, P())
  look = jax.jit(_finite, static_argnames='layered', out_shardings=whole)
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    name = path_name(path)
    fine = jax.device_get(look(x, layered='layers/' in name))
    if not fine.all():
      return name, int(fine.argmin())
  return None


def _finite(x: jax.Array, layered: bool) -> jax.Array:
  """Says whether all values are finite: [L] by layer if `layered`, else [1]."""
  # 0 times any finite number is 0. A sum takes no memory, while compilers keep
  # a boolean for each value that is compared.
  x = x if layered else x[None]
  return jnp.isfinite((0 * x).sum(tuple(range(1, x.ndim))))
