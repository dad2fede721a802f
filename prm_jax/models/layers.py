"""Defines the transformer's embedding, norm and linear map.

Embedding and linear map have gradients of their own, for precision and speed.
"""

import functools
import itertools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from prm_jax.models.quantized import dequantize
from prm_jax.models.remat import PROJECTION, named
from prm_jax.models.take import add_at
from prm_jax.runtime.sharding import (
  BATCH,
  axis_size,
  constrain,
  fitting_axes,
  platform,
)


class RMSNorm(nn.Module):
  """Divides by the root mean square (Zhang and Sennrich, 2019), in float32."""

  eps: float

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., D]
    scale = self.param('scale', nn.initializers.ones, x.shape[-1:])
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(x32**2, -1, keepdims=True) + self.eps)
    return (x32 * scale).astype(x.dtype)


def _split_of_vectors(table: jax.Array) -> tuple[Any, Any]:
  """Returns how the tokens' vectors are split: axes of rows, and of the width.

  A device has all rows of its replica and a part of each vector, or where
  `fsdp` does not divide the width, its own rows.
  """
  divides = table.shape[1] % axis_size('fsdp') == 0
  return ('replica', 'fsdp') if divides else (BATCH, None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def embed(
  table: jax.Array,  # [V, D]
  tokens: jax.Array,  # [B, T]
  dtype: str,
) -> jax.Array:  # [B, T, D]
  """Returns rows of the table in `dtype`; sums their gradients in float32.

  A token's gradient is a sum over all its occurrences in a batch, and a sum in
  bfloat16 stops growing once a term is less than 1/256 of it.

  Each device reads all tokens from its part of the width, as the table is split
  over `fsdp`: exchanging the tokens' vectors is far cheaper than the table's.
  """
  rows, width = _split_of_vectors(table)
  table = constrain(table.astype(dtype), 'model', width)
  return constrain(table[constrain(tokens, rows, None)], rows, None, width)


def _embed_forward(
  table: jax.Array, tokens: jax.Array, dtype: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return embed(table, tokens, dtype), (table, tokens)


def _embed_backward(
  dtype: str, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, None]:
  table, tokens = saved
  rows, width = _split_of_vectors(table)
  tokens = constrain(tokens, rows, None)
  grad = constrain(grad, rows, None, width).astype(jnp.float32)
  if platform() == 'gpu':
    sums = _sums_on_devices(table, tokens, grad)
  else:
    sums = constrain(jnp.zeros(table.shape, jnp.float32), 'model', width)
    sums = constrain(sums.at[tokens].add(grad), 'model', width)
  return sums.astype(table.dtype), None


def _sums_on_devices(
  table: jax.Array,  # [V, D]
  tokens: jax.Array,  # [B, T]
  grad: jax.Array,  # [B, T, D]
) -> jax.Array:  # [V, D]
  """Adds up gradients by token, each device those that it has."""
  count, width = table.shape

  def add(
    tokens: jax.Array, grad: jax.Array, words: Any, rows: Any
  ) -> jax.Array:
    own, first = count, 0
    if words:
      own = count // jax.lax.axis_size(words)
      first = own * jax.lax.axis_index(words)
    vectors = grad.reshape(-1, grad.shape[-1])
    sums = add_at(own, tokens.ravel() - first, vectors)
    return jax.lax.psum(sums, rows) if rows else sums

  if jax.sharding.get_abstract_mesh().empty:
    return add(tokens, grad, None, None)
  wanted = _split_of_vectors(table)
  sizes = len(tokens), count, width
  rows, words, part = fitting_axes(sizes, (wanted[0], 'model', wanted[1]))
  return jax.shard_map(
    functools.partial(add, words=words, rows=rows),
    in_specs=(P(rows), P(rows, None, part)),
    out_specs=P(words, part),
    check_vma=False,  # what is equal on all devices of an axis was summed here
  )(tokens, grad)


embed.defvjp(_embed_forward, _embed_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(
  x: jax.Array,  # [..., *inputs]
  kernel: jax.Array,  # [*inputs, *outputs]
  inputs: int,
) -> jax.Array:  # [..., *outputs]
  """Contracts the last `inputs` axes of x with the first of the kernel.

  The gradients are written out because JAX derives the kernel's gradient as the
  transpose of the product below, and transposing it took a fifth of a training
  step on CPU.
  """
  axes = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
  return jax.lax.dot_general(x, kernel, (axes, ((), ())))


def _linear_forward(
  x: jax.Array, kernel: jax.Array, inputs: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return linear(x, kernel, inputs), (x, kernel)


def linear_back(
  grad: jax.Array,  # [..., *outputs]
  kernel: jax.Array,  # [*inputs, *outputs]
  inputs: int,
) -> jax.Array:  # [..., *inputs]
  """Returns the gradient of `linear` by x."""
  outputs = kernel.ndim - inputs
  axes = tuple(range(grad.ndim - outputs, grad.ndim))
  back = (axes, tuple(range(inputs, kernel.ndim))), ((), ())
  return jax.lax.dot_general(grad, kernel, back)


def _linear_backward(
  inputs: int, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
  x, kernel = saved
  rows = tuple(range(x.ndim - inputs))
  to_x = linear_back(grad, kernel, inputs)
  over_rows = (rows, rows), ((), ())
  if x.size <= grad.size or platform() != 'cpu':
    return to_x, jax.lax.dot_general(x, grad, over_rows)
  # XLA transposes the first operand there, so the smaller one comes first.
  to_kernel = jax.lax.dot_general(grad, x, over_rows)
  axes = range(kernel.ndim - inputs, kernel.ndim), range(kernel.ndim - inputs)
  to_kernel = jax.lax.optimization_barrier(to_kernel)
  return to_x, to_kernel.transpose(*itertools.chain(*axes))


linear.defvjp(_linear_forward, _linear_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def quantized_linear(
  x: jax.Array,  # [..., *inputs]
  codes: jax.Array,
  scales: jax.Array,
  inputs: int,
) -> jax.Array:  # [..., *outputs]
  """Is `linear` with a frozen kernel of `quantized.quantize`.

  The gradient opens the kernel again, so that none is kept for it.
  """
  kernel = dequantize(codes, scales, inputs - 1)
  return linear(x, kernel.astype(x.dtype), inputs)


def _quantized_forward(
  x: jax.Array, codes: jax.Array, scales: jax.Array, inputs: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return quantized_linear(x, codes, scales, inputs), (codes, scales)


def _quantized_backward(
  inputs: int, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, None, None]:
  kernel = dequantize(*saved, inputs - 1)
  return linear_back(grad, kernel.astype(grad.dtype), inputs), None, None


quantized_linear.defvjp(_quantized_forward, _quantized_backward)


class Projection(nn.Module):
  """Maps the last `inputs` axes linearly to `shape`, with an optional bias.

  Where the parameters hold adapters (`lora.attach`), their product is added; a
  frozen kernel may be stored as codes and scales (`lora.quantize_backbone`).
  """

  shape: tuple[int, ...]
  dtype: str
  inputs: int = 1
  bias: bool = False
  gain: float = 1.0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    if self.has_variable('params', 'codes'):
      stored = (self.get_variable('params', n) for n in ('codes', 'scales'))
      out = quantized_linear(x, *stored, self.inputs)
    else:
      out = linear(x, self._kernel(x), self.inputs)
    if self.has_variable('params', 'lora_a'):
      down, up = (
        self.get_variable('params', name).astype(self.dtype)
        for name in ('lora_a', 'lora_b')
      )
      change = linear(linear(x, down, self.inputs), up, 1)
      # Added in float32: most changes are below bfloat16's steps.
      change = change.astype(jnp.float32)
      out = (out.astype(jnp.float32) + change).astype(self.dtype)
    (out,) = named(PROJECTION, out)
    if self.bias:
      bias = self.param('bias', nn.initializers.zeros, self.shape)
      # Added in float32: the bias's gradient sums over all tokens of a batch.
      out = (out.astype(jnp.float32) + bias).astype(self.dtype)
    return out

  def _kernel(self, x: jax.Array) -> jax.Array:
    fan_in = x.shape[x.ndim - self.inputs :]
    kernel = self.param(
      'kernel',
      nn.initializers.normal(self.gain * math.prod(fan_in) ** -0.5),
      (*fan_in, *self.shape),
    )
    return kernel.astype(self.dtype)
