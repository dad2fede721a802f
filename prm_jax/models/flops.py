"""Counts the floating point operations of a transformer by formula.

The ledgers of search and the bounds of `prm_jax.aot` share this definition. It
counts what any implementation must compute, so no padding, masked scores, norms
or nonlinearities.
"""

from prm_jax.models.config import TransformerConfig


def product_flops(
  config: TransformerConfig, tokens: float, logits: float = 0
) -> float:
  """Counts products with weights: 2 per weight and token (Kaplan et al., 2020).

  Args:
    tokens: how many go through the layers; the embedding lookup is free.
    logits: at how many of them the next token's logits are computed.
  """
  heads = config.n_heads + config.n_kv_heads
  layer = config.d_model * (2 * heads * config.head_dim + 3 * config.d_ff)
  embedding = config.d_model * config.vocab_size
  return 2.0 * (tokens * config.n_layers * layer + logits * embedding)


def attention_flops(config: TransformerConfig, pairs: float) -> float:
  """Counts attention's two products: 4 H per pair of tokens, head and layer.

  Args:
    pairs: number of pairs of a token and one that it sees, itself included.
  """
  return 4.0 * pairs * config.head_dim * config.n_heads * config.n_layers


def chain_flops(
  config: TransformerConfig, first: int, tokens: int, logits: int = 0
) -> float:
  """Counts a forward pass over part of a chain that sees all tokens before.

  Args:
    first: position of the part's first token; earlier tokens were read before.
    tokens: length of the part.
    logits: as in `product_flops`.
  """
  pairs = tokens * first + tokens * (tokens + 1) / 2
  return product_flops(config, tokens, logits) + attention_flops(config, pairs)
