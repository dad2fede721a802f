"""Defines the transformer and its step heads as pure functions.

    tokens -> forward -> hidden states -> step_logits -> step_probabilities
                                       -> lm_logits, for policies
           -> forward at step ends -> head_logits -> step_probabilities

Only this folder uses Flax Linen. All other code calls these functions and sees
parameters as nested dicts of arrays.

Shape comments and einsums use the same letters in the whole project:

    B batch    T tokens    P steps     N heads      K key/value heads
    H head dim D model     F ffn       V vocabulary S cached (prefix) tokens
    L layers   C outputs of a head     G groups of rows that share a prefix
"""

from prm_jax.models.config import HeadConfig, RopeScaling, TransformerConfig
from prm_jax.models.flops import attention_flops, chain_flops, product_flops
from prm_jax.models.heads import (
  head_logits,
  init_head,
  step_logits,
  step_probabilities,
)
from prm_jax.models.likelihood import (
  TokenTerms,
  step_likelihood,
  token_logprobs,
  token_terms,
)
from prm_jax.models.lora import (
  LoraConfig,
  attach,
  init_lora,
  merge,
  quantize_backbone,
)
from prm_jax.models.rows import Rows
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
  'Rows',
  'TokenTerms',
  'TransformerConfig',
  'attach',
  'attention_flops',
  'chain_flops',
  'decode',
  'extend',
  'forward',
  'head_logits',
  'init_cache',
  'init_head',
  'init_lora',
  'init_params',
  'lm_logits',
  'merge',
  'prefill',
  'product_flops',
  'quantize_backbone',
  'step_likelihood',
  'step_logits',
  'step_probabilities',
  'token_logprobs',
  'token_terms',
  'unstack_layers',
]
