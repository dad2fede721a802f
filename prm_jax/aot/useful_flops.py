"""Counts the FLOPs that forward passes and train steps need, by formula.

    a model, the rows of a batch -> FLOPs of products and of attention

`estimate.py` compares them with what the compiled program does (`work.py`).
"""

from typing import Any

from prm_jax.models import TransformerConfig
from prm_jax.models.flops import attention_flops, product_flops
from prm_jax.models.tpu_attention import LANES

TPU_KERNEL, GPU_KERNEL = 'tpu_custom_call', '__cudnn$fmha'


def reading(
  model: TransformerConfig,
  rows: int,
  length: int,
  logits: bool = False,
  ends: int | None = None,
) -> dict[str, Any]:
  """Counts FLOPs of a forward pass over rows of one chain each.

  The tokens of a tree see fewer tokens than those of such a row, so that its
  attention takes at most as many.

  Args:
    logits: whether the next token's logits are computed: for the LM loss, RL or
      a head that reads the likelihood.
    ends: tokens of a row whose hidden states are read; None reads all. An
      unrolled model computes no others after the last layer's attention.
  """
  tokens = rows * length
  attention = attention_flops(model, tokens * (length + 1) / 2)
  products = product_flops(model, tokens, logits * tokens)
  if ends is not None and model.scan_unroll >= model.n_layers:
    after = model.d_model * (model.n_heads * model.head_dim + 3 * model.d_ff)
    products -= 2.0 * rows * (length - ends) * after
  return {
    'products': products,
    'attention': attention,
    'kernels': {TPU_KERNEL: attention * wide(model), GPU_KERNEL: attention},
  }


def learning(
  model: TransformerConfig,
  rows: int,
  length: int,
  logits: bool = False,
  ends: int | None = None,
  frozen: bool = False,
) -> dict[str, Any]:
  """Counts FLOPs of a train step: a gradient costs twice the forward pass.

  A forward attention kernel has 2 products. Its gradient has 5, because it
  computes the scores again, and on a TPU 7, because two kernels do. With
  remat='full' the forward pass runs twice. The other arguments are those of
  `reading`.

  Args:
    frozen: whether only adapters beside the kernels are trained: then neither
      the kernels nor the first layer's inputs need a gradient.
  """
  found = reading(model, rows, length, logits, ends)
  forward = 2 if model.remat == 'full' else 1
  gradient = {TPU_KERNEL: 7, GPU_KERNEL: 5}
  products = 3 * found['products']
  if frozen:
    heads = model.n_heads + 2 * model.n_kv_heads
    first = 2.0 * rows * length * model.d_model * heads * model.head_dim
    products = 2 * found['products'] - first
  return {
    'products': products,
    'attention': 3 * found['attention'],
    'kernels': {
      name: flops * (2 * forward + gradient[name]) / 2
      for name, flops in found['kernels'].items()
    },
  }


def wide(model: TransformerConfig) -> float:
  """Returns the factor by which a TPU pads heads to a multiple of LANES."""
  return -(-model.head_dim // LANES) * LANES / model.head_dim
