"""Loading weights: as transformers does, over meshes, and damaged folders."""

import dataclasses
import functools
import json
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from hypothesis import given
from hypothesis import strategies as st

from prm_jax import models
from prm_jax.inference.pretrained import open_pretrained
from prm_jax.models.hub import weights
from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.safetensors_files import SINGLE, TensorFiles
from prm_jax.models.hub.weights import load_backbone
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import make_mesh
from tests.models.hub.published_configs import (
  CONFIGS,
  TOKENS,
  random_tensors,
  shapes,
  write_model,
  write_published,
)
from tests.shared.command_line import run_module

GOLDEN = pathlib.Path(__file__).parent / 'golden'
CHUNK = 4  # tokens of cached decoding at a time
DOWN = 'model.layers.1.mlp.down_proj.weight'


def load(folder, **arguments):
  """Loads the parameters and config of a folder, on one device."""
  mesh = make_mesh({'replica': 1, 'fsdp': 1, 'model': 1}, jax.devices()[:1])
  config, _ = read_architecture(folder)
  return load_backbone(TensorFiles(folder), config, mesh, **arguments), config


@functools.partial(jax.jit, static_argnums=1)
def full_logits(params, config):
  positions = np.broadcast_to(np.arange(TOKENS.shape[1]), TOKENS.shape)
  last = np.full_like(TOKENS, TOKENS.shape[1] - 1)
  hidden = models.forward(params, config, TOKENS, positions, last)
  return models.lm_logits(params, config, hidden)


@functools.partial(jax.jit, static_argnums=1)
def decode_chunk(params, config, tokens, start, cache):
  positions = start + jax.numpy.arange(tokens.shape[1])
  positions = jax.numpy.broadcast_to(positions, tokens.shape)
  hidden, cache = models.decode(params, config, tokens, positions, cache)
  return models.lm_logits(params, config, hidden), cache


def cached_logits(params, config):
  """Computes the same by cached decoding, a few tokens at a time."""
  rows, length = TOKENS.shape
  cache = models.init_cache(config, rows, length)
  # Where the next one will be, or it compiles twice.
  cache = jax.device_put(cache, params['norm']['scale'].sharding)
  found, params = [], models.unstack_layers(params, config)
  for start in range(0, length, CHUNK):
    tokens = TOKENS[:, start : start + CHUNK]
    logits, cache = decode_chunk(params, config, tokens, start, cache)
    found.append(logits)
  return np.concatenate(found, axis=1)


@pytest.mark.parametrize('family', CONFIGS)
def test_logits_equal_those_of_transformers(family, tmp_path):
  params, config = load(write_published(tmp_path, family))
  golden = np.load(GOLDEN / f'{family}.npz')['logits']
  assert np.abs(full_logits(params, config) - golden).max() < 1e-4
  assert np.abs(cached_logits(params, config) - golden).max() < 1e-4


@pytest.mark.parametrize(
  ('family', 'change'),
  [
    ('llama3', {'rope_scaling': None}),
    ('llama3', {'rope_theta': 600.0}),
    ('qwen3', {'norm_eps': 1e-2}),
  ],
)
def test_golden_logits_detect_small_changes(family, change, tmp_path):
  params, config = load(write_published(tmp_path, family))
  golden = np.load(GOLDEN / f'{family}.npz')['logits']
  other = full_logits(params, dataclasses.replace(config, **change))
  assert np.abs(other - golden).max() > 1e-2


@pytest.mark.parametrize('family', CONFIGS)
def test_loaded_trees_equal_init_params(family, tmp_path):
  params, config = load(write_published(tmp_path, family))
  expected = jax.eval_shape(
    lambda key: models.init_params(key, config), jax.random.key(0)
  )
  described = {n: (x.shape, x.dtype) for n, x in flatten_dict(expected).items()}
  assert {n: (x.shape, x.dtype) for n, x in flatten_dict(params).items()} == (
    described
  )


@pytest.mark.slow
def test_meshes_load_the_same_and_read_each_value_once(tmp_path):
  folder = write_published(tmp_path, 'qwen2')
  meshes = ['1,8,1', '1,4,2', '2,1,4', '1,1,8']
  results = run_module('tests.models.hub.load_on_devices', folder, *meshes)
  assert list(results) == meshes
  for result in results.values():
    assert result['equal']
    assert set(result['read'].values()) == {1.0}
  # [L, D, N, H] of 3, 32, 4, 8: D over fsdp, N over model.
  parts = {m: results[m]['parts'] for m in meshes}
  assert parts['1,4,2']['layers/self_attn/q_proj/kernel'] == [[3, 8, 2, 8]]
  assert parts['1,1,8']['layers/self_attn/q_proj/kernel'] == [[3, 32, 4, 8]]
  assert parts['1,4,2']['layers/self_attn/o_proj/kernel'] == [[3, 2, 8, 8]]
  assert parts['1,4,2']['embed_tokens'] == [[32, 8]]


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_loading_takes_the_memory_of_the_parameters(dtype, tmp_path):
  """2.1 GB of float32 parameters; measured 1.03 and 1.13 of that."""
  config = CONFIGS['qwen2'] | {
    'vocab_size': 32_000,
    'hidden_size': 1024,
    'intermediate_size': 4096,
    'num_hidden_layers': 32,
    'num_attention_heads': 16,
    'num_key_value_heads': 8,
  }
  tensors = {
    name: np.full(shape, 1.5, ml_dtypes.bfloat16)
    for name, shape in shapes(config).items()
  }
  write_model(tmp_path, config, tensors, shards=2)
  del tensors
  found = run_module('tests.models.hub.measure_loading', tmp_path, '4,2', dtype)
  assert found['bytes'] > 1e9 * (2 if dtype == 'float32' else 1)
  assert 0.9 < found['peak'] / found['bytes'] < 1.3


@pytest.mark.parametrize('stored', ['bfloat16', 'float16', 'float32'])
@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
def test_every_type_is_read_exactly(stored, dtype, tmp_path):
  config = CONFIGS['qwen2']
  tensors = {
    name: values.astype(stored)
    for name, values in random_tensors(shapes(config)).items()
  }
  params, _ = load(write_model(tmp_path, config, tensors, 2), dtype=dtype)
  down = params['layers']['mlp']['down_proj']['kernel']
  assert down.dtype == dtype
  assert np.array_equal(down[1], tensors[DOWN].astype(dtype).T)
  query = params['layers']['self_attn']['q_proj']
  name = 'model.layers.2.self_attn.q_proj'
  by_head = tensors[f'{name}.weight'].astype(dtype).reshape(4, 8, 32)
  assert np.array_equal(query['kernel'][2], by_head.transpose(2, 0, 1))
  by_head = tensors[f'{name}.bias'].astype(dtype).reshape(4, 8)
  assert np.array_equal(query['bias'][2], by_head)


def test_a_tied_model_may_carry_its_output_embedding(tmp_path):
  config = CONFIGS['smollm2']
  tensors = random_tensors(shapes(config))
  without, _ = load(write_model(tmp_path / 'without', config, tensors))
  tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()
  with_it, _ = load(write_model(tmp_path / 'with', config, tensors))
  assert 'lm_head' not in with_it
  assert jax.tree.all(jax.tree.map(np.array_equal, with_it, without))


@pytest.mark.parametrize('row', [0, 63])
def test_an_output_embedding_of_its_own_is_not_tied(row, tmp_path, monkeypatch):
  monkeypatch.setattr(weights, 'ROWS_PER_PART', 10)
  config = CONFIGS['smollm2']
  tensors = random_tensors(shapes(config))
  own = tensors['model.embed_tokens.weight'].copy()
  own[row, 5] += 1
  tensors['lm_head.weight'] = own
  folder = write_model(tmp_path / 'tied', config, tensors)
  cure = f'{folder}: .* set "tie_word_embeddings": false'
  with pytest.raises(UserError, match=cure):
    open_pretrained(str(folder))
  with pytest.raises(UserError, match=cure):
    load(folder)
  untied = config | {'tie_word_embeddings': False}
  params, _ = load(write_model(tmp_path / 'untied', untied, tensors))
  assert np.array_equal(params['lm_head'], own)


def test_an_output_embedding_of_another_shape(tmp_path):
  config = CONFIGS['smollm2']
  tensors = random_tensors(shapes(config))
  tensors['lm_head.weight'] = np.ones((3, 5), np.float32)
  with pytest.raises(
    UserError, match=r"'lm_head.weight' has shape \[3, 5\], bu"
  ):
    load(write_model(tmp_path, config, tensors))


@pytest.mark.parametrize('carries', [True, False])
@pytest.mark.parametrize('tied', [True, False])
def test_a_reward_model_has_no_output_embedding(carries, tied, tmp_path):
  config = CONFIGS['llama3'] | {
    'architectures': ['LlamaForTokenClassification']
  }
  tensors = random_tensors(shapes(config))
  config['tie_word_embeddings'] = tied
  if not carries:
    del tensors['lm_head.weight']
  tensors['score.weight'] = np.ones((2, 32), ml_dtypes.bfloat16)
  folder = write_model(tmp_path, config, tensors)
  params, found = load(folder, also=('score.weight',))
  assert found.tie_embeddings and 'lm_head' not in params
  score = TensorFiles(folder).read('score.weight')
  assert score.dtype == np.float32 and np.array_equal(score, np.ones((2, 32)))


def test_buffers_of_old_files_are_not_read(tmp_path):
  config = CONFIGS['mistral']
  tensors = random_tensors(shapes(config))
  name = 'model.layers.0.self_attn.rotary_emb.inv_freq'
  tensors[name] = np.ones(4, np.float32)
  params, _ = load(write_model(tmp_path, config, tensors))
  assert np.array_equal(
    params['embed_tokens'], tensors['model.embed_tokens.weight']
  )


CHANGES = {
  'missing': lambda t: t.pop(DOWN),
  'extra': lambda t: t.update({'model.layers.3.x.weight': np.ones(2)}),
  'head': lambda t: t.update({'score.weight': np.ones((2, 32), np.float32)}),
  'shape': lambda t: t.update({DOWN: t[DOWN].T.copy()}),
  'flat': lambda t: t.update({DOWN: t[DOWN].reshape(-1)}),
  'type': lambda t: t.update({DOWN: t[DOWN].astype(np.int8)}),
  'lm_head': lambda t: t.pop('lm_head.weight'),
}


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ('missing', f"has no tensor '{DOWN}', which is part of such a model"),
    ('extra', r"model.safetensors: tensor 'model.layers.3.x.weight' \(of 1"),
    ('head', "tensor 'score.weight'.*belongs to no part of the model"),
    ('shape', rf"'{DOWN}' has shape \[48, 32\], but config.json makes it \[32"),
    ('flat', rf"safetensors: tensor '{DOWN}' has shape \[1536\], but"),
    ('type', f"tensor '{DOWN}' is stored as I8, expected one of F32, BF16"),
    ('lm_head', "has no tensor 'lm_head.weight'"),
  ],
)
def test_wrong_tensors(change, message, tmp_path):
  config = CONFIGS['llama3']
  tensors = random_tensors(shapes(config))
  CHANGES[change](tensors)
  with pytest.raises(UserError, match=message) as error:
    load(write_model(tmp_path, config, tensors))
  assert str(tmp_path) in str(error.value)
  assert '\n' not in str(error.value)


def test_a_tensor_that_only_the_index_has(tmp_path):
  folder = write_published(tmp_path, 'qwen2')
  with pytest.raises(UserError, match=r"no tensor 'v_head.summary.weight'"):
    load(folder, also=('v_head.summary.weight',))
  with pytest.raises(UserError, match=r"no tensor 'v_head.summary.weight'"):
    TensorFiles(folder).read('v_head.summary.weight')


def test_a_huge_number_of_layers(tmp_path):
  folder = write_published(tmp_path, 'qwen2')
  config = CONFIGS['qwen2'] | {'num_hidden_layers': 10**12}
  (folder / 'config.json').write_text(json.dumps(config))
  with pytest.raises(UserError, match='38 tensors are too few for the num_hid'):
    load(folder)


def test_an_unknown_dtype(tmp_path):
  with pytest.raises(UserError, match="dtype 'float16': expected one of"):
    load(write_published(tmp_path, 'qwen2'), dtype='float16')


@given(st.data())
def test_any_damage_is_found_or_harmless(tmp_path_factory, data):
  """Truncation is always found; changed bytes are if they are no weights."""
  directory = tmp_path_factory.mktemp('model')
  config = CONFIGS['smollm2'] | {'num_hidden_layers': 1, 'vocab_size': 8}
  write_model(directory, config, random_tensors(shapes(config)))
  path = directory / SINGLE
  content = bytearray(path.read_bytes())
  end = data.draw(st.integers(0, len(content) - 1), 'cut off at')
  path.write_bytes(content[:end])
  with pytest.raises(UserError, match='is missing or damaged'):
    TensorFiles(directory)
  place = data.draw(st.integers(0, 2500), 'byte')
  content[place] ^= data.draw(st.integers(1, 255), 'flipped')
  path.write_bytes(content)
  try:
    params, _ = load(directory)
  except UserError as error:
    assert str(directory) in str(error) and '\n' not in str(error)
  else:
    assert params['norm']['scale'].shape == (36,)
