"""Compares the attention kernels of a chip with plain dense attention."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.accelerator import right_checks as checks
from experiments.accelerator.right_checks import Setting, reference, subjects
from experiments.accelerator.right_programs import ROWS, make_batch
from prm_jax.models.attention import (
  attend_block,
  fused_on_gpu,
  visible_tokens,
)
from prm_jax.models.packed_attention import packed_attention
from prm_jax.models.tpu_attention import tree_attention

# query [B, T, K, R, H], key and value [B, T, K, H], last [B, T]
Attend = Callable[..., jax.Array]


class Heads(NamedTuple):
  """Gives the sizes of attention: key heads, queries of each, head size."""

  length: int
  K: int
  R: int
  H: int


def sizes(tiny: bool) -> Heads:
  """Returns the sizes: those of SmolLM2, or small ones."""
  return Heads(256, 2, 2, 16) if tiny else Heads(1024, 3, 3, 64)


def dense(
  query: jax.Array, key: jax.Array, value: jax.Array, last: jax.Array
) -> jax.Array:
  """Computes all scores of a row at once."""
  out = attend_block(
    query.transpose(0, 2, 3, 1, 4),
    key.swapaxes(1, 2),
    value.swapaxes(1, 2),
    visible_tokens(last),
    None,
  )
  return out.transpose(0, 3, 1, 2, 4)


def blocks(*arrays: jax.Array) -> jax.Array:
  """Computes the visible blocks only, with a running softmax."""
  return packed_attention(*arrays, None)


def kernels(platform: str) -> dict[str, tuple[Attend, tuple[str, ...]]]:
  """Returns this platform's kernels, each with the dtypes that it supports.

  A CPU stands in for both: it runs the TPU's kernel step by step, and in the
  place of cuDNN what JAX itself does at the same call.
  """
  both = 'float32', 'bfloat16'
  plain = {'blocks': (blocks, both)}
  if platform == 'gpu':
    fused = functools.partial(fused_on_gpu, prefix=None)
    return plain | {'cuDNN': (fused, ('bfloat16',))}
  if platform == 'tpu':
    kernel = functools.partial(tree_attention, prefix=None)
    return plain | {'TPU kernels': (kernel, both)}
  xla = functools.partial(fused_on_gpu, prefix=None, implementation='xla')
  interpreted = functools.partial(tree_attention, prefix=None, interpret=True)
  return plain | {
    'like cuDNN': (xla, both),
    'TPU kernels, interpreted': (interpreted, ('float32',)),
  }


@functools.partial(jax.jit, static_argnums=0)
def _attend(
  attend: Attend,
  inputs: tuple[jax.Array, ...],
  real: jax.Array,
  last: jax.Array,
) -> tuple[jax.Array, ...]:
  *inputs, grad = inputs
  real = real[:, :, None, None, None]
  out, back = jax.vjp(lambda *x: attend(*x, last), *inputs)
  # What stands at padding has no meaning.
  return jnp.where(real, out, 0), *back(jnp.where(real, grad, 0))


def run(
  setting: Setting, attend: Attend, heads: Heads, batch: dict[str, np.ndarray]
) -> list[np.ndarray]:
  """Returns the values, and the gradients of query, key and value."""
  rng = np.random.default_rng(0)
  T, K, R, H = heads
  wide, narrow = (ROWS, T, K, R, H), (ROWS, T, K, H)
  inputs = [rng.normal(size=s) for s in (wide, narrow, narrow, wide)]
  # Scores of about 2, so that some keys have most of the weight.
  inputs[0] *= 2 * H**-0.5
  inputs = [x.astype(setting.dtype) for x in inputs]
  with setting.use():
    trees = setting.put((batch['positions'] >= 0, batch['last']))
    out = _attend(attend, setting.put(inputs), *trees)
    return [np.asarray(x, np.float32) for x in jax.device_get(out)]


def compare(heads: Heads) -> dict[str, Any]:
  """Compares values and gradients of all kernels with dense attention."""
  batch = make_batch(512, ROWS, heads.length)
  expected = run(reference(), dense, heads, batch)
  made = []
  for s in subjects():
    for name, (attend, dtypes) in kernels(s.device.platform).items():
      if s.dtype not in dtypes:
        continue
      values, *grads = run(s, attend, heads, batch)
      made += [
        checks.check(
          f'{name}: values, {s.name}',
          checks.relative(values, expected[0]),
          checks.ATTENTION[s.rounding],
        ),
        checks.check(
          f'{name}: gradients, {s.name}',
          checks.worst_relative(grads, expected[1:]),
          checks.ATTENTION[s.rounding],
        ),
      ]
  return checks.found(made)
