"""Opens changed and damaged files of models: opened right, or a UserError.

    safetensors, their index, config.json, GGUF, tokenizer.json -> changed ->
    what opens them -> every tensor has the shape that the header says

Needs the package gguf.
"""

import functools
import json
import pathlib
import random
import struct
import tempfile
from collections.abc import Callable

import numpy as np
from safetensors.numpy import save

from prm_jax.data.tokenizer import read_tokenizer
from prm_jax.models.hub.architectures import read_architecture
from prm_jax.models.hub.gguf_container import read_tensor
from prm_jax.models.hub.gguf_file import read_gguf
from prm_jax.models.hub.safetensors_files import INDEX, SINGLE, TensorFiles
from prm_jax.runtime.errors import UserError
from tests.campaigns.campaign import Campaign, run
from tests.campaigns.mutations import change, damage, limited, python_random
from tests.models.hub import published_configs
from tests.shared import published_models

SECONDS, MOST_MIB = 10.0, 300
FILES = 20  # of a case
SIZES = (0, 1, 7, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1)
SHARDS = {'a.safetensors': 'x', 'b.safetensors': 'y'}


@functools.cache
def tensors() -> bytes:
  """Returns a small file of safetensors."""
  made = {
    'x': np.arange(6, dtype=np.float32).reshape(2, 3),
    'y': np.ones((4,), np.float16),
    'z': np.zeros((0, 3), np.float32),
  }
  return save(made, {'format': 'pt'})


@functools.cache
def gguf(architecture: str) -> bytes:
  # It skips the tests that import it where the package is missing.
  from tests.models.hub import gguf_writing  # noqa: PLC0415

  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'model.gguf'
    gguf_writing.write(path, architecture=architecture)
    return path.read_bytes()


@functools.cache
def tokenizer(name: str) -> str:
  made = getattr(published_models, f'{name}_tokenizer')()
  made.enable_padding(length=8)
  made.enable_truncation(8, stride=2)
  return made.to_str()


def changed_json(draw: random.Random, text: str) -> bytes:
  """Returns JSON that differs from a good one, or is none."""
  tree = json.loads(text)
  for _ in range(draw.choice((0, 1, 1, 1, 2, 4))):
    change(draw, tree)
  written = json.dumps(tree, ensure_ascii=bool(draw.randrange(2)))
  data = written.encode('utf-8', 'surrogatepass')
  return damage(draw, data) if not draw.randrange(4) else data


def with_number(draw: random.Random, data: bytes, longest: int) -> bytes:
  """Returns data with eight bytes, not behind the header, as another number."""
  at = draw.randrange(min(len(data), longest) - 8)
  number = struct.pack('<Q', draw.choice(SIZES))
  if draw.randrange(2):
    number = number[:4]
  return data[:at] + number + data[at + len(number) :]


def try_safetensors(draw: random.Random, folder: pathlib.Path) -> None:
  data = tensors()
  (size,) = struct.unpack('<Q', data[:8])
  kind = draw.randrange(4)
  if kind == 0:
    header = changed_json(draw, data[8 : 8 + size].decode())
    data = struct.pack('<Q', len(header)) + header + data[8 + size :]
  elif kind == 1:
    data = struct.pack('<Q', draw.choice(SIZES)) + data[8:]
  else:
    data = damage(draw, data)
  (folder / SINGLE).write_bytes(data)
  read_all(TensorFiles(folder))


def read_all(files: TensorFiles) -> None:
  for name, shape in files.shapes.items():
    try:
      read = files.read(name)
    except UserError:
      continue  # another dtype, or not finite
    assert read.shape == shape
    assert read.dtype == np.float32


def try_index(draw: random.Random, folder: pathlib.Path) -> None:
  for shard, name in SHARDS.items():
    (folder / shard).write_bytes(save({name: np.ones((2, 2), np.float32)}))
  places = {name: shard for shard, name in SHARDS.items()}
  index = changed_json(draw, json.dumps({'weight_map': places}))
  (folder / INDEX).write_bytes(index)
  read_all(TensorFiles(folder))


def try_architecture(draw: random.Random, folder: pathlib.Path) -> None:
  known = draw.choice(list(published_configs.CONFIGS.values()))
  data = changed_json(draw, json.dumps(known))
  (folder / 'config.json').write_bytes(data)
  config, longest = read_architecture(folder)
  assert config.vocab_size > 0
  assert longest > 0


def try_gguf(draw: random.Random, folder: pathlib.Path) -> None:
  data = gguf(draw.choice(('llama', 'qwen2', 'qwen3')))
  longest = 5000  # bytes; about the header
  if draw.randrange(2):
    data = with_number(draw, data, longest)
  else:
    data = damage(draw, data[:longest]) + data[longest:]
  path = folder / 'model.gguf'
  path.write_bytes(data)
  opened = read_gguf(path)
  for name, tensor in opened.file.tensors.items():
    assert read_tensor(opened.file, name).shape == tensor.shape
  (folder / 'tokenizer.json').write_text(opened.tokenizer_json)
  use_tokenizer(folder)


def try_tokenizer(draw: random.Random, folder: pathlib.Path) -> None:
  text = tokenizer(draw.choice(('qwen2', 'llama3', 'mistral')))
  (folder / 'tokenizer.json').write_bytes(changed_json(draw, text))
  use_tokenizer(folder)


def use_tokenizer(folder: pathlib.Path) -> None:
  read = read_tokenizer(folder)
  for text in ('', 'a', 'Step 1: 2 + 3 = 5\n', 'Zoë 😀 ки'):
    ids = read.encode(text)
    assert all(0 <= i < read.vocab_size for i in ids), (ids, read.vocab_size)
    read.decode(ids)


KINDS: dict[str, Callable[[random.Random, pathlib.Path], None]] = {
  'safetensors': try_safetensors,
  'index': try_index,
  'architecture': try_architecture,
  'gguf': try_gguf,
  'tokenizer': try_tokenizer,
}


def case(generator: np.random.Generator) -> int:
  draw = python_random(generator)
  name, attempt = draw.choice(list(KINDS.items()))
  if name == 'gguf':
    gguf('llama')  # imports much
  with limited(SECONDS, MOST_MIB, name):
    for _ in range(FILES):
      with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        try:
          attempt(draw, folder)
        except UserError as error:
          assert made in str(error), error
        except BaseException as error:
          # A panic of Rust is no Exception.
          raise AssertionError(f'{name}: {type(error)} {error}') from error
  return FILES


CAMPAIGN = Campaign('headers', 'changed files of models opened', 20_000, case)

if __name__ == '__main__':
  run(CAMPAIGN)
