"""Tiny models of every family, as their authors would publish them.

Written by hand from the families' own names, without our table and without
JAX, so that the golden arrays can be made where only torch is installed. The
numbers come from `RandomState`, whose stream NumPy never changes.
"""

import json
import math
import pathlib

import numpy as np
from safetensors.numpy import save_file

SHAPE = {
  'vocab_size': 64,
  'hidden_size': 32,
  'intermediate_size': 48,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'hidden_act': 'silu',
  'rms_norm_eps': 1e-5,
  'max_position_embeddings': 256,
  'tie_word_embeddings': False,
}
CONFIGS = {
  'llama3': SHAPE
  | {
    'architectures': ['LlamaForCausalLM'],
    'model_type': 'llama',
    'rope_theta': 500.0,
    'rope_scaling': {
      'rope_type': 'llama3',
      'factor': 8.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      # Short, so that 24 tokens meet all three kinds of frequencies.
      'original_max_position_embeddings': 32,
    },
  },
  'qwen2': SHAPE
  | {
    'architectures': ['Qwen2ForCausalLM'],
    'model_type': 'qwen2',
    'rope_theta': 1_000_000.0,
    'tie_word_embeddings': True,
    'use_sliding_window': False,
    'sliding_window': 4,
  },
  'qwen3': SHAPE
  | {
    'architectures': ['Qwen3ForCausalLM'],
    'model_type': 'qwen3',
    'head_dim': 12,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 1_000_000.0},
  },
  'mistral': SHAPE
  | {
    'architectures': ['MistralForCausalLM'],
    'model_type': 'mistral',
    'rope_theta': 10_000.0,
    'sliding_window': 128,
  },
  'smollm2': SHAPE
  | {
    'architectures': ['LlamaForCausalLM'],
    'model_type': 'llama',
    'hidden_size': 36,
    'num_attention_heads': 6,
    'num_key_value_heads': 3,
    'rope_theta': 100_000.0,
    'tie_word_embeddings': True,
  },
}
TOKENS = np.random.RandomState(7).randint(0, SHAPE['vocab_size'], (2, 24))


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
  """Shapes of all tensors that the family's CausalLM saves."""
  d, ff = config['hidden_size'], config['intermediate_size']
  heads, kv_heads = (
    config['num_attention_heads'],
    config['num_key_value_heads'],
  )
  head_dim = config.get('head_dim', d // heads)
  found = {'model.embed_tokens.weight': (config['vocab_size'], d)}
  for i in range(config['num_hidden_layers']):
    layer = f'model.layers.{i}.'
    for name, n in (('q', heads), ('k', kv_heads), ('v', kv_heads)):
      found[f'{layer}self_attn.{name}_proj.weight'] = n * head_dim, d
      if config['model_type'] == 'qwen2':
        found[f'{layer}self_attn.{name}_proj.bias'] = (n * head_dim,)
    if config['model_type'] == 'qwen3':
      found[f'{layer}self_attn.q_norm.weight'] = (head_dim,)
      found[f'{layer}self_attn.k_norm.weight'] = (head_dim,)
    found[f'{layer}self_attn.o_proj.weight'] = d, heads * head_dim
    found[f'{layer}mlp.gate_proj.weight'] = ff, d
    found[f'{layer}mlp.up_proj.weight'] = ff, d
    found[f'{layer}mlp.down_proj.weight'] = d, ff
    found[f'{layer}input_layernorm.weight'] = (d,)
    found[f'{layer}post_attention_layernorm.weight'] = (d,)
  found['model.norm.weight'] = (d,)
  if not config['tie_word_embeddings']:
    found['lm_head.weight'] = config['vocab_size'], d
  return found


def random_tensors(
  shape_of: dict[str, tuple[int, ...]], seed: int = 0
) -> dict[str, np.ndarray]:
  """Draws float32 values as large as those of trained models."""
  random = np.random.RandomState(seed)
  found = {}
  for name, shape in shape_of.items():
    values = random.standard_normal(shape)
    if len(shape) == 2:
      values *= 1.0 / math.sqrt(shape[1])
    elif name.endswith('norm.weight'):
      values = 1.0 + 0.2 * values
    found[name] = values.astype(np.float32)
  return found


def write_model(
  directory: pathlib.Path,
  config: dict,
  tensors: dict[str, np.ndarray],
  shards: int = 1,
) -> pathlib.Path:
  """Writes a folder like save_pretrained, in one file or in several."""
  directory.mkdir(parents=True, exist_ok=True)
  (directory / 'config.json').write_text(json.dumps(config))
  if shards == 1:
    save_file(tensors, directory / 'model.safetensors', {'format': 'pt'})
    return directory
  weight_map = {}
  names = list(tensors)
  for i in range(shards):
    file = f'model-{i + 1:05}-of-{shards:05}.safetensors'
    part = {name: tensors[name] for name in names[i::shards]}
    save_file(part, directory / file, {'format': 'pt'})
    weight_map |= dict.fromkeys(part, file)
  index = {'metadata': {}, 'weight_map': weight_map}
  (directory / 'model.safetensors.index.json').write_text(json.dumps(index))
  return directory


def write_published(directory: pathlib.Path, family: str) -> pathlib.Path:
  """Writes one of CONFIGS with its random weights."""
  config = CONFIGS[family]
  return write_model(directory, config, random_tensors(shapes(config)))


# Heads as their authors name them: our name -> theirs, stored transposed.
HEADS = {
  'lm': {},
  'token_classification': {'kernel': 'score.weight', 'bias': 'score.bias'},
  'process_reward_model': {
    'hidden_kernel': 'score.0.weight',
    'hidden_bias': 'score.0.bias',
    'kernel': 'score.2.weight',
    'bias': 'score.2.bias',
  },
}


def read_head(files, layout: str) -> dict[str, np.ndarray]:
  """Reads the head from TensorFiles, in the form of `step_logits`."""
  return {ours: files.read(name).T for ours, name in HEADS[layout].items()}
