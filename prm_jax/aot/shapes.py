"""Describes programs before they are compiled, and arrays without values."""

import math
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from prm_jax.inference.packing import bucket, row_bucket
from prm_jax.inference.scorer import CALL_FILL
from prm_jax.models import HeadConfig, Rows, TransformerConfig
from prm_jax.runtime.sharding import batch_sharding
from prm_jax.training.train_state import (
  make_params,
  placed_shapes,
  to_param_dtype,
)


class Program(NamedTuple):
  """Describes a program before it is compiled.

  Attributes:
    lower: returns the lowered program.
    devices: the number of devices that it runs on.
    products, attention: FLOPs that any implementation needs.
    kernels: FLOPs of attention kernels, by the name that a kernel has in a
      compiled program.
    cache: bytes per device of the cache among its arguments.
    beside: bytes per device that are allocated while it runs but that it does
      not read.
  """

  lower: Callable[[], jax.stages.Lowered]
  devices: int
  products: float = 0.0
  attention: float = 0.0
  kernels: Mapping[str, float] = types.MappingProxyType({})
  cache: int = 0
  beside: int = 0


class Plan(NamedTuple):
  """Describes what a config would run.

  Attributes:
    programs: programs by name; `train` trains, and `sample` writes a token.
    meshes: the meshes; the one for training is first.
    remat: the remat setting of the trained model; '' trains none.
    rows, length: shape of a training batch, or 0.
    slots: chains that are written at the same time, or 0.
  """

  programs: dict[str, Program]
  meshes: tuple[Mesh, ...]
  remat: str = ''
  rows: int = 0
  length: int = 0
  slots: int = 0


def placed(shapes: Any, where: Any) -> Any:
  """Adds a tree of shardings to a tree of shapes."""
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    where,
  )


def bytes_of(tree: Any) -> int:
  """Returns the bytes that placed shapes take on one device."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def abstract_params(
  model: TransformerConfig, head: HeadConfig | None, mesh: Mesh
) -> Any:
  """Returns the shapes of a model's parameters as they are opened."""
  shapes = jax.eval_shape(
    lambda key: to_param_dtype(make_params(key, model, head), model),
    jax.random.key(0),
  )
  return placed_shapes(shapes, mesh)


def full_call(chains: int, longest: int, mesh: Mesh) -> Rows:
  """Returns the shapes of the largest call that scores chains.

  Args:
    chains: how many there are to be scored; a call may take fewer.
    longest: tokens of each.
  """
  split = mesh.shape['replica'] * mesh.shape['fsdp']
  per_call = max(1, CALL_FILL * split // longest)
  B, T = row_bucket(min(chains, per_call), split), bucket(longest)

  def of(dtype: Any, length: int) -> jax.ShapeDtypeStruct:
    placed = batch_sharding(mesh)
    return jax.ShapeDtypeStruct((B, length), dtype, sharding=placed)

  tokens, ends = of(jnp.int32, T), of(jnp.int32, T // 2)
  return Rows(*[tokens] * 4, of(jnp.int8, T), ends, ends)
