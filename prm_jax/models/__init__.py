"""The transformer and its step heads: pure functions over a plain dict.

Flax Linen is used in this folder only. Everyone else calls `init_params`,
`forward` and `step_logits` and sees nested dicts of arrays.

The letters of every shape comment and einsum in this project:

    B batch    T tokens    P steps     N heads      K key/value heads
    H head dim D model     F ffn       V vocabulary S cached (prefix) tokens
    L layers   C outputs of a head     G groups of rows that share a prefix
"""

from prm_jax.models.config import HeadConfig, RopeScaling, TransformerConfig
from prm_jax.models.flops import attention_flops, chain_flops, product_flops
from prm_jax.models.heads import init_head, step_logits, step_probabilities
from prm_jax.models.likelihood import number_likelihood, token_logprobs
from prm_jax.models.lora import LoraConfig, init_lora, merge
from prm_jax.models.transformer import (
  Cache,
  Prefix,
  decode,
  extend,
  forward,
  init_cache,
  init_params,
  lm_logits,
  prefill,
  unstack_layers,
)

__all__ = [
  'Cache',
  'HeadConfig',
  'LoraConfig',
  'Prefix',
  'RopeScaling',
  'TransformerConfig',
  'attention_flops',
  'chain_flops',
  'decode',
  'extend',
  'forward',
  'init_cache',
  'init_head',
  'init_lora',
  'init_params',
  'lm_logits',
  'merge',
  'number_likelihood',
  'prefill',
  'product_flops',
  'step_logits',
  'step_probabilities',
  'token_logprobs',
  'unstack_layers',
]
