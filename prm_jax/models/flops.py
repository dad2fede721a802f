"""What a transformer computes: floating point operations, counted by hand.

One definition for all who ask: ledgers of search (policy and PRM side by
side) and the bounds of `prm_jax.aot`. What any implementation needs: padding,
masked scores, norms and nonlinearities are not among it.
"""

from prm_jax.models.config import TransformerConfig


def product_flops(
  config: TransformerConfig, tokens: float, logits: float = 0
) -> float:
  """Of products with weights: 2 per weight and token (Kaplan et al., 2020).

  Args:
    tokens: that go through the layers; to look one up is no product.
    logits: of these, at how many the next token's logits are computed.
  """
  heads = config.n_heads + config.n_kv_heads
  layer = config.d_model * (2 * heads * config.head_dim + 3 * config.d_ff)
  embedding = config.d_model * config.vocab_size
  return 2.0 * (tokens * config.n_layers * layer + logits * embedding)


def attention_flops(config: TransformerConfig, pairs: float) -> float:
  """Of the two products of attention: 4 H per pair of tokens, head and layer.

  Args:
    pairs: of a token and one that it sees, itself included.
  """
  return 4.0 * pairs * config.head_dim * config.n_heads * config.n_layers


def chain_flops(
  config: TransformerConfig, first: int, tokens: int, logits: int = 0
) -> float:
  """Of a forward pass over a part of a chain that sees all before it.

  Args:
    first: position of the first of these tokens; what stands before it has
      been read.
    tokens: how many go through the layers.
    logits: as in `product_flops`.
  """
  pairs = tokens * first + tokens * (tokens + 1) / 2
  return product_flops(config, tokens, logits) + attention_flops(config, pairs)
