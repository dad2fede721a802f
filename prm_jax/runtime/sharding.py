"""Makes the mesh, and decides how every array is sharded over it.

The mesh has three axes: `replica` is data parallel across slices, `fsdp` splits
the batch and the parameters, `model` is tensor parallel. RULES maps the path of
a parameter, or of the optimizer moment that mirrors it, to a PartitionSpec. A
path that no rule matches is an error, so that no new layer is replicated by
accident.
"""

import functools
import logging
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
BATCH = ('replica', 'fsdp')  # mesh axes that split a batch
LARGE = 16 * 2**20  # bytes of an array that is named if it stays whole

# The first match wins. The leading axis L of stacked layers is never split.
RULES: tuple[tuple[str, P], ...] = (
  # Adafactor's means over rows and columns, and its moments of parameters
  # without two long sides. Their shapes differ from the parameters', and they
  # have a thousandth of the size.
  (r'/(v_row|v_col|v)/', P()),
  (r'(embed_tokens|lm_head)$', P('model', 'fsdp')),  # [V, D]
  (
    r'layers/self_attn/[qkv]_proj/(kernel|codes|scales)$',
    P(None, 'fsdp', 'model'),
  ),
  (r'layers/self_attn/[qkv]_proj/bias$', P(None, 'model')),  # [L, N, H]
  (
    r'layers/self_attn/o_proj/(kernel|codes|scales)$',
    P(None, 'model', None, 'fsdp'),
  ),
  (
    r'layers/mlp/(gate|up)_proj/(kernel|codes|scales)$',
    P(None, 'fsdp', 'model'),
  ),
  (r'layers/mlp/down_proj/(kernel|codes|scales)$', P(None, 'model', 'fsdp')),
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
  """Makes a mesh over `devices`, by default all.

  Args:
    shape: size of each axis of AXES; one may be -1, for the remaining devices.

  Raises:
    UserError: the product of the sizes is not the number of devices, or
      `replica` is not a multiple of the number of TPU slices.
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
  """Makes a mesh of all devices along `fsdp`, for use without a config."""
  return make_mesh({'replica': 1, 'fsdp': -1, 'model': 1}, devices)


def _place(sizes: list[int], devices: Sequence[jax.Device]) -> np.ndarray:
  """Arranges devices so that neighbours in the mesh are close in hardware."""
  if devices[0].platform != 'tpu':
    return np.array(devices).reshape(sizes)
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  replica, *inside = sizes
  if replica % slices:
    raise UserError(
      f'mesh.replica={replica} does not divide over {slices} slices; only '
      'replica goes across them: make it a multiple'
    )
  # A torus of 8 x 8 x 8 has an axis of 4 only if its own axes may be split.
  split = {'allow_split_physical_axes': True}
  if slices == 1:
    return mesh_utils.create_device_mesh(sizes, devices, **split)
  return mesh_utils.create_hybrid_device_mesh(
    (replica // slices, *inside), (slices, 1, 1), devices, **split
  )


def path_name(path: tuple[Any, ...]) -> str:
  """Writes a tree path as 'a/b/c'."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def spec_for(name: str, shape: tuple[int, ...], mesh: Mesh) -> P:
  """Returns the first matching rule, without axes that do not divide the shape.

  A dimension that an axis does not divide (4 key heads over `model`=8) stays
  whole on every device of the axis.
  """
  return P(
    *(
      axis if axis and shape[i] % mesh.shape[axis] == 0 else None
      for i, axis in enumerate(_rule(name))
    )
  )


def _rule(name: str) -> P:
  for pattern, spec in RULES:
    if re.search(pattern, name):
      return spec
  raise ValueError(f'no sharding rule matches {name!r}; add one to RULES')


def shardings(tree: Any, mesh: Mesh) -> Any:
  """Returns a NamedSharding for each leaf, an array or ShapeDtypeStruct.

  A large array that an axis should split and does not divide is logged.
  """
  whole: dict[str, int] = {}

  def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
    name = path_name(path)
    spec = spec_for(name, leaf.shape, mesh)
    for axis in sorted({*_rule(name)} - {*spec, None}):
      size = math.prod(leaf.shape) * leaf.dtype.itemsize
      if mesh.shape[axis] > 1 and size >= LARGE:
        what = f'{axis}={mesh.shape[axis]}: {name.rpartition("layers/")[2]}'
        whole[what] = size
    return NamedSharding(mesh, spec)

  found = jax.tree_util.tree_map_with_path(place, tree)
  if whole:
    _warn_once(
      'whole on every device, as the mesh does not divide them: '
      + ', '.join(f'{k} ({v / 1e9:.2f} GB)' for k, v in whole.items())
    )
  return found


@functools.cache
def _warn_once(text: str) -> None:
  logging.warning(text)


def check_heads(heads: int, mesh: Mesh, flag: str = 'mesh.model') -> None:
  """Raises UserError unless a model's query heads divide over `model`.

  Args:
    flag: name of the option that sets the size of `model`, for the message.
  """
  wide = mesh.shape['model']
  if heads % wide:
    fits = [
      n for n in range(1, heads + 1) if not heads % n and not mesh.size % n
    ]
    raise UserError(
      f'model.n_heads={heads} does not divide over {flag}={wide} devices; set '
      f'{flag} to one of {", ".join(map(str, fits))}'
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Splits rows over all data-parallel devices."""
  return NamedSharding(mesh, P(BATCH))


def fitting_axes(shape: Sequence[int], spec: Sequence[Any]) -> list[Any]:
  """Returns `spec`, with None for axes that do not divide their dimension.

  It uses the mesh of `jax.set_mesh`, and does for activations what `spec_for`
  does for parameters.
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
  attend: Callable[..., jax.Array],
  rows: tuple[jax.Array, ...],
  prefix: tuple[jax.Array, ...] = (),
) -> jax.Array:
  """Runs an attention kernel, on a mesh each device on its own rows and heads.

  Where B does not divide over the devices, all compute all rows, and where K
  does not, all heads.

  Args:
    attend: a function of `rows` and `prefix`.
    rows: query, key and value [B, x, K, ...], and arrays [B, ...].
    prefix: keys and values [G, x, K, ...] that rows share, and their mask [G,
      x]; nothing without a prefix. Every device gets all G.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return attend(rows, prefix)
  B, _, K = rows[1].shape[:3]
  batch, heads = fitting_axes((B, K), (BATCH, 'model'))
  split, whole = P(batch, None, heads), P(None, None, heads)
  return jax.shard_map(
    attend,
    in_specs=(
      (split, split, split, *(P(batch),) * (len(rows) - 3)),
      (whole, whole, P())[: len(prefix)],
    ),
    out_specs=split,
    # Kernels do not declare what varies over devices, nor do loops with a
    # custom gradient; nothing is summed over devices here.
    check_vma=False,
  )(rows, prefix)


def axis_size(*axes: str) -> int:
  """Returns the number of devices along these axes of the current mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  return 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in axes)


def platform() -> str:
  """Returns the platform that is compiled for: 'cpu', 'gpu' or 'tpu'.

  It is the current mesh's, whose devices may not be on this machine, as in
  `prm_jax.aot`.
  """
  mesh = jax.sharding.get_abstract_mesh()
  return jax.default_backend() if mesh.empty else mesh.abstract_device.platform


def constrain(x: jax.Array, *spec: Any) -> jax.Array:
  """Pins an activation's sharding on the current mesh, if there is one.

  Axes that do not divide their dimension are dropped, as in `spec_for`.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.lax.with_sharding_constraint(x, P(*fitting_axes(x.shape, spec)))
