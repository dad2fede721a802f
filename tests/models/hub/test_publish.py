"""Saved models load with every bit, and a folder is complete or absent."""

import dataclasses
import json
import os
import resource

import jax
import numpy as np
import pytest

from prm_jax import models
from prm_jax.models import HeadConfig, RopeScaling, TransformerConfig
from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.publish import SaveOptions, save_model
from prm_jax.models.hub.safetensors_files import INDEX, SINGLE, TensorFiles
from prm_jax.models.hub.weights import HEAD_TENSORS, load_backbone
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from tests.models.hub.published_configs import (
  CONFIGS,
  random_tensors,
  read_head,
  shapes,
  write_published,
)

LLAMA = TransformerConfig(
  vocab_size=40,
  d_model=16,
  n_layers=2,
  n_heads=4,
  n_kv_heads=2,
  d_ff=24,
  rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32),
  tie_embeddings=False,
)
QWEN2 = dataclasses.replace(LLAMA, rope_scaling=None, qkv_bias=True)
QWEN3 = dataclasses.replace(LLAMA, rope_scaling=None, qk_norm=True, head_dim=6)
LAYOUTS = [
  ('lm', LLAMA),
  ('lm', dataclasses.replace(QWEN2, tie_embeddings=True)),
  ('lm', QWEN3),
  ('token_classification', LLAMA),
  ('token_classification', QWEN2),
  ('token_classification', QWEN3),
  ('process_reward_model', QWEN2),
]


def a_mesh():
  return make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])


def some_params(config):
  """Random parameters, all values different, biases and norms included."""
  tree = jax.eval_shape(
    lambda key: models.init_params(key, config), jax.random.key(0)
  )
  random = np.random.RandomState(3)
  return jax.tree.map(
    lambda x: random.standard_normal(x.shape).astype(np.float32), tree
  )


def some_head(layout, config, outputs='two_class', width=None):
  if layout == 'lm':
    return None
  hidden = 0 if layout == 'token_classification' else width or config.d_model
  return jax.device_get(
    models.init_head(
      jax.random.key(1), config.d_model, HeadConfig(outputs, hidden)
    )
  )


def same(one, other):
  return jax.tree.structure(one) == jax.tree.structure(other) and jax.tree.all(
    jax.tree.map(np.array_equal, one, other)
  )


@pytest.mark.parametrize(('layout', 'config'), LAYOUTS)
@pytest.mark.parametrize('shard_bytes', [10**9, 3000, 1])
def test_a_saved_model_loads_unchanged(layout, config, shard_bytes, tmp_path):
  params, head = some_params(config), some_head(layout, config)
  folder = tmp_path / 'new' / 'model'
  save_model(
    folder,
    params,
    config,
    layout,
    head,
    options=SaveOptions(max_length=77, shard_bytes=shard_bytes),
  )
  found, longest = read_architecture(folder)
  assert longest == 77
  if layout != 'lm':  # has no output embedding
    params.pop('lm_head', None)
    config = dataclasses.replace(config, tie_embeddings=True)
  assert found == config
  files = TensorFiles(folder)
  names = tuple(HEAD_TENSORS[layout].values())
  assert same(load_backbone(files, found, a_mesh(), also=names), params)
  assert same(read_head(files, layout), head or {})
  stored = list(folder.glob('*.safetensors'))
  assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
  assert (folder / SINGLE).exists() == (shard_bytes == 10**9)
  if shard_bytes == 1:
    assert len(stored) == len(files.shapes)
  if shard_bytes == 3000:
    assert 1 < len(stored) < len(files.shapes)
    total = json.loads((folder / INDEX).read_text())['metadata']['total_size']
    assert total == sum(4 * np.prod(s) for s in files.shapes.values())


def test_heads_are_stored_as_linear_layers(tmp_path):
  head = some_head('process_reward_model', QWEN2)
  params = some_params(QWEN2)
  save_model(tmp_path / 'a', params, QWEN2, 'process_reward_model', head)
  files = TensorFiles(tmp_path / 'a')
  assert files.shapes['score.2.weight'] == (2, 16)
  assert np.array_equal(files.read('score.2.weight'), head['kernel'].T)
  assert np.array_equal(files.read('score.0.weight'), head['hidden_kernel'].T)
  head = some_head('token_classification', QWEN2)
  save_model(tmp_path / 'b', params, QWEN2, 'token_classification', head)
  files = TensorFiles(tmp_path / 'b')
  assert np.array_equal(files.read('score.weight'), head['kernel'].T)
  labels = json.loads((tmp_path / 'b' / 'config.json').read_text())['id2label']
  assert labels == {'0': 'wrong', '1': 'right'}


@pytest.mark.parametrize('family', CONFIGS)
def test_loading_and_saving_keeps_every_tensor(family, tmp_path):
  config, longest = read_architecture(write_published(tmp_path, family))
  params = load_backbone(TensorFiles(tmp_path), config, a_mesh())
  save_model(
    tmp_path / 'out', params, config, 'lm', options=SaveOptions(longest)
  )
  files = TensorFiles(tmp_path / 'out')
  tensors = random_tensors(shapes(CONFIGS[family]))
  assert files.shapes.keys() == tensors.keys()
  for name, values in tensors.items():
    assert np.array_equal(files.read(name), values), name


def test_saving_and_loading_bfloat16(tmp_path):
  params = some_params(QWEN2)
  save_model(
    tmp_path / 'a', params, QWEN2, 'lm', options=SaveOptions(dtype='bfloat16')
  )
  rounded = jax.tree.map(lambda x: x.astype('bfloat16'), params)
  save_model(tmp_path / 'b', rounded, QWEN2, 'lm')
  for name in ('a', 'b'):
    folder = tmp_path / name
    assert folder.joinpath(SINGLE).stat().st_size < 30_000
    config = json.loads((folder / 'config.json').read_text())
    assert config['torch_dtype'] == 'bfloat16'
    files = TensorFiles(folder)
    assert same(load_backbone(files, QWEN2, a_mesh(), 'bfloat16'), rounded)


def test_the_tokenizer_is_copied(tmp_path):
  source = tmp_path / 'source'
  source.mkdir()
  texts = {
    'tokenizer.json': '{"a": 1}',
    'tokenizer_config.json': '{}',
    'chat_template.jinja': '{{ messages }}',
    'merges.txt': 'a b',
    'model.safetensors': 'not this',
    'README.md': 'nor this',
  }
  for name, text in texts.items():
    (source / name).write_text(text)
  out = tmp_path / 'out'
  out.mkdir()  # an empty folder may be there
  save_model(out, some_params(QWEN3), QWEN3, 'lm', tokenizer_from=source)
  copied = {path.name for path in out.iterdir()} - {'config.json', SINGLE}
  assert copied == set(texts) - {'model.safetensors', 'README.md'}
  assert (out / 'tokenizer.json').read_text() == texts['tokenizer.json']
  (source / 'tokenizer.json').unlink()
  with pytest.raises(UserError, match=r'source has no tokenizer.json to copy'):
    save_model(
      tmp_path / 'b', some_params(QWEN3), QWEN3, 'lm', tokenizer_from=source
    )


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
  left = tmp_path / f'.model.partial-{os.getpid()}'
  left.mkdir()
  (left / 'config.json').write_text('{}')
  save_model(tmp_path / 'model', some_params(LLAMA), LLAMA, 'lm')
  assert [path.name for path in left.iterdir()] == ['config.json']


def test_a_folder_with_files_is_not_changed(tmp_path):
  (tmp_path / 'mine.txt').write_text('mine')
  for taken in (tmp_path, tmp_path / 'mine.txt'):
    with pytest.raises(UserError, match='exists and is not empty; remove it'):
      save_model(taken, some_params(LLAMA), LLAMA, 'lm')
  assert [path.name for path in tmp_path.iterdir()] == ['mine.txt']


def test_a_full_disk_leaves_nothing(tmp_path):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
  try:
    with pytest.raises(
      UserError, match=r'model cannot be written .*free space'
    ):
      save_model(tmp_path / 'model', some_params(LLAMA), LLAMA, 'lm')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert list(tmp_path.iterdir()) == []


TWO = some_head('token_classification', QWEN2)
THREE = some_head('token_classification', QWEN2, 'three_class')
WIDE = some_head('process_reward_model', QWEN2)
NARROW = some_head('process_reward_model', QWEN2, width=8)


@pytest.mark.parametrize(
  ('config', 'layout', 'head', 'message'),
  [
    (QWEN2, 'gguf', None, "layout 'gguf': expected one of lm, token_class"),
    (QWEN2, 'lm', TWO, 'layout lm stores a head of nothing, this one has'),
    (QWEN2, 'token_classification', None, 'this one has nothing'),
    (QWEN2, 'token_classification', WIDE, r"of \['bias', 'kernel'\], this one"),
    (QWEN2, 'token_classification', THREE, 'has 3 outputs; train with'),
    (QWEN2, 'process_reward_model', TWO, r"this one has \['bias', 'kernel'\]"),
    (QWEN2, 'process_reward_model', NARROW, r'wide as the model \(16\), this'),
    (LLAMA, 'process_reward_model', WIDE, 'a model of the Qwen2 family'),
    (
      dataclasses.replace(QWEN2, d_ff=25),
      'lm',
      None,
      'layers/mlp/down_proj/kernel: shape .2, 24, 16., the config makes it .2,',
    ),
    (
      dataclasses.replace(QWEN2, tie_embeddings=True),
      'lm',
      None,
      'parameter lm_head: shape .40, 16., the config makes it None',
    ),
  ],
)
def test_a_layout_that_does_not_fit(config, layout, head, message, tmp_path):
  params = some_params(LLAMA if config is LLAMA else QWEN2)
  with pytest.raises(UserError, match=message) as error:
    save_model(tmp_path / 'model', params, config, layout, head)
  assert '\n' not in str(error.value)
  assert list(tmp_path.iterdir()) == []


def test_an_unknown_dtype(tmp_path):
  with pytest.raises(UserError, match="dtype 'int8': expected one of float32"):
    save_model(
      tmp_path / 'a',
      some_params(LLAMA),
      LLAMA,
      'lm',
      options=SaveOptions(dtype='int8'),
    )
