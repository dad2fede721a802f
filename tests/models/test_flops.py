"""FLOPs by hand, and compared with XLA's count."""

import jax
import jax.numpy as jnp
import pytest

from prm_jax.models import (
  TransformerConfig,
  attention_flops,
  chain_flops,
  decode,
  init_cache,
  init_params,
  lm_logits,
  product_flops,
  unstack_layers,
)

MODEL = TransformerConfig(50, 8, 3, 2, 1, 16, head_dim=4)


def test_formulas_by_hand():
  # A layer has 8 x (2 x (2 + 1) x 4 + 3 x 16) = 576 parameters.
  assert product_flops(MODEL, 5) == 2 * 5 * 576 * 3
  assert product_flops(MODEL, 5, 2) == 2 * (5 * 576 * 3 + 2 * 50 * 8)
  # Two products (q k and p v) of 4 numbers, for two heads in three layers.
  assert attention_flops(MODEL, 7) == 2 * 7 * 2 * (2 * 4) * 3
  # The tokens at positions 3 and 4 see 4 and 5 tokens.
  assert chain_flops(MODEL, 3, 2, 1) == (
    product_flops(MODEL, 2, 1) + attention_flops(MODEL, 9)
  )


def test_parts_of_a_chain_add_up():
  whole = chain_flops(MODEL, 0, 20, 12)
  parts = chain_flops(MODEL, 0, 8) + sum(
    chain_flops(MODEL, n, 1, 1) for n in range(8, 20)
  )
  assert whole == pytest.approx(parts)


@pytest.mark.parametrize('heads', [0, 3], ids=['layers', 'logits'])
def test_the_count_is_near_xlas(heads):
  """For the last three tokens of a full cache, with and without logits."""
  model = TransformerConfig(512, 256, 2, 4, 2, 512)
  S, T = 128, 3

  def read(params, tokens, cache):
    positions = S - T + jnp.arange(T)[None]
    hidden, cache = decode(params, model, tokens, positions, cache)
    return lm_logits(params, model, hidden) if heads else hidden, cache

  def arguments(key):
    params = unstack_layers(init_params(key, model), model)
    return params, jnp.zeros((1, T), jnp.int32), init_cache(model, 1, S)

  shapes = jax.eval_shape(arguments, jax.random.key(0))
  counted = jax.jit(read).lower(*shapes).compile().cost_analysis()['flops']
  ours = chain_flops(model, S - T, T, heads)
  # XLA also counts norms, rotary positions, softmax and masked pairs.
  assert 0.95 * counted < ours < counted
