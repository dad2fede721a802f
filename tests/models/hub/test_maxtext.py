"""Checkpoints of MaxText: the parameters of safetensors, or one line."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.maxtext import MaxTextCheckpoint
from prm_jax.models.hub.safetensors_files import TensorFiles
from prm_jax.models.hub.weights import load_backbone
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from tests.models.hub.maxtext_writing import arrays_of, write_maxtext
from tests.models.hub.published_configs import (
  CONFIGS,
  random_tensors,
  shapes,
  write_model,
)

FAMILIES = [name for name in CONFIGS if name != 'mistral']


def tensors_of(family):
  return random_tensors(shapes(CONFIGS[family]))


def one_device():
  return make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])


def opened(folder, dtype='float32'):
  config, _ = read_architecture(folder)
  return flatten_dict(
    MaxTextCheckpoint(folder, config).load(one_device(), dtype)
  )


@pytest.fixture(scope='module')
def llama(tmp_path_factory):
  """The folder of a step with stacked layers and the optimizer's moments."""
  arrays = arrays_of(CONFIGS['llama3'], tensors_of('llama3'), scanned=True)
  folder = tmp_path_factory.mktemp('llama')
  return write_maxtext(folder, CONFIGS['llama3'], arrays, moments=True)


@pytest.mark.parametrize('scanned', [True, False])
@pytest.mark.parametrize('family', FAMILIES)
def test_parameters_are_those_of_safetensors(family, scanned, tmp_path):
  config, tensors = CONFIGS[family], tensors_of(family)
  theirs = arrays_of(config, tensors, scanned)
  found = opened(write_maxtext(tmp_path / 'maxtext', config, theirs))
  folder = write_model(tmp_path / 'hub', config, tensors)
  expected = flatten_dict(
    load_backbone(
      TensorFiles(folder), read_architecture(folder)[0], one_device()
    )
  )
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    if 'q_proj' not in name:
      np.testing.assert_array_equal(found[name], value)


def test_a_vocabulary_with_padding_and_another_dtype(tmp_path):
  config, tensors = CONFIGS['qwen3'], tensors_of('qwen3')
  arrays = arrays_of(config, tensors, scanned=True)
  more = np.zeros((6, config['hidden_size']), np.float32)
  table, head = 'token_embedder/embedding', 'decoder/logits_dense/kernel'
  arrays[table] = np.concatenate([arrays[table], more])
  arrays[head] = np.concatenate([arrays[head], more.T], 1)
  folder = write_maxtext(tmp_path, config, arrays, 'bfloat16')
  found = opened(folder)
  assert {x.dtype.name for x in found.values()} == {'float32'}
  expected = tensors['lm_head.weight'].astype(jax.numpy.bfloat16)
  np.testing.assert_array_equal(found['lm_head',], expected)
  assert len(found['embed_tokens',]) == config['vocab_size']
  found = opened(folder, 'bfloat16')
  assert {x.dtype.name for x in found.values()} == {'bfloat16'}


def test_only_the_tree_is_needed(llama, tmp_path):
  """What stands beside it in a step's folder need not be copied."""
  for name in ('items', 'config.json'):
    copy = shutil.copytree if name == 'items' else shutil.copy
    copy(llama / name, tmp_path / name)
  expected, found = opened(llama), opened(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def refusal(folder, **changes):
  """What opening says to a config.json with these changes."""
  config = CONFIGS['llama3'] | changes
  (folder / 'config.json').write_text(json.dumps(config))
  with pytest.raises(UserError) as error:
    opened(folder)
  return str(error.value)


def test_other_models_are_refused(llama, tmp_path):
  folder = shutil.copytree(llama, tmp_path / 'copy')
  assert "model_type='mistral'" in refusal(
    folder, model_type='mistral', sliding_window=None
  )
  assert 'self_attention/key/bias' in refusal(folder, model_type='qwen2')
  assert "'params/params/decoder/logits_dense/kernel' (of 1" in refusal(
    folder, tie_word_embeddings=True
  )
  assert 'has shape [32, 3, 48], but config.json makes it [32, 3, 64]' in (
    refusal(folder, intermediate_size=64)
  )
  assert 'decoder/layers' in refusal(folder, num_hidden_layers=4)
  assert 'embedding' in refusal(folder, vocab_size=65)


def test_a_damaged_number_of_layers_fills_no_memory(tmp_path):
  config = CONFIGS['llama3']
  arrays = arrays_of(config, tensors_of('llama3'), scanned=False)
  folder = write_maxtext(tmp_path / 'maxtext', config, arrays)
  message = refusal(folder, num_hidden_layers=10**12)
  assert 'too few for the num_hidden_layers=1000000000000' in message


def test_damage_is_one_line(llama, tmp_path):
  folder = shutil.copytree(llama, tmp_path / 'copy')
  for path in sorted((folder / 'items').rglob('d/*')):
    path.write_bytes(path.read_bytes()[:100])
  message = refusal(folder)
  assert 'is damaged' in message and '\n' not in message
  shutil.rmtree(folder / 'items')
  (folder / 'items').mkdir()
  assert 'is no checkpoint of Orbax' in refusal(folder)


def test_weights_that_are_not_finite(tmp_path):
  tensors = tensors_of('llama3')
  tensors['model.layers.1.mlp.up_proj.weight'][3, 4] = np.nan
  arrays = arrays_of(CONFIGS['llama3'], tensors, scanned=False)
  folder = write_maxtext(tmp_path, CONFIGS['llama3'], arrays)
  assert 'decoder/layers_1/mlp/wi_1/kernel' in refusal(folder)
