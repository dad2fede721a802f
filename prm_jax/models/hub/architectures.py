"""Converts a published model's config.json to a TransformerConfig and back.

This runs before any weight is read. Models whose architecture we cannot
reproduce exactly are rejected here, so every model that opens gives the numbers
that its authors got.
"""

import pathlib
from typing import Any

from prm_jax.models.config import RopeScaling, TransformerConfig
from prm_jax.models.hub.safetensors_files import read_json
from prm_jax.runtime.errors import UserError

FAMILIES = {
  'llama': 'LlamaFor',
  'mistral': 'MistralFor',
  'qwen2': 'Qwen2For',
  'qwen3': 'Qwen3For',
}
# The values that transformers uses if a config.json does not set them.
DEFAULT_LENGTH = {
  'llama': 2048,
  'mistral': 131_072,
  'qwen2': 32_768,
  'qwen3': 32_768,
}
DEFAULT_WINDOW = 4096
LAYOUTS = {
  'lm': 'CausalLM',
  'token_classification': 'TokenClassification',
  'process_reward_model': 'ProcessRewardModel',
}
# Architectures with a head of their own and no output embedding.
HEADED = (
  'ForTokenClassification',
  'ForSequenceClassification',
  'ForProcessRewardModel',
  'ForRewardModel',
  'ForPrmModel',
)
LARGEST = 10**12  # beyond any number of a model, and far from overflow
# Keys that change the computation, with the one value that we support.
FIXED = {
  'hidden_act': 'silu',
  'attention_bias': False,
  'mlp_bias': False,
  'partial_rotary_factor': 1.0,
  'quantization_config': None,
}


class _Fields:
  """Reads values of one config.json; its errors name the file and the key."""

  def __init__(self, path: pathlib.Path, values: dict[str, Any]) -> None:
    self.path, self.values = path, values

  def unsupported(self, key: str, value: Any, supported: str) -> UserError:
    return UserError(
      f'{self.path}: {key}={value!r} is not what this project computes; '
      f'supported: {supported}'
    )

  def number(
    self, key: str, default: float | None = None, kind: type = int
  ) -> Any:
    """Returns a positive number; null counts as absent."""
    value = self.values.get(key)
    if value is None:
      value = default
    kinds = (int,) if kind is int else (int, float)
    right = isinstance(value, kinds) and not isinstance(value, bool)
    if not right or not 0 < value <= LARGEST:
      what = 'a positive integer' if kind is int else 'a positive number'
      raise self.unsupported(key, value, what)
    return kind(value)

  def flag(self, key: str, default: bool) -> bool:
    value = self.values.get(key, default)
    if not isinstance(value, bool):
      raise self.unsupported(key, value, 'true or false')
    return value

  def expect(self, key: str, only: Any) -> None:
    value = self.values.get(key)
    if value is not None and value != only:
      raise self.unsupported(key, value, f'{only!r}')


def read_architecture(
  directory: str | pathlib.Path,
) -> tuple[TransformerConfig, int]:
  """Reads the config.json of a model's folder.

  `model_type` names the family. A model whose architecture is one of HEADED has
  no output embedding and gets `tie_embeddings=True`.

  Args:
    directory: folder of a Llama (with Llama 3's rope scaling or none), Mistral,
      Qwen2 or Qwen3 model, saved by any version of transformers.

  Returns:
    The config, and the longest sequence in tokens that we compute exactly as
    the model does: its context length, or its sliding window if that is
    shorter.

  Raises:
    UserError: the file is missing or damaged, or the model computes something
      that we do not. The message names file, key, value and what is supported.
  """
  path = pathlib.Path(directory) / 'config.json'
  fields = _Fields(path, read_json(path))
  family = fields.values.get('model_type')
  if family is None and 'task' in fields.values:
    raise UserError(
      f'{path} is that of a job here, which has written no model; name a '
      'training run, and let it end first'
    )
  if not isinstance(family, str) or family not in FAMILIES:
    raise fields.unsupported('model_type', family, ', '.join(FAMILIES))
  for key, only in FIXED.items():
    fields.expect(key, only)
  d_model = fields.number('hidden_size')
  heads = fields.number('num_attention_heads')
  # The other families' defaults are those of one model size, so a config.json
  # of theirs must set the key.
  kv_heads = fields.number(
    'num_key_value_heads', heads if family == 'llama' else None
  )
  if heads % kv_heads:
    raise fields.unsupported(
      'num_key_value_heads', kv_heads, f'a divisor of {heads} attention heads'
    )
  if fields.values.get('head_dim') is None and family != 'qwen3':
    if d_model % heads:
      raise fields.unsupported(
        'hidden_size', d_model, f'a multiple of {heads} attention heads'
      )
    head_dim = d_model // heads
  else:
    head_dim = fields.number('head_dim', 128)  # Qwen3's default
  if head_dim % 2:
    raise fields.unsupported('head_dim', head_dim, 'an even number')
  theta, scaling = _rope(fields)
  config = TransformerConfig(
    vocab_size=fields.number('vocab_size'),
    d_model=d_model,
    n_layers=fields.number('num_hidden_layers'),
    n_heads=heads,
    n_kv_heads=kv_heads,
    d_ff=fields.number('intermediate_size'),
    head_dim=head_dim,
    rope_theta=theta,
    rope_scaling=scaling,
    norm_eps=fields.number('rms_norm_eps', 1e-6, float),
    qkv_bias=family == 'qwen2',
    qk_norm=family == 'qwen3',
    tie_embeddings=(
      fields.flag('tie_word_embeddings', False) or _has_head(fields)
    ),
  )
  return config, _longest(fields, family, config.n_layers)


def ties_output(directory: str | pathlib.Path) -> bool:
  """Says whether config.json ties the output embedding of an LM to its input's.

  Models of HEADED have none to tie. The arguments and errors are those of
  `read_architecture`.
  """
  path = pathlib.Path(directory) / 'config.json'
  fields = _Fields(path, read_json(path))
  tied = fields.flag('tie_word_embeddings', False)
  return tied and not _has_head(fields)


def _has_head(fields: _Fields) -> bool:
  """Says whether the model has a classification head, not an LM head."""
  names = fields.values.get('architectures')
  if names is None:
    return False
  if not isinstance(names, list) or len(names) != 1:
    raise fields.unsupported('architectures', names, 'a list of one name')
  return str(names[0]).endswith(HEADED)


def _rope(fields: _Fields) -> tuple[float, RopeScaling | None]:
  """Reads theta and scaling, from keys of transformers 5 or earlier ones."""
  key = 'rope_parameters'
  if fields.values.get(key) is None:
    key = 'rope_scaling'
  elif fields.values.get('rope_scaling') is not None:
    # transformers 5 prefers the second, and version 4 knows no other.
    raise fields.unsupported(
      'rope_scaling', fields.values['rope_scaling'], f'null beside {key}'
    )
  given = fields.values.get(key)
  if given is None:
    return fields.number('rope_theta', 10_000.0, float), None
  if not isinstance(given, dict):
    raise fields.unsupported(key, given, 'null, or an object with a rope_type')
  rope = _Fields(fields.path, given)
  kind = given.get('rope_type', given.get('type', 'default'))
  if kind not in ('default', 'llama3'):
    raise fields.unsupported(f'{key}.rope_type', kind, 'default, llama3')
  if any(isinstance(value, dict) for value in given.values()):
    raise fields.unsupported(key, given, 'one rope_type for all layers')
  rope.expect('partial_rotary_factor', 1.0)
  outside = fields.number('rope_theta', 10_000.0, float)
  theta = rope.number('rope_theta', outside, float)
  if kind == 'default':
    return theta, None
  try:
    return theta, RopeScaling(
      rope.number('factor', kind=float),
      rope.number('low_freq_factor', kind=float),
      rope.number('high_freq_factor', kind=float),
      rope.number(
        'original_max_position_embeddings',
        fields.values.get('max_position_embeddings'),
      ),
    )
  except UserError as error:
    raise UserError(f'{error} (in {key} of {fields.path})') from None


def _longest(fields: _Fields, family: str, n_layers: int) -> int:
  longest = fields.number('max_position_embeddings', DEFAULT_LENGTH[family])
  if _slides(fields, family, n_layers):
    # Up to the window's length, the window hides no token.
    longest = min(longest, fields.number('sliding_window', DEFAULT_WINDOW))
  return longest


def _slides(fields: _Fields, family: str, n_layers: int) -> bool:
  """Says whether some layer has a sliding window."""
  layers = fields.values.get('layer_types')
  if layers is not None:
    known = ['full_attention', 'sliding_attention']
    if not isinstance(layers, list) or any(x not in known for x in layers):
      raise fields.unsupported('layer_types', layers, f'a list of {known}')
  if family == 'llama':
    return False
  # Null means no window; an absent key means the default window.
  windowed = fields.values.get('sliding_window', DEFAULT_WINDOW) is not None
  if family == 'mistral':
    return windowed
  if not fields.flag('use_sliding_window', False) or not windowed:
    return False
  if layers is not None:
    return 'sliding_attention' in layers
  first = fields.values.get('max_window_layers', 28)
  if not isinstance(first, int):
    raise fields.unsupported('max_window_layers', first, 'a number of layers')
  return first < n_layers


def family_of(config: TransformerConfig) -> str:
  """Returns the model_type that computes what `config` does.

  Raises:
    UserError: no published family does.
  """
  if config.qk_norm and config.qkv_bias:
    raise UserError(
      'model.qk_norm and model.qkv_bias are both set, and no published family '
      'has both; train with one of them to export'
    )
  if config.qk_norm:
    return 'qwen3'
  return 'qwen2' if config.qkv_bias else 'llama'


def architecture_json(
  config: TransformerConfig, layout: str, max_length: int, dtype: str
) -> dict[str, Any]:
  """Returns a config.json with which transformers computes the same.

  Args:
    layout: one of LAYOUTS.
    dtype: type of the stored weights, 'float32' or 'bfloat16'.

  Raises:
    UserError: no family computes it, or none with this layout.
  """
  family = family_of(config)
  if family == 'llama' and config.d_model % config.n_heads:
    raise UserError(
      f'model.d_model={config.d_model} is no multiple of n_heads='
      f'{config.n_heads}, which transformers asks of Llama; train with another '
      'd_model to export'
    )
  if layout not in LAYOUTS:
    raise UserError(f'layout {layout!r}: expected one of {", ".join(LAYOUTS)}')
  if layout == 'process_reward_model' and family != 'qwen2':
    raise UserError(
      f'layout process_reward_model needs a model of the Qwen2 family, this '
      f'one is {family}; choose token_classification'
    )
  # Keys of transformers before version 5, which later versions also read.
  found = {
    'architectures': [FAMILIES[family] + LAYOUTS[layout]],
    'model_type': family,
    'vocab_size': config.vocab_size,
    'hidden_size': config.d_model,
    'num_hidden_layers': config.n_layers,
    'num_attention_heads': config.n_heads,
    'num_key_value_heads': config.n_kv_heads,
    'head_dim': config.head_dim,
    'intermediate_size': config.d_ff,
    'hidden_act': 'silu',
    'rms_norm_eps': config.norm_eps,
    'rope_theta': config.rope_theta,
    'rope_scaling': None,
    'max_position_embeddings': max_length,
    'tie_word_embeddings': config.tie_embeddings,
    'attention_dropout': 0.0,
    'torch_dtype': dtype,
  }
  if family == 'llama':
    found |= {'attention_bias': False, 'mlp_bias': False}
  if family == 'qwen3':
    found |= {'attention_bias': False}
  if family != 'llama':
    found |= {'use_sliding_window': False}
  if config.rope_scaling is not None:
    found['rope_scaling'] = {
      'rope_type': 'llama3',
      'factor': config.rope_scaling.factor,
      'low_freq_factor': config.rope_scaling.low_freq_factor,
      'high_freq_factor': config.rope_scaling.high_freq_factor,
      'original_max_position_embeddings': config.rope_scaling.original_length,
    }
  if layout != 'lm':
    found |= {
      'num_labels': 2,
      'id2label': {'0': 'wrong', '1': 'right'},
      'label2id': {'wrong': 0, 'right': 1},
    }
  return found
