"""Writes small GGUF files of known weights with the `gguf` package itself."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from prm_jax.models import TransformerConfig, init_params

gguf = pytest.importorskip('gguf', reason='needs: pip install gguf')
Kind = gguf.GGMLQuantizationType

CONFIG = TransformerConfig(
  vocab_size=40, d_model=64, n_layers=3, n_heads=4, n_kv_heads=2, d_ff=96
)
VARIANTS = {
  'llama': dataclasses.replace(CONFIG, tie_embeddings=False, head_dim=32),
  'qwen2': dataclasses.replace(CONFIG, qkv_bias=True),
  'qwen3': dataclasses.replace(CONFIG, qk_norm=True, head_dim=32),
}
BLANK, SPECIAL, TOOL, PADDING = 35, 36, 37, 38
# As byte-level BPE has it: a blank is 'Ġ'.
TOKENS = [*'0123456789abcdefghijklmnopqrstuvwx', 'ab', 'Ġ', '<|s|>', '<tool>']
TOKENS += ['[PAD38]', '12']
TYPES = [1] * 36 + [3, 4, 5, 1]
MERGES = ['a b', '1 2']


def permute(weight, heads):
  """Reorders query and key weights of Llama as llama.cpp's converter does."""
  shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
  return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def as_gguf(params, config, architecture):
  """Our parameters as (name, weight [outputs, inputs]) of a GGUF file."""
  yield 'token_embd.weight', params['embed_tokens']
  yield 'output_norm.weight', params['norm']['scale']
  if not config.tie_embeddings:
    yield 'output.weight', params['lm_head']
  layers, D = params['layers'], config.d_model
  for i in range(config.n_layers):
    attn = jax.tree.map(lambda leaf, i=i: leaf[i], layers['self_attn'])
    for name, heads in (('q', config.n_heads), ('k', config.n_kv_heads)):
      turn = functools.partial(permute, heads=heads)
      turn = turn if architecture == 'llama' else np.asarray
      kernel = attn[f'{name}_proj']['kernel'].reshape(D, -1).T
      yield f'blk.{i}.attn_{name}.weight', turn(kernel)
      if config.qk_norm:
        scale = attn[f'{name}_norm']['scale']
        yield f'blk.{i}.attn_{name}_norm.weight', scale
    kernel = attn['v_proj']['kernel'].reshape(D, -1).T
    yield f'blk.{i}.attn_v.weight', kernel
    if config.qkv_bias:
      for name in 'qkv':
        bias = attn[f'{name}_proj']['bias'].reshape(-1)
        yield f'blk.{i}.attn_{name}.bias', bias
    kernel = attn['o_proj']['kernel'].reshape(-1, D).T
    yield f'blk.{i}.attn_output.weight', kernel
    for name in ('gate', 'up', 'down'):
      kernel = layers['mlp'][f'{name}_proj']['kernel'][i].T
      yield f'blk.{i}.ffn_{name}.weight', kernel
    norms = layers['input_layernorm'], layers['post_attention_layernorm']
    yield f'blk.{i}.attn_norm.weight', norms[0]['scale'][i]
    yield f'blk.{i}.ffn_norm.weight', norms[1]['scale'][i]


def metadata(config):
  """Metadata that a converter writes; 'ARCH' stands for the architecture."""
  return {
    'ARCH.block_count': config.n_layers,
    'ARCH.context_length': 512,
    'ARCH.embedding_length': config.d_model,
    'ARCH.feed_forward_length': config.d_ff,
    'ARCH.attention.head_count': config.n_heads,
    'ARCH.attention.head_count_kv': config.n_kv_heads,
    'ARCH.attention.key_length': config.head_dim,
    'ARCH.attention.value_length': config.head_dim,
    'ARCH.rope.freq_base': 5e5,
    'ARCH.attention.layer_norm_rms_epsilon': 1e-5,
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': 'smollm',
    'tokenizer.ggml.tokens': TOKENS,
    'tokenizer.ggml.token_type': TYPES,
    'tokenizer.ggml.merges': MERGES,
    'tokenizer.ggml.bos_token_id': SPECIAL,
    'tokenizer.chat_template': '{{ messages }}',
  }


@functools.cache
def made(config):
  """Makes our parameters as numpy arrays."""
  init = functools.partial(init_params, config=config)
  # No two numbers alike, so that a swap shows; norms and biases too.
  leaves, tree = jax.tree.flatten(jax.eval_shape(init, jax.random.key(0)))
  random = np.random.default_rng(0)
  leaves = [random.normal(size=x.shape).astype('f') for x in leaves]
  return jax.tree.unflatten(tree, leaves)


def write(path, kind=Kind.F32, architecture='llama', keys=(), change=None):
  """Writes the parameters of `made` to a file; `change` edits its tensors."""
  config = VARIANTS.get(architecture, CONFIG)
  writer = gguf.GGUFWriter(path, architecture)
  add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
  add |= {float: writer.add_float32, list: writer.add_array}
  for key, value in (metadata(config) | dict(keys)).items():
    if value is not None:
      add[type(value)](key.replace('ARCH', architecture), value)
  tensors = dict(as_gguf(made(config), config, architecture))
  for name, weight in (change(tensors) if change else tensors).items():
    own = kind if weight.ndim == 2 else Kind.F32
    packed = gguf.quantize(np.ascontiguousarray(weight), own)
    writer.add_tensor(name, packed, raw_dtype=own)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path
