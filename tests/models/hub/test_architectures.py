"""config.json to TransformerConfig and back, and which models are rejected."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.models import TransformerConfig
from prm_jax.models.hub.architectures import (
  architecture_json,
  read_architecture,
)
from prm_jax.runtime.errors import UserError
from tests.models.hub.published_architectures import LLAMA3_ROPE, PUBLISHED
from tests.models.hub.published_configs import CONFIGS


def read(directory, values):
  (directory / 'config.json').write_text(json.dumps(values))
  return read_architecture(directory)


def changed(family, **changes):
  """A tiny config with some keys changed; `...` removes a key."""
  values = CONFIGS[family] | changes
  return {key: value for key, value in values.items() if value is not ...}


@pytest.mark.parametrize('name', PUBLISHED)
def test_published_configs(name, tmp_path):
  values, config, longest = PUBLISHED[name]
  assert read(tmp_path, values) == (config, longest)


@pytest.mark.parametrize('name', PUBLISHED)
def test_keys_of_old_and_new_transformers(name, tmp_path):
  values = dict(PUBLISHED[name][0])
  rope = {'rope_theta': values.pop('rope_theta')}
  rope |= values.pop('rope_scaling', None) or {'rope_type': 'default'}
  values['rope_parameters'] = rope
  assert read(tmp_path, values) == PUBLISHED[name][1:]


def test_the_old_name_of_rope_type(tmp_path):
  rope = {key: v for key, v in LLAMA3_ROPE.items() if key != 'rope_type'}
  values = changed('llama3', rope_scaling=rope | {'type': 'llama3'})
  assert read(tmp_path, values)[0].rope_scaling.original_length == 8192
  del rope['original_max_position_embeddings']  # the model's own length then
  values['rope_scaling'] = rope | {'type': 'llama3'}
  assert read(tmp_path, values)[0].rope_scaling.original_length == 256


@pytest.mark.parametrize(
  ('architecture', 'tied'),
  [
    ('LlamaForCausalLM', False),
    ('LlamaForAnythingElse', False),
    ('LlamaForTokenClassification', True),
    ('Qwen2ForProcessRewardModel', True),
  ],
)
def test_a_head_replaces_the_output_embedding(architecture, tied, tmp_path):
  values = changed('llama3', architectures=[architecture])
  assert read(tmp_path, values)[0].tie_embeddings is tied


SLIDING = {'use_sliding_window': True, 'sliding_window': 16}


@pytest.mark.parametrize(
  ('family', 'changes', 'longest'),
  [
    ('mistral', {'sliding_window': 16}, 16),
    ('mistral', {'sliding_window': 4096}, 256),
    (
      'mistral',
      {'sliding_window': None, 'max_position_embeddings': ...},
      2**17,
    ),
    ('mistral', {'sliding_window': ..., 'max_position_embeddings': ...}, 4096),
    ('llama3', {'sliding_window': 16}, 256),
    ('llama3', {'max_position_embeddings': ...}, 2048),
    ('qwen2', {'use_sliding_window': False, 'sliding_window': 16}, 256),
    ('qwen2', SLIDING, 256),  # 28 layers come before the first that slides
    ('qwen2', SLIDING | {'max_window_layers': 2}, 16),
    ('qwen2', SLIDING | {'max_window_layers': 0}, 16),
    ('qwen2', SLIDING | {'max_window_layers': 3}, 256),
    ('qwen3', SLIDING | {'max_window_layers': 1}, 16),
    (
      'qwen3',
      SLIDING | {'layer_types': ['full_attention'] * 2 + ['sliding_attention']},
      16,
    ),
    ('qwen3', SLIDING | {'layer_types': ['full_attention'] * 3}, 256),
  ],
)
def test_the_longest_sequence(family, changes, longest, tmp_path):
  assert read(tmp_path, changed(family, **changes))[1] == longest


@pytest.mark.parametrize(
  ('family', 'changes', 'message'),
  [
    ('llama3', {'model_type': 'gpt2'}, "model_type='gpt2' .*llama, mistral"),
    ('llama3', {'model_type': ...}, 'model_type=None'),
    (
      'llama3',
      {'model_type': ..., 'task': 'prm'},
      'is that of a job here, which has written no model; name a training run',
    ),
    ('llama3', {'model_type': ['llama']}, r"model_type=\['llama'\]"),
    ('llama3', {'hidden_act': 'gelu'}, "hidden_act='gelu' .*: 'silu'"),
    ('llama3', {'attention_bias': True}, 'attention_bias=True .*: False'),
    ('llama3', {'mlp_bias': True}, 'mlp_bias=True'),
    ('llama3', {'partial_rotary_factor': 0.5}, 'partial_rotary_factor=0.5'),
    ('llama3', {'quantization_config': {'bits': 4}}, 'quantization_config='),
    ('llama3', {'num_key_value_heads': 3}, 'num_key_value_heads=3 .*divisor'),
    (
      'llama3',
      {'num_attention_heads': 3, 'num_key_value_heads': 1},
      'multiple',
    ),
    ('mistral', {'num_key_value_heads': ...}, 'num_key_value_heads=None'),
    ('qwen3', {'head_dim': 11}, 'head_dim=11 .*an even number'),
    ('qwen2', {'hidden_size': '32'}, "hidden_size='32' .*a positive integer"),
    ('qwen2', {'hidden_size': 32.0}, 'hidden_size=32.0'),
    ('qwen2', {'vocab_size': True}, 'vocab_size=True'),
    ('qwen2', {'vocab_size': 0}, 'vocab_size=0'),
    ('qwen2', {'vocab_size': 10**13}, 'vocab_size=1000'),
    ('qwen2', {'rms_norm_eps': 10**400}, 'rms_norm_eps=1000'),
    ('qwen2', {'num_hidden_layers': -3}, 'num_hidden_layers=-3'),
    ('qwen2', {'intermediate_size': ...}, 'intermediate_size=None'),
    ('qwen2', {'rms_norm_eps': float('nan')}, 'rms_norm_eps=nan'),
    ('qwen2', {'rope_theta': float('inf')}, 'rope_theta=inf'),
    ('qwen2', {'tie_word_embeddings': 'yes'}, "tie_word_embeddings='yes'"),
    ('qwen2', {'use_sliding_window': 1}, 'use_sliding_window=1'),
    ('qwen2', SLIDING | {'max_window_layers': '2'}, "max_window_layers='2'"),
    ('qwen2', SLIDING | {'sliding_window': 0, 'max_window_layers': 0}, 'ow=0'),
    ('qwen3', {'layer_types': ['linear_attention']}, 'layer_types='),
    ('qwen3', {'layer_types': 'full_attention'}, "layer_types='full_atten"),
    ('qwen3', {'architectures': 'Qwen3ForCausalLM'}, "architectures='Qwen3"),
    ('qwen2', {'rope_scaling': {'type': 'linear', 'factor': 2.0}}, "='linear'"),
    ('qwen2', {'rope_scaling': {'rope_type': 'yarn'}}, "rope_type='yarn'"),
    ('qwen2', {'rope_scaling': {'type': 'dynamic'}}, 'supported: default, lla'),
    ('qwen2', {'rope_scaling': 2.0}, 'rope_scaling=2.0'),
    ('qwen3', {'rope_parameters': {'full_attention': {}}}, 'one rope_type'),
    (
      'qwen3',
      {'rope_parameters': {'rope_theta': 1e4, 'partial_rotary_factor': 0.5}},
      'partial_rotary_factor=0.5',
    ),
    # transformers 5 takes the second, and 4 knows no other.
    (
      'qwen2',
      {
        'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e6},
        'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0},
      },
      'null beside rope_parameters',
    ),
    ('llama3', {'rope_scaling': {'rope_type': 'llama3'}}, 'factor=None'),
    (
      'llama3',
      {'rope_scaling': LLAMA3_ROPE | {'high_freq_factor': 1.0}},
      'high_freq_factor=1.0 must be above low_freq_factor=1.0 .in rope_scaling',
    ),
  ],
)
def test_unsupported_models_are_rejected(family, changes, message, tmp_path):
  with pytest.raises(UserError, match=message) as error:
    read(tmp_path, changed(family, **changes))
  assert str(tmp_path / 'config.json') in str(error.value)
  assert '\n' not in str(error.value)


VALUES = st.one_of(
  st.none(),
  st.booleans(),
  st.integers(-3, 100),
  st.floats(),
  st.text(max_size=3),
  st.lists(st.text(max_size=3), max_size=2),
  st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(
  st.sampled_from(sorted(CONFIGS)),
  st.dictionaries(
    st.sampled_from(
      [
        *sorted({key for config in CONFIGS.values() for key in config}),
        *('layer_types', 'use_sliding_window', 'max_window_layers'),
      ]
    ),
    VALUES,
    min_size=1,
    max_size=3,
  ),
)
def test_any_value_is_read_or_rejected(tmp_path_factory, family, changes):
  directory = tmp_path_factory.mktemp('model')
  try:
    config, longest = read(directory, changed(family, **changes))
  except UserError as error:
    assert str(directory) in str(error)
  else:
    assert isinstance(config, TransformerConfig) and longest >= 1


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (None, 'cannot be read'),
    (b'', 'is no JSON'),
    (b'{"model_type": "llama"', 'is no JSON'),
    (b'\xff\xfe', 'is no JSON'),
    (b'[1]', 'holds a JSON list, expected an object'),
    (b'[' * 100_000, 'is no JSON'),
  ],
)
def test_damaged_configs(content, message, tmp_path):
  if content is not None:
    (tmp_path / 'config.json').write_bytes(content)
  with pytest.raises(UserError, match=message) as error:
    read_architecture(tmp_path)
  assert str(tmp_path / 'config.json') in str(error.value)


@pytest.mark.parametrize('name', PUBLISHED)
def test_a_written_config_reads_back(name, tmp_path):
  _, config, _ = PUBLISHED[name]
  values = architecture_json(config, 'lm', 1234, 'float32')
  assert read(tmp_path, values) == (config, 1234)


def test_a_config_of_no_family_is_not_written():
  config = PUBLISHED['Qwen3-0.6B'][1]
  with pytest.raises(UserError, match='needs a model of the Qwen2 family'):
    architecture_json(config, 'process_reward_model', 10, 'float32')
  with pytest.raises(UserError, match="layout 'gguf': expected one of lm,"):
    architecture_json(config, 'gguf', 10, 'float32')
  both = TransformerConfig(
    10, 8, 1, n_heads=2, n_kv_heads=2, d_ff=8, qkv_bias=True, qk_norm=True
  )
  with pytest.raises(UserError, match='no published family has both'):
    architecture_json(both, 'lm', 10, 'float32')


def test_a_width_that_no_llama_has_is_not_written():
  """transformers 5 refuses to open it."""
  config = TransformerConfig(
    vocab_size=100,
    d_model=40,
    n_layers=1,
    n_heads=3,
    n_kv_heads=3,
    d_ff=64,
    head_dim=16,
  )
  with pytest.raises(UserError, match='d_model=40 is no multiple of n_heads=3'):
    architecture_json(config, 'lm', 64, 'float32')
