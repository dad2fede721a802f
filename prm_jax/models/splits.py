"""Says how the states of a transformer are split over the mesh.

Between layers tokens are split over `model`, within them heads and feed-forward
units. While decoding with parameters that are spread over `fsdp`, the width is
split instead.
"""

import jax

from prm_jax.runtime.sharding import BATCH, axis_size, constrain


def parts_of_rows(x: jax.Array) -> jax.Array:  # [B, T, D]
  """Splits tokens over `model`, between the products that split their width.

  The residual stream, which the gradient keeps for every layer, then takes no
  more memory on many devices than on one (Korthikanti et al., 2022).
  """
  return constrain(x, BATCH, 'model', None)


def whole_rows(x: jax.Array) -> jax.Array:  # [B, T, D]
  """Gives every device along `model` all tokens of its rows."""
  return constrain(x, BATCH, None, None)


def parts_of_width(x: jax.Array) -> jax.Array:  # [B, T, D]
  """Splits the width of states over `fsdp`, as kernels [D, ...] are split.

  A product then needs no kernel of another device; its sums are added up over
  `fsdp` (the two-dimensional layout of Pope et al., 2022). For the few tokens
  that decoding reads, sums take far less traffic than kernels.
  """
  return constrain(x, 'replica', None, 'fsdp')


def parts_of_heads(x: jax.Array, spread: bool) -> jax.Array:  # [B, T, N, ...]
  """Splits heads, or feed-forward units, over `model`.

  Their gradients are split alike. The compiler would else multiply the tokens
  that a device has by the kernels of all devices, and add up gradients of whole
  kernels: twice the traffic. If heads do not divide, it may split tokens.

  Args:
    spread: whether rows are on all devices.
  """
  if spread:
    return constrain(x, 'replica', None, 'model')
  divides = x.shape[2] % axis_size('model') == 0
  return constrain(x, BATCH, None, 'model') if divides else x
