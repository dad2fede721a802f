"""Says how a program runs, and how far its results may be from the CPU's.

Setting: a device, a dtype, a precision -> results -> a check with a bound
"""

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.runtime.sharding import make_mesh

Check = dict[str, Any]

# Largest differences, by how the numbers in products are rounded: by 2^-24 of
# their size in float32, by 2^-11 in TF32, and by 2^-8 in bfloat16, which also
# rounds every activation. So TF32 gets about an eighth of bfloat16's bound. The
# number in brackets is what a CPU found in bfloat16 for 4 layers of SmolLM2's
# shape, or 30 with its weights; its bound is about twice that.
#
# Relative, of attention alone: few sums of rounded products (0.006). In float32
# sums in another order differ by 1e-6; more is for a chip's own exp and sin.
ATTENTION = {'float32': 1e-4, 'tf32': 2e-3, 'bfloat16': 1.2e-2}
# Relative, of hidden states and logits: each layer adds an error (0.025).
VALUES = {'float32': 1e-4, 'tf32': 6e-3, 'bfloat16': 5e-2}
# Relative, of all gradients: as many layers back as forth, with the errors of
# both (0.044).
GRADIENTS = {'float32': 2e-4, 'tf32': 1.2e-2, 'bfloat16': 9e-2}
# Of the worst parameter: in its gradient sums cancel the most (0.06).
WORST_GRADIENT = {'float32': 1e-3, 'tf32': 3e-2, 'bfloat16': 1.5e-1}
# Relative, of losses and the like, means in which errors cancel (0.004). In
# some steps of AdamW, whose first steps are signs, errors grow, in float32 too.
LOSSES = {'float32': 1e-3, 'tf32': 5e-3, 'bfloat16': 2e-2}
# Absolute, as a relative error of a small probability says nothing (0.007). A
# sigmoid of logits of 2 with an error of `VALUES` moves by a fifth of that.
PROBABILITIES = {'float32': 1e-4, 'tf32': 3e-3, 'bfloat16': 2e-2}
# Absolute, of single log-probabilities in nats, from logits of 2.5 with an
# error of `VALUES`; the largest of hundreds is four deviations away (0.25).
NATS = {'float32': 3e-4, 'tf32': 5e-2, 'bfloat16': 4e-1}
# Absolute, of a mean over a text's tokens in nats: most errors cancel (0.02).
LIKELIHOOD = {'float32': 1e-4, 'tf32': 6e-3, 'bfloat16': 5e-2}
# Shares of tokens. Where two are almost equally likely, a chain may go another
# way from there to its end; of eight chains one may with little rounding.
OTHER_TOKENS = {'float32': 0.05, 'tf32': 0.3, 'bfloat16': 0.5}
# No product is in it, so the rounding of products is not either.
EXACT = dict.fromkeys(VALUES, 1e-5)


class Setting(NamedTuple):
  """Says where and how a program runs.

  Attributes:
    name: in plain words.
    dtype: of the model.
    precision: of float32 products, see `jax.default_matmul_precision`; None
      leaves it to the device.
    rounding: how numbers in products are rounded; a key of the bounds.
  """

  name: str
  device: jax.Device
  dtype: str
  precision: str | None
  rounding: str

  @property
  def mesh(self) -> Mesh:
    """Returns the mesh of the device alone."""
    return one_device(self.device)

  def put(self, tree: Any) -> Any:
    """Copies arrays to the device."""
    return jax.device_put(tree, NamedSharding(self.mesh, P()))

  @contextlib.contextmanager
  def use(self) -> Iterator[None]:
    """Makes what is called inside run in this setting."""
    with (
      jax.default_device(self.device),
      jax.default_matmul_precision(self.precision),
      jax.set_mesh(self.mesh),
    ):
      yield


@functools.cache
def one_device(device: jax.Device) -> Mesh:
  """Makes a mesh of one device; the attention kernels follow its platform."""
  return make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, [device])


def reference() -> Setting:
  """Returns the CPU of this machine, in exact float32."""
  # On a machine with several of them the last: not the one that is compared.
  device = jax.devices('cpu')[-1]
  return Setting('CPU', device, 'float32', 'highest', 'float32')


def subjects() -> list[Setting]:
  """Returns the settings that are compared with the reference."""
  device = jax.devices()[0]
  found = [
    Setting('float32, exact products', device, 'float32', 'highest', 'float32')
  ]
  # What a float32 product is on the chip if nobody says anything. On a CPU it
  # is the exact one.
  default = {'gpu': 'tf32', 'tpu': 'bfloat16'}.get(device.platform)
  if default:
    found.append(Setting('float32', device, 'float32', None, default))
  return [*found, Setting('bfloat16', device, 'bfloat16', None, 'bfloat16')]


def check(name: str, difference: float, bound: float) -> Check:
  """Makes a check; NaN does not hold."""
  difference = float(difference)
  return {
    'name': name,
    'difference': difference,
    'bound': bound,
    'holds': difference <= bound,
  }


def found(checks: list[Check], *notes: str) -> dict[str, Any]:
  """Makes what a case returns."""
  return {'checks': checks} | ({'notes': list(notes)} if notes else {})


def _norm(x: Any) -> float:
  return float(np.linalg.norm(np.asarray(x, np.float64)))


def relative(x: Any, expected: Any) -> float:
  """Returns ||x - expected|| / ||expected|| over all arrays of two trees."""
  pairs = list(zip(jax.tree.leaves(x), jax.tree.leaves(expected), strict=True))
  apart = math.hypot(*(_norm(apart_by(a, b)) for a, b in pairs))
  return apart / math.hypot(*(_norm(b) for _, b in pairs))


def worst_relative(x: Any, expected: Any, least: float = 1e-2) -> float:
  """Returns the largest of `relative` of all arrays.

  Args:
    least: an array whose norm is a smaller share of the norm of all is compared
      with that share: some gradients are 0 but for rounding.
  """
  floor = least * math.hypot(*map(_norm, jax.tree.leaves(expected)))
  return largest(
    _norm(apart_by(a, b)) / max(_norm(b), floor)
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(expected), strict=True)
  )


def largest(values: Any) -> float:
  """Returns the largest of some numbers; NaN if one of them is."""
  return float(np.max(np.asarray([*values], np.float64)))


def apart_by(x: Any, expected: Any) -> np.ndarray:
  """Returns x - expected in float64; arrays of another shape are an error."""
  x, expected = np.asarray(x, np.float64), np.asarray(expected, np.float64)
  if x.shape != expected.shape:
    raise ValueError(f'shape {x.shape}, expected {expected.shape}')
  return x - expected


def furthest(x: Any, expected: Any) -> float:
  """Returns the largest absolute difference of two arrays."""
  return float(np.abs(apart_by(x, expected)).max())


def other_bits(x: Any, expected: Any) -> int:
  """Counts the arrays of two trees that are not equal bit for bit."""
  return sum(
    np.asarray(a).tobytes() != np.asarray(b).tobytes()
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(expected), strict=True)
  )
