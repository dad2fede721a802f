"""The mesh, and where every array lives on it.

Three axes: `replica` is data parallel across slices, `fsdp` splits the batch
and the parameters, `model` is tensor parallel. RULES maps the path of a
parameter (or of the optimizer moment that mirrors it) to a PartitionSpec; a
path that no rule matches is an error, so a new layer cannot end up replicated
by accident.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.runtime.errors import UserError

AXES = ('replica', 'fsdp', 'model')
BATCH = ('replica', 'fsdp')  # what a batch axis is split over

# First match wins. Stacked layers have a leading axis L, never split.
RULES: tuple[tuple[str, P], ...] = (
  # Adafactor's means over rows and columns, and moments of what has no two
  # long sides: a thousandth of the parameters, of other shapes than theirs.
  (r'/(v_row|v_col|v)/', P()),
  (r'(embed_tokens|lm_head)$', P('model', 'fsdp')),  # [V, D]
  (r'layers/self_attn/[qkv]_proj/kernel$', P(None, 'fsdp', 'model')),
  (r'layers/self_attn/[qkv]_proj/bias$', P(None, 'model')),  # [L, N, H]
  (r'layers/self_attn/o_proj/kernel$', P(None, 'model', None, 'fsdp')),
  (r'layers/mlp/(gate|up)_proj/kernel$', P(None, 'fsdp', 'model')),
  (r'layers/mlp/down_proj/kernel$', P(None, 'model', 'fsdp')),
  # Adapters: A [L, ..., r] like the kernel's inputs, B [L, r, ...] outputs.
  (r'self_attn/[qkv]_proj/a$', P(None, 'fsdp')),
  (r'self_attn/[qkv]_proj/b$', P(None, None, 'model')),
  (r'self_attn/o_proj/a$', P(None, 'model')),
  (r'self_attn/o_proj/b$', P(None, None, 'fsdp')),
  (r'mlp/(gate|up)_proj/a$', P(None, 'fsdp')),
  (r'mlp/(gate|up)_proj/b$', P(None, None, 'model')),
  (r'mlp/down_proj/a$', P(None, 'model')),
  (r'mlp/down_proj/b$', P(None, None, 'fsdp')),
  (r'norm/scale$', P()),  # input_layernorm and post_attention_layernorm too
  (r'head/(hidden_|likelihood_)?(kernel|bias)$', P()),
  # What is not a parameter: counters of the optimizer and of the loop, keys.
  (r'(^|/)(count|step|key|skipped|skipped_in_a_row)$', P()),
)


def make_mesh(
  shape: dict[str, int], devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """A mesh over `devices` (all by default).

  Args:
    shape: size per axis of AXES; one of them may be -1: what is left.

  Raises:
    UserError: the sizes do not multiply to the number of devices, or replica
      does not to the slices.
  """
  devices = jax.devices() if devices is None else devices
  sizes = [shape[axis] for axis in AXES]
  fixed = int(np.prod([size for size in sizes if size != -1]))
  if sizes.count(-1) == 1 and fixed > 0 and len(devices) % fixed == 0:
    sizes[sizes.index(-1)] = len(devices) // fixed
  if int(np.prod(sizes)) != len(devices) or min(sizes) < 1:
    wanted = ', '.join(f'{a}={s}' for a, s in zip(AXES, sizes, strict=True))
    raise UserError(
      f'mesh {wanted} does not fit {len(devices)} devices; set '
      '--config.mesh.* so that the product is that number (-1: the rest)'
    )
  return Mesh(
    _place(sizes, devices), AXES, axis_types=(AxisType.Auto,) * len(AXES)
  )


def flat_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
  """All devices side by side, `fsdp` alone, for who has no mesh of a config."""
  return make_mesh({'replica': 1, 'fsdp': -1, 'model': 1}, devices)


def _place(sizes: list[int], devices: Sequence[jax.Device]) -> np.ndarray:
  """Devices by mesh position, neighbours in a mesh axis near each other."""
  if devices[0].platform != 'tpu':
    return np.array(devices).reshape(sizes)
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  replica, *inside = sizes
  if replica % slices:
    raise UserError(
      f'mesh.replica={replica} does not divide over {slices} slices; only '
      'replica goes across them: make it a multiple'
    )
  # A torus of 8 x 8 x 8 has an axis of 4 only when its own are split.
  split = {'allow_split_physical_axes': True}
  if slices == 1:
    return mesh_utils.create_device_mesh(sizes, devices, **split)
  return mesh_utils.create_hybrid_device_mesh(
    (replica // slices, *inside), (slices, 1, 1), devices, **split
  )


def path_name(path: tuple[Any, ...]) -> str:
  """A tree path as 'a/b/c'."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def spec_for(name: str, shape: tuple[int, ...], mesh: Mesh) -> P:
  """The first rule that matches, without axes that do not divide the shape.

  An axis that does not divide (4 key heads over `model`=8) leaves that
  dimension whole on every device of the axis.
  """
  for pattern, spec in RULES:
    if re.search(pattern, name):
      return P(
        *(
          axis if axis and shape[i] % mesh.shape[axis] == 0 else None
          for i, axis in enumerate(spec)
        )
      )
  raise ValueError(f'no sharding rule matches {name!r}; add one to RULES')


def shardings(tree: Any, mesh: Mesh) -> Any:
  """A NamedSharding for every leaf of `tree` (arrays or ShapeDtypeStructs)."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: NamedSharding(
      mesh, spec_for(path_name(path), leaf.shape, mesh)
    ),
    tree,
  )


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows split over all data-parallel devices."""
  return NamedSharding(mesh, P(BATCH))


def fitting_axes(shape: Sequence[int], spec: Sequence[Any]) -> list[Any]:
  """The axes of `spec` on the mesh that is set, None where they do not divide.

  The same as `spec_for` does with parameters.
  """
  sizes = [
    axis_size(*([axis] if isinstance(axis, str) else axis or ()))
    for axis in spec
  ]
  return [
    axis if shape[i] % size == 0 else None
    for i, (axis, size) in enumerate(zip(spec, sizes, strict=True))
  ]


def over_rows_and_heads(
  attend: Callable[..., jax.Array], rows: int, heads: int
) -> Callable[..., jax.Array]:
  """An attention kernel that each device of the mesh runs on its own part.

  Args:
    attend: of query, key and value [B, T, K, ...] and segment_ids [B, T].
    rows: B. What does not divide is computed by all.
    heads: K, the same.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return attend
  batch, axis = fitting_axes((rows, heads), (BATCH, 'model'))
  split = P(batch, None, axis)
  return jax.shard_map(
    attend,
    in_specs=(split, split, split, P(batch)),
    out_specs=split,
    check_vma=False,  # kernels do not say what varies
  )


def axis_size(*axes: str) -> int:
  """Over how many devices these axes of the mesh that is set go."""
  mesh = jax.sharding.get_abstract_mesh()
  return 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in axes)


def platform() -> str:
  """What is compiled for: 'cpu', 'gpu' or 'tpu'.

  The mesh that is set says it; its devices need not be here (aot.py).
  """
  mesh = jax.sharding.get_abstract_mesh()
  return jax.default_backend() if mesh.empty else mesh.abstract_device.platform


def constrain(x: jax.Array, *spec: Any) -> jax.Array:
  """Pins an activation to the mesh that is set; no mesh, no change.

  Axes that do not divide the dimension are dropped, as in `spec_for`.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.lax.with_sharding_constraint(x, P(*fitting_axes(x.shape, spec)))
