"""config.json to TransformerConfig and back, and what is refused."""

import json
import pathlib

import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.models import RopeScaling, TransformerConfig
from prm_jax.models.hub.architectures import (
  architecture_json,
  read_architecture,
)
from prm_jax.models.hub.safetensors_files import resolve
from prm_jax.runtime.errors import UserError
from tests.models.hub.published_configs import CONFIGS

LLAMA3_ROPE = {
  'rope_type': 'llama3',
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 8192,
}
# As published, keys that say nothing about the computation left out.
PUBLISHED = {
  'Llama-3.1-8B': (
    {
      'architectures': ['LlamaForCausalLM'],
      'attention_bias': False,
      'hidden_act': 'silu',
      'hidden_size': 4096,
      'intermediate_size': 14336,
      'max_position_embeddings': 131072,
      'mlp_bias': False,
      'model_type': 'llama',
      'num_attention_heads': 32,
      'num_hidden_layers': 32,
      'num_key_value_heads': 8,
      'pretraining_tp': 1,
      'rms_norm_eps': 1e-05,
      'rope_scaling': LLAMA3_ROPE,
      'rope_theta': 500000.0,
      'tie_word_embeddings': False,
      'vocab_size': 128256,
    },
    TransformerConfig(
      vocab_size=128256,
      d_model=4096,
      n_layers=32,
      n_heads=32,
      n_kv_heads=8,
      d_ff=14336,
      head_dim=128,
      rope_theta=500000.0,
      rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
      norm_eps=1e-05,
      tie_embeddings=False,
    ),
    131072,
  ),
  'Qwen2.5-Math-PRM-7B': (
    {
      'architectures': ['Qwen2ForProcessRewardModel'],
      'hidden_act': 'silu',
      'hidden_size': 3584,
      'intermediate_size': 18944,
      'max_position_embeddings': 4096,
      'max_window_layers': 28,
      'model_type': 'qwen2',
      'num_attention_heads': 28,
      'num_hidden_layers': 28,
      'num_key_value_heads': 4,
      'rms_norm_eps': 1e-06,
      'rope_theta': 10000.0,
      'sliding_window': None,
      'tie_word_embeddings': False,
      'use_sliding_window': False,
      'vocab_size': 152064,
    },
    TransformerConfig(
      vocab_size=152064,
      d_model=3584,
      n_layers=28,
      n_heads=28,
      n_kv_heads=4,
      d_ff=18944,
      head_dim=128,
      qkv_bias=True,
      tie_embeddings=True,  # it has no output embedding
    ),
    4096,
  ),
  'Qwen3-0.6B': (
    {
      'architectures': ['Qwen3ForCausalLM'],
      'attention_bias': False,
      'head_dim': 128,
      'hidden_act': 'silu',
      'hidden_size': 1024,
      'intermediate_size': 3072,
      'max_position_embeddings': 40960,
      'max_window_layers': 28,
      'model_type': 'qwen3',
      'num_attention_heads': 16,
      'num_hidden_layers': 28,
      'num_key_value_heads': 8,
      'rms_norm_eps': 1e-06,
      'rope_scaling': None,
      'rope_theta': 1000000,
      'sliding_window': None,
      'tie_word_embeddings': True,
      'use_sliding_window': False,
      'vocab_size': 151936,
    },
    TransformerConfig(
      vocab_size=151936,
      d_model=1024,
      n_layers=28,
      n_heads=16,
      n_kv_heads=8,
      d_ff=3072,
      head_dim=128,
      rope_theta=1e6,
      qk_norm=True,
    ),
    40960,
  ),
  'Mistral-7B-v0.1': (
    {
      'architectures': ['MistralForCausalLM'],
      'hidden_act': 'silu',
      'hidden_size': 4096,
      'intermediate_size': 14336,
      'max_position_embeddings': 32768,
      'model_type': 'mistral',
      'num_attention_heads': 32,
      'num_hidden_layers': 32,
      'num_key_value_heads': 8,
      'rms_norm_eps': 1e-05,
      'rope_theta': 10000.0,
      'sliding_window': 4096,
      'tie_word_embeddings': False,
      'vocab_size': 32000,
    },
    TransformerConfig(
      vocab_size=32000,
      d_model=4096,
      n_layers=32,
      n_heads=32,
      n_kv_heads=8,
      d_ff=14336,
      head_dim=128,
      norm_eps=1e-05,
      tie_embeddings=False,
    ),
    4096,
  ),
  'SmolLM2-135M': (
    {
      'architectures': ['LlamaForCausalLM'],
      'attention_bias': False,
      'hidden_act': 'silu',
      'hidden_size': 576,
      'intermediate_size': 1536,
      'is_llama_config': True,
      'max_position_embeddings': 8192,
      'model_type': 'llama',
      'num_attention_heads': 9,
      'num_hidden_layers': 30,
      'num_key_value_heads': 3,
      'pretraining_tp': 1,
      'rms_norm_eps': 1e-05,
      'rope_interleaved': False,
      'rope_scaling': None,
      'rope_theta': 100000,
      'tie_word_embeddings': True,
      'vocab_size': 49152,
    },
    TransformerConfig(
      vocab_size=49152,
      d_model=576,
      n_layers=30,
      n_heads=9,
      n_kv_heads=3,
      d_ff=1536,
      head_dim=64,
      rope_theta=100000.0,
      norm_eps=1e-05,
    ),
    8192,
  ),
}


def read(directory, values):
  (directory / 'config.json').write_text(json.dumps(values))
  return read_architecture(directory)


def changed(family, **changes):
  """A tiny config with some keys set; `...` leaves one out."""
  values = CONFIGS[family] | changes
  return {key: value for key, value in values.items() if value is not ...}


@pytest.mark.parametrize('name', PUBLISHED)
def test_published_configs(name, tmp_path):
  values, config, longest = PUBLISHED[name]
  assert read(tmp_path, values) == (config, longest)


@pytest.mark.parametrize('name', PUBLISHED)
def test_keys_of_before_and_since_transformers_5(name, tmp_path):
  values = dict(PUBLISHED[name][0])
  rope = {'rope_theta': values.pop('rope_theta')}
  rope |= values.pop('rope_scaling', None) or {'rope_type': 'default'}
  values['rope_parameters'] = rope
  assert read(tmp_path, values) == PUBLISHED[name][1:]


def test_the_first_name_of_the_kind_of_scaling(tmp_path):
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
    ('llama3', {'rope_scaling': {'rope_type': 'llama3'}}, 'factor=None'),
    (
      'llama3',
      {'rope_scaling': LLAMA3_ROPE | {'high_freq_factor': 1.0}},
      'high_freq_factor=1.0 must be above low_freq_factor=1.0 .in rope_scaling',
    ),
  ],
)
def test_what_we_do_not_compute_is_refused(family, changes, message, tmp_path):
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
def test_any_value_reads_or_is_refused(tmp_path_factory, family, changes):
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
def test_what_is_written_reads_back(name, tmp_path):
  _, config, _ = PUBLISHED[name]
  values = architecture_json(config, 'lm', 1234, 'float32')
  assert read(tmp_path, values) == (config, 1234)


def test_what_no_family_computes_is_not_written():
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


def test_a_folder_is_itself(tmp_path):
  assert resolve(tmp_path) == tmp_path
  assert resolve(str(tmp_path)) == tmp_path
  with pytest.raises(UserError, match=r'model .*/absent: no such folder; name'):
    resolve(tmp_path / 'absent')


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> pathlib.Path:
  """An empty cache of Hugging Face, without a network."""
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
  return tmp_path


def test_a_model_of_the_hub_comes_from_the_cache(hub_cache):
  repository = hub_cache / 'models--owner--name'
  commit = '0123456789abcdef0123456789abcdef01234567'
  snapshot = repository / 'snapshots' / commit
  snapshot.mkdir(parents=True)
  (snapshot / 'config.json').write_text(json.dumps(CONFIGS['qwen3']))
  (repository / 'refs').mkdir()
  (repository / 'refs' / 'main').write_text(commit)
  assert resolve('hf://owner/name').samefile(snapshot)
  assert resolve(f'hf://owner/name@{commit}').samefile(snapshot)


@pytest.mark.parametrize(
  'path', ['hf://owner/name', 'hf://owner/name@v2', 'hf://a/b/c', 'hf://']
)
def test_a_model_that_cannot_be_had(path, hub_cache):
  with pytest.raises(UserError, match=f'model {path} is neither') as error:
    resolve(path)
  assert 'hf download' in str(error.value)
  assert '\n' not in str(error.value)
