"""Defines the decoder of the Llama and Qwen shapes, as pure functions.

A row holds trees of tokens in depth-first order: `positions` are depths, and
`last` is the index of the last token of each token's subtree. Query i sees key
j where j <= i <= last[j]. A chain is a tree without branches. A group of rows
may share a `Prefix`: keys and values of a prompt that are computed once. Rows
may also grow: `decode` reads a few tokens at a time and keeps the keys and
values of all earlier ones in a `Cache`.

Layers are stacked along a leading axis of every parameter and run by a scan, so
compile time does not grow with depth; only `decode` takes them apart.
Parameters have Hugging Face's names.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from prm_jax.models.attention import apply_rope, attention, cached_attention
from prm_jax.models.config import TransformerConfig
from prm_jax.models.layers import Projection, RMSNorm, embed
from prm_jax.models.remat import keep_products
from prm_jax.models.splits import (
  parts_of_heads,
  parts_of_rows,
  parts_of_width,
  whole_rows,
)
from prm_jax.models.take import take_tokens
from prm_jax.runtime.sharding import BATCH, constrain

Params = dict[str, Any]


class Prefix(NamedTuple):
  """Keys and values of tokens that the rows of a group share."""

  keys: jax.Array  # [L, G, S, K, H]
  values: jax.Array  # [L, G, S, K, H]
  mask: jax.Array  # [G, S] bool, False is padding


class Cache(NamedTuple):
  """Keys and values of the tokens that rows have read so far, by position.

  There is one array per layer, so that new entries are written in place. H is
  the last axis, so that the values of an entry are adjacent: otherwise writing
  keys took three times as long on CPU.
  """

  keys: tuple[jax.Array, ...]  # L of [B, K, S, H]
  values: tuple[jax.Array, ...]  # L of [B, K, S, H]


class Attention(nn.Module):
  """Computes self-attention, and also returns its keys and values.

  With `prefix_mask`, `kv` belongs to a prefix. Without it, `kv` is a cache and
  is returned with the new keys and values written at their positions. With
  `read`, the result is that of these tokens only. `spread`: see `decode`.
  """

  config: TransformerConfig
  spread: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    kv: Sequence[jax.Array] | None,
    positions: jax.Array,
    last: jax.Array | None,
    prefix_mask: jax.Array | None,
    read: jax.Array | None = None,
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    c = self.config

    def project(name: str, heads: int) -> jax.Array:
      shape = (heads, c.head_dim)
      out = Projection(shape, c.dtype, bias=c.qkv_bias, name=name)(x)
      if self.spread:
        return constrain(out, BATCH, None, 'model')
      return parts_of_heads(out, spread=False)

    def rotate(name: str, heads: int) -> jax.Array:
      heads = project(f'{name}_proj', heads)
      if c.qk_norm:
        heads = RMSNorm(c.norm_eps, name=f'{name}_norm')(heads)
      return apply_rope(heads, positions, c.rope_theta, c.rope_scaling)

    query, key = rotate('q', c.n_heads), rotate('k', c.n_kv_heads)
    value = project('v_proj', c.n_kv_heads)
    if kv is not None and prefix_mask is None:
      # Row by row, so that devices write their own rows without communication.
      # Where places could be equal, a GPU would sort them, to have the same
      # bits each time.
      write = jax.vmap(
        lambda old, at, new: old.at[:, at].set(new, unique_indices=True)
      )
      key = write(kv[0], positions, key.swapaxes(1, 2))
      value = write(kv[1], positions, value.swapaxes(1, 2))
      key = constrain(key, BATCH, 'model')
      value = constrain(value, BATCH, 'model')
      out = cached_attention(query, key, value, positions)
    else:
      prefix = None if kv is None else (*kv, prefix_mask)
      out = attention(query, key, value, last, prefix)
    if read is not None:
      out = take_tokens(out, read)
    out = parts_of_heads(out, self.spread)
    gain = (2 * c.n_layers) ** -0.5  # keeps the residual stream near 1
    out = Projection((c.d_model,), c.dtype, 2, gain=gain, name='o_proj')(out)
    return out, (key, value)


class Mlp(nn.Module):
  """Computes SwiGLU (Shazeer, 2020): down(silu(gate(x)) * up(x))."""

  config: TransformerConfig
  spread: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [B, T, D] -> [B, T, D]
    c = self.config
    gate, up = (
      parts_of_heads(Projection((c.d_ff,), c.dtype, name=name)(x), self.spread)
      for name in ('gate_proj', 'up_proj')
    )
    gain = (2 * c.n_layers) ** -0.5
    down = Projection((c.d_model,), c.dtype, gain=gain, name='down_proj')
    return down(jax.nn.silu(gate) * up)


class Block(nn.Module):
  """Is one layer, in the form that scan expects: (carry, xs) -> (carry, ys).

  With `read`, the result is that of these tokens only. `spread`: see `decode`.
  """

  config: TransformerConfig
  keep_kv: bool
  spread: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    kv: Sequence[jax.Array] | None,
    positions: jax.Array,
    last: jax.Array | None,
    prefix_mask: jax.Array | None,
    read: jax.Array | None = None,
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
    c = self.config
    between, within = parts_of_rows, whole_rows
    if self.spread:
      between = within = parts_of_width
    normed = within(RMSNorm(c.norm_eps, name='input_layernorm')(x))
    attended, new_kv = Attention(c, self.spread, name='self_attn')(
      normed, kv, positions, last, prefix_mask, read
    )
    if read is not None:
      x = take_tokens(within(x), read)
    x = between(x + attended)
    normed = RMSNorm(c.norm_eps, name='post_attention_layernorm')(x)
    x = between(x + Mlp(c, self.spread, name='mlp')(within(normed)))
    return x, new_kv if self.keep_kv else None


def _remat(config: TransformerConfig) -> type[Block]:
  if config.remat == 'none':
    return Block
  policy = keep_products if config.remat == 'dots' else None
  return nn.remat(Block, prevent_cse=False, policy=policy)


class Transformer(nn.Module):
  """Runs embedding, layers and final norm; owns an untied output embedding.

  With `read`, the result is that of these tokens only, and an unrolled model
  computes no others after the last layer's attention.
  """

  config: TransformerConfig
  keep_kv: bool = False

  @nn.compact
  def __call__(
    self,
    tokens: jax.Array,
    positions: jax.Array,
    last: jax.Array,
    kv: tuple[jax.Array, jax.Array] | None,
    prefix_mask: jax.Array | None,
    read: jax.Array | None = None,
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
    c = self.config
    embedding = self.param(
      'embed_tokens', nn.initializers.normal(0.02), (c.vocab_size, c.d_model)
    )
    if not c.tie_embeddings:
      self.param(
        'lm_head',
        nn.initializers.normal(c.d_model**-0.5),
        (c.vocab_size, c.d_model),
      )
    # In two steps, or each device would gather the vectors of all words.
    x = parts_of_rows(whole_rows(embed(embedding, tokens, c.dtype)))
    final_norm = RMSNorm(c.norm_eps, name='norm')
    if read is not None and c.scan_unroll >= c.n_layers:
      stacked = self.variables['params']['layers'], kv
      block, new_kv = _remat(c)(c, self.keep_kv, parent=None), []
      for i in range(c.n_layers):
        layer, old = jax.tree.map(operator.itemgetter(i), stacked)
        where = read if i + 1 == c.n_layers else None
        x, new = block.apply(
          {'params': layer}, x, old, positions, last, prefix_mask, where
        )
        new_kv.append(new)
      return final_norm(x), jax.tree.map(lambda *xs: jnp.stack(xs), *new_kv)
    layers = nn.scan(
      _remat(c),
      variable_axes={'params': 0},
      split_rngs={'params': True},
      in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
      length=c.n_layers,
      unroll=c.scan_unroll,
    )(c, self.keep_kv, name='layers')
    x, new_kv = layers(x, kv, positions, last, prefix_mask)
    if read is not None:
      x = take_tokens(whole_rows(x), read)
    return final_norm(x), new_kv


def init_params(key: jax.Array, config: TransformerConfig) -> Params:
  """Makes random float32 parameters; call it under jit."""
  row = jnp.zeros((1, 2), jnp.int32)
  variables = Transformer(config).init(key, row, row, row, None, None)
  return variables['params']


def forward(
  params: Params,
  config: TransformerConfig,
  tokens: jax.Array,  # [B, T]
  positions: jax.Array,  # [B, T] depths, prefix included
  last: jax.Array,  # [B, T] the last token of each token's subtree
  prefix: Prefix | None = None,  # its G must divide B; row b uses b // (B/G)
  read: jax.Array | None = None,  # [B, P] indices of tokens; None: all
) -> jax.Array:  # [B, T, D], or [B, P, D]
  """Returns the hidden states after the final norm."""
  kv = None if prefix is None else (prefix.keys, prefix.values)
  mask = None if prefix is None else prefix.mask
  hidden, _ = Transformer(config).apply(
    {'params': params}, tokens, positions, last, kv, mask, read
  )
  return hidden


def extend(
  params: Params,
  config: TransformerConfig,
  tokens: jax.Array,  # [B, T]
  positions: jax.Array,  # [B, T] depths, prefix included
  last: jax.Array,  # [B, T] the last token of each token's subtree
  prefix: Prefix | None,
  read: jax.Array | None = None,  # as `forward` takes it
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns `forward`'s result and these tokens' keys and values.

  Keys and values are each [L, B, T, K, H].
  """
  kv = None if prefix is None else (prefix.keys, prefix.values)
  mask = None if prefix is None else prefix.mask
  hidden, (keys, values) = Transformer(config, keep_kv=True).apply(
    {'params': params}, tokens, positions, last, kv, mask, read
  )
  return hidden, keys, values


def prefill(
  params: Params,
  config: TransformerConfig,
  tokens: jax.Array,  # [G, S], padded on the right
  mask: jax.Array,  # [G, S] bool
) -> Prefix:
  """Computes the prefix that rows of `forward` can share."""
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  last = jnp.where(mask, mask.sum(1, keepdims=True) - 1, positions)
  _, *kv = extend(params, config, tokens, positions, last, None)
  return Prefix(*kv, mask)


def unstack_layers(params: Params, config: TransformerConfig) -> Params:
  """Converts parameters to the form that `decode` reads; call it under jit.

  Decoding reads every weight for every token, so layers are sliced and weights
  are cast to the products' dtype here, once, and not for each token.
  """

  def cast(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
    # Norms and biases stay float32, as they are computed in it.
    small = path[-1].key in ('scale', 'bias')
    return leaf if small else leaf.astype(config.dtype)

  def layer(i: int) -> Params:
    return jax.tree.map(lambda leaf: leaf[i], params['layers'])

  params = jax.tree.map_with_path(cast, params)
  return params | {'layers': tuple(map(layer, range(config.n_layers)))}


def init_cache(config: TransformerConfig, rows: int, length: int) -> Cache:
  """Makes an empty cache for positions 0 to `length` - 1."""
  shape = rows, config.n_kv_heads, length, config.head_dim

  def zeros() -> tuple[jax.Array, ...]:
    layers = range(config.n_layers)
    return tuple(jnp.zeros(shape, config.dtype) for _ in layers)

  return Cache(zeros(), zeros())


def decode(
  params: Params,  # from `unstack_layers`
  config: TransformerConfig,
  tokens: jax.Array,  # [B, T] the next tokens of each row
  positions: jax.Array,  # [B, T]; tokens at or beyond S are not cached
  cache: Cache,
  spread: bool = False,
) -> tuple[jax.Array, Cache]:  # [B, T, D]
  """Returns hidden states of each row's next tokens, and the grown cache.

  A row holds one chain. A token sees the positions up to its own only, so a row
  may start again at position 0 without clearing the cache.

  Args:
    spread: whether parameters are split over `fsdp`, too. Then states are
      exchanged within every layer, and parameters never.
  """
  split = parts_of_width if spread else whole_rows
  width = 'fsdp' if spread else None
  table = constrain(params['embed_tokens'], 'model', width)
  x = split(table[tokens])
  block, new = Block(config, keep_kv=True, spread=spread), []
  for layer, *kv in zip(params['layers'], *cache, strict=True):
    x, new_kv = block.apply({'params': layer}, x, kv, positions, None, None)
    new.append(new_kv)
  x = split(RMSNorm(config.norm_eps).apply({'params': params['norm']}, x))
  return x, Cache(*zip(*new, strict=True))


def output_embedding(params: Params, config: TransformerConfig) -> jax.Array:
  """Returns the vectors [V, D] whose products with states are logits."""
  return params['embed_tokens' if config.tie_embeddings else 'lm_head']


def lm_logits(
  params: Params,
  config: TransformerConfig,
  hidden: jax.Array,  # [B, T, D]
) -> jax.Array:  # [B, T, V] float32
  """Returns the logits of the next token."""
  logits = jnp.einsum(
    'BTD,VD->BTV',
    hidden,
    output_embedding(params, config).astype(config.dtype),
    preferred_element_type=jnp.float32,
  )
  return constrain(logits, BATCH, None, 'model')
