"""Brings parameters into the form in which a policy writes with them.

    parameters as they are trained or opened, layers stacked
      -> a layer at a time, in the products' dtype, placed for decoding

A job that opens a policy gives its parameters away here; RL copies those that
it goes on training.
"""

import functools
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from prm_jax.models import TransformerConfig, unstack_layers
from prm_jax.models.cache_shardings import decoding_shardings

PART = 64 << 20  # bytes


def jit_unstack(
  params: Any, config: TransformerConfig, mesh: Mesh, spread: bool = False
) -> Any:
  """Returns `unstack_layers` jitted; decoding needs parameters in its form."""
  return jax.jit(
    functools.partial(unstack_layers, config=config),
    out_shardings=decoding_shardings(params, config, mesh, spread),
  )


def parts_of(params: Any) -> list[Any]:
  """Splits parameters, or their shapes, into trees that `jit_unstack` takes.

  A part is at most as large as the largest leaf, or as PART bytes.
  """
  flat = flatten_dict(params)
  sizes = {path: leaf.size * leaf.dtype.itemsize for path, leaf in flat.items()}
  most = max(PART, *sizes.values())
  parts: list[dict] = [{}]
  room = most
  for path in sorted(flat, key=lambda path: -sizes[path]):
    if sizes[path] > room:
      parts.append({})
      room = most
    parts[-1][path] = flat[path]
    room -= sizes[path]
  return [{'layers': {}} | unflatten_dict(part) for part in parts]


def kernels_of(part: Any) -> list[Any]:
  """Returns the stacked kernels of a part, which `take_over` deletes."""
  return [leaf for leaf in jax.tree.leaves(part['layers']) if leaf.ndim > 2]


def take_over(
  params: Any, config: TransformerConfig, mesh: Mesh, spread: bool = False
) -> Any:
  """Returns what `jit_unstack` makes of parameters, and deletes their kernels.

  It goes a part at a time, as two copies of a large model would not fit.
  """
  layers: list[dict] = [{} for _ in range(config.n_layers)]
  others: dict[tuple[str, ...], Any] = {}
  for part in parts_of(params):
    with jax.set_mesh(mesh):
      found = jit_unstack(part, config, mesh, spread)(part)
    jax.block_until_ready(found)
    for layer, of_part in zip(layers, found.pop('layers'), strict=True):
      layer.update(flatten_dict(of_part))
    others |= flatten_dict(found)
    # Of no others: jit may hand on what it does not change, and the scales of a
    # new model may be one array.
    for leaf in kernels_of(part):
      leaf.delete()
  whole = tuple(map(unflatten_dict, layers))
  return unflatten_dict(others) | {'layers': whole}
