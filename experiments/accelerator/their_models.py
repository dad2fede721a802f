"""What PyTorch's sides share: the device, its clock, and models of our shapes.

The weights are random, as on our side. Nothing here imports jax.
"""

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from experiments.accelerator.shapes import CLASSES, Shape

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
NAMES = {
  'd_model': 'hidden_size',
  'n_layers': 'num_hidden_layers',
  'n_heads': 'num_attention_heads',
  'n_kv_heads': 'num_key_value_heads',
  'd_ff': 'intermediate_size',
  'norm_eps': 'rms_norm_eps',
}


def synchronize() -> None:
  """Waits for the device."""
  if DEVICE == 'cuda':
    torch.cuda.synchronize()


def seconds_of(function: Callable[..., Any], *arguments: Any) -> float:
  """Returns how long a call and its work on the device take."""
  synchronize()
  began = time.perf_counter()
  function(*arguments)
  synchronize()
  return time.perf_counter() - began


def clear() -> None:
  """Frees what an earlier case left on the device, compiled functions too."""
  torch._dynamo.reset()
  gc.collect()
  if DEVICE == 'cuda':
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int | None:
  """Returns the most memory that tensors took since `clear`; None on a CPU."""
  return torch.cuda.max_memory_allocated() if DEVICE == 'cuda' else None


def make_model(
  shape: Shape, kind: str, dtype: torch.dtype
) -> transformers.PreTrainedModel:
  """Makes a model with random weights on the device.

  Args:
    kind: 'ForTokenClassification' or 'ForCausalLM'.
  """
  sizes = {NAMES.get(name, name): size for name, size in shape.items()}
  theta = sizes.pop('rope_theta', 10_000.0)
  # Of the two, only Qwen2 has biases of queries, keys and values.
  family = 'Qwen2' if sizes.pop('qkv_bias', False) else 'Llama'
  config = getattr(transformers, f'{family}Config')(
    **sizes,
    rope_parameters={'rope_type': 'default', 'rope_theta': theta},
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    num_labels=CLASSES,
    classifier_dropout=0.0,
    pad_token_id=0,
  )
  torch.manual_seed(0)
  make = getattr(transformers, f'AutoModel{kind}')
  with torch.device(DEVICE):
    return make.from_config(config, dtype=dtype, attn_implementation='sdpa')


def rates(seconds: list[float], key: str, count: int) -> dict[str, Any]:
  """Returns a rate and the times of the repetitions that it comes from."""
  return {key: count / statistics.median(seconds), 'seconds': seconds}
