"""Checkpoint folders: found by name, and every kind of damage."""

import json
import pathlib
import struct

import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects
from safetensors.numpy import save_file

from prm_jax.models.hub.safetensors_files import (
  INDEX,
  SINGLE,
  UNWANTED,
  WANTED,
  TensorFiles,
  resolve,
)
from prm_jax.runtime.errors import UserError
from tests.models.hub.published_configs import (
  CONFIGS,
  random_tensors,
  shapes,
  write_model,
)

DOWN = 'model.layers.1.mlp.down_proj.weight'


def test_a_local_folder_resolves_to_itself(tmp_path):
  assert resolve(tmp_path) == tmp_path
  assert resolve(str(tmp_path)) == tmp_path
  with pytest.raises(UserError, match=r'model .*/absent: no such folder; name'):
    resolve(tmp_path / 'absent')


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> pathlib.Path:
  """An empty Hugging Face cache, without a network."""
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
def test_a_model_that_is_not_available(path, hub_cache):
  with pytest.raises(UserError, match=f'model {path} is neither') as error:
    resolve(path)
  assert 'hf download' in str(error.value)
  assert '\n' not in str(error.value)


def with_header(change):
  """Rewrites the header of a file and keeps its data."""

  def apply(data: bytes) -> bytes:
    (size,) = struct.unpack('<Q', data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header[DOWN])
    text = json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text + data[8 + size :]

  return apply


DAMAGE = {
  'empty': lambda data: b'',
  'no header': lambda data: data[:5],
  'half a header': lambda data: data[:100],
  'cut off': lambda data: data[:-1],
  'half': lambda data: data[: len(data) // 2],
  'too long': lambda data: data + b'more',
  'huge header': lambda data: struct.pack('<Q', 2**60) + data[8:],
  'not JSON': lambda data: data[:8] + b'[' + data[9:],
  'a web page': lambda data: b'<!DOCTYPE html><html>Not found</html>',
  'git lfs': lambda data: b'version https://git-lfs.github.com/spec/v1\n',
  'offsets outside': with_header(lambda t: t.update(data_offsets=[0, 10**12])),
  'offsets overlap': with_header(lambda t: t.update(data_offsets=[0, 6144])),
  'offsets reversed': with_header(lambda t: t['data_offsets'].reverse()),
  'larger shape': with_header(lambda t: t.update(shape=[64, 48])),
  'endless shape': with_header(lambda t: t.update(shape=[2**62, 2**62])),
  'negative shape': with_header(lambda t: t.update(shape=[-32, 48])),
  'unknown type': with_header(lambda t: t.update(dtype='F99')),
}


@pytest.mark.parametrize('damage', DAMAGE)
@pytest.mark.parametrize('shards', [1, 2])
def test_damaged_files(damage, shards, tmp_path):
  config = CONFIGS['smollm2']
  write_model(tmp_path, config, random_tensors(shapes(config)), shards)
  name = SINGLE
  if shards > 1:
    index = json.loads((tmp_path / INDEX).read_text())
    name = index['weight_map'][DOWN]
  path = tmp_path / name
  path.write_bytes(DAMAGE[damage](path.read_bytes()))
  message = 'git lfs pull' if damage == 'git lfs' else 'is missing or damaged'
  with pytest.raises(UserError, match=message) as error:
    TensorFiles(tmp_path)
  assert str(path) in str(error.value)
  assert '\n' not in str(error.value)


INDICES = {
  'no map': (lambda index: index.pop('weight_map'), 'weight_map=None'),
  'empty map': (lambda index: index['weight_map'].clear(), r'weight_map=\{\}'),
  'a number': (
    lambda index: index['weight_map'].update({DOWN: 3}),
    f"tensor '{DOWN}' is in 3",
  ),
  'elsewhere': (
    lambda index: index['weight_map'].update({DOWN: '../model.safetensors'}),
    "is in '../model.safetensors', expected the name of a file of this folder",
  ),
  'no file name': (
    lambda index: index['weight_map'].update({DOWN: 'a\x00.safetensors'}),
    r"is in 'a\\x00.safetensors', expected the name of a file",
  ),
  'half a character': (
    lambda index: index['weight_map'].update({DOWN: '\ud800'}),
    r"is in '\\ud800', expected the name of a file",
  ),
  'absent file': (
    lambda index: index['weight_map'].update({DOWN: 'b.safetensors'}),
    'b.safetensors is missing or damaged',
  ),
  'absent tensor': (
    lambda index: index['weight_map'].update({'x': index['weight_map'][DOWN]}),
    "has no tensor 'x', which model.safetensors.index.json places there",
  ),
}


@pytest.mark.parametrize('case', INDICES)
def test_wrong_indices(case, tmp_path):
  change, message = INDICES[case]
  config = CONFIGS['smollm2']
  write_model(tmp_path, config, random_tensors(shapes(config)), 2)
  index = json.loads((tmp_path / INDEX).read_text())
  change(index)
  (tmp_path / INDEX).write_text(json.dumps(index))
  with pytest.raises(UserError, match=message) as error:
    TensorFiles(tmp_path)
  assert str(tmp_path) in str(error.value)


def test_a_tensor_in_two_shards(tmp_path):
  config = CONFIGS['smollm2']
  tensors = random_tensors(shapes(config))
  write_model(tmp_path, config, tensors, 2)
  for path in sorted(tmp_path.glob('*.safetensors')):
    names = [
      name
      for name, shard in json.loads((tmp_path / INDEX).read_text())[
        'weight_map'
      ].items()
      if shard == path.name
    ]
    part = {name: tensors[name] for name in {*names, DOWN}}
    save_file(part, path)
  with pytest.raises(UserError, match=f"tensor '{DOWN}' is both in"):
    TensorFiles(tmp_path)


@pytest.mark.parametrize(
  ('file', 'message'),
  [
    ('pytorch_model.bin', "a pickle.*transformers' save_pretrained"),
    ('pytorch_model-00001-of-00002.bin', 'pytorch_model-00001-of-00002.bin'),
    ('weights.pt', 'holds weights.pt, a pickle'),
    ('weights.safetensors', 'call it model.safetensors if it has all weights'),
    ('adapter_config.json', 'a LoRA adapter only; merge it'),
    ('readme.md', 'holds neither model.safetensors nor model.safetensors.ind'),
  ],
)
def test_folders_without_safetensors(file, message, tmp_path):
  (tmp_path / file).write_bytes(b'\x80\x04cposix\nsystem\n')
  with pytest.raises(UserError, match=message):
    TensorFiles(tmp_path)


def test_a_tensor_without_numbers_is_refused(tmp_path):
  save_file({'v_head': np.zeros((0, 3), np.float32)}, tmp_path / SINGLE)
  files = TensorFiles(tmp_path)
  with pytest.raises(UserError, match=r"'v_head' of shape \[0, 3\] holds no"):
    files.read('v_head')


def test_weights_are_downloaded_once():
  """Some repositories have them in formats of other libraries, too."""
  read = [
    *('config.json', 'model.safetensors.index.json', 'tokenizer.model'),
    'model-00001-of-00002.safetensors',
  ]
  others = [
    *('consolidated.safetensors', 'consolidated.00.pth', 'pytorch_model.bin'),
    *('adapter/adapter_model.safetensors', 'original/params.json'),
  ]
  kept = filter_repo_objects(
    [*read, *others],
    allow_patterns=list(WANTED),
    ignore_patterns=list(UNWANTED),
  )
  assert list(kept) == read
