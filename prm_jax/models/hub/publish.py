"""Saves a model to a folder in the layout of Hugging Face's libraries.

It is written layer by layer and file by file, so the host never holds more than
one file's weights. The folder gets its name when all of it is on disk.
"""

import dataclasses
import json
import pathlib
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from safetensors import SafetensorError
from safetensors.numpy import save_file

from prm_jax.models.config import DTYPES, TransformerConfig
from prm_jax.models.hub.architectures import architecture_json
from prm_jax.models.hub.safetensors_files import INDEX, SINGLE, resolve
from prm_jax.models.hub.weights import (
  HEAD_TENSORS,
  TensorMap,
  abstract_params,
  names_of,
  tensors_of,
)
from prm_jax.runtime.errors import UserError

Params = dict[str, Any]
# Files from which transformers reads a tokenizer.
TOKENIZER_FILES = (
  'tokenizer*',
  'special_tokens_map.json',
  'added_tokens.json',
  'vocab.json',
  'merges.txt',
  'chat_template*',
)
# A tensor's name in the files, its size in bytes, and a function that fetches
# it from the devices.
Outgoing = tuple[str, int, Callable[[], np.ndarray]]


@dataclasses.dataclass(frozen=True)
class SaveOptions:
  """Says how a model is stored.

  Attributes:
    max_length: context length in tokens that config.json states.
    dtype: 'float32' or 'bfloat16'; None keeps each array's own.
    shard_bytes: largest file, unless a single tensor is larger.
    bos, eos: `bos_token_id` and `eos_token_id` of config.json. None is written
      as null; if the keys were absent, transformers would use Llama 2's ids.
    beside: texts that are written, too, by the names of their files.
  """

  max_length: int = 32_768
  dtype: str | None = None
  shard_bytes: int = 5_000_000_000
  bos: int | None = None
  eos: int | Sequence[int] | None = None
  beside: Mapping[str, str] = dataclasses.field(default_factory=dict)


DEFAULT_OPTIONS = SaveOptions()


def save_model(
  directory: str | pathlib.Path,
  params: Params,
  config: TransformerConfig,
  layout: str,
  head_params: Params | None = None,
  tokenizer_from: str | pathlib.Path | None = None,
  options: SaveOptions = DEFAULT_OPTIONS,
) -> None:
  """Writes config.json and safetensors under Hugging Face's names.

  Args:
    directory: new, or an empty folder.
    params: the backbone's, on any mesh of this process.
    layout: 'lm' is a CausalLM, without a head. 'token_classification' has a
      linear head of two classes (wrong, right), as TRL trains them.
      'process_reward_model' is Qwen2.5-Math-PRM's: a head of two classes with
      a ReLU layer as wide as the model, for Qwen2 only. The last two have no
      output embedding, so `lm_head` is not saved.
    head_params: the head's, as `init_head` makes them.
    tokenizer_from: folder or hf:// name of a model whose tokenizer is copied.

  Raises:
    UserError: the folder is not empty, the layout does not fit the model or the
      head, or writing fails.
  """
  directory = pathlib.Path(directory)
  check_folder(directory)
  dtype = options.dtype
  if dtype is not None and dtype not in DTYPES:
    raise UserError(f'dtype {dtype!r}: expected one of {", ".join(DTYPES)}')
  check_model(config, layout, head_params)
  stored = dtype or str(jnp.dtype(params['embed_tokens'].dtype))
  description = architecture_json(config, layout, options.max_length, stored)
  description |= {'bos_token_id': options.bos, 'eos_token_id': options.eos}
  outgoing = _backbone(params, config, layout, dtype)
  outgoing += _head(head_params or {}, layout, dtype)
  tokenizer = _tokenizer_files(tokenizer_from)
  # No other process has this name, nor has one that was killed.
  unique = uuid.uuid4().hex[:12]
  partial = directory.parent / f'.{directory.name}.partial-{unique}'
  try:
    partial.mkdir(parents=True)
    text = json.dumps(description, indent=2)
    (partial / 'config.json').write_text(f'{text}\n', encoding='utf-8')
    for path in tokenizer:
      shutil.copyfile(path, partial / path.name)
    for name, beside in options.beside.items():
      (partial / name).write_text(beside, encoding='utf-8')
    _write_tensors(partial, outgoing, options.shard_bytes)
    partial.rename(directory)
  except (OSError, SafetensorError) as error:
    raise UserError(
      f'{directory} cannot be written ({error}); free space there, or name '
      'another folder'
    ) from None
  finally:
    shutil.rmtree(partial, ignore_errors=True)  # gone already if renamed


def check_folder(directory: pathlib.Path) -> None:
  """Raises UserError unless a model may be written there."""
  if directory.exists() and (
    not directory.is_dir() or any(directory.iterdir())
  ):
    raise UserError(
      f'{directory} exists and is not empty; remove it, or name another folder'
    )


def check_model(
  config: TransformerConfig, layout: str, head_params: Params | None
) -> None:
  """Raises UserError unless the layout stores such a model; reads no weights.

  Args:
    head_params: the head's, or their shapes.
  """
  architecture_json(config, layout, 1, 'float32')  # whatever length and type
  names = HEAD_TENSORS[layout]
  head = {} if head_params is None else head_params
  if head.keys() != names.keys():
    raise UserError(
      f'layout {layout} stores a head of {sorted(names) or "nothing"}, this '
      f'one has {sorted(head) or "nothing"}; choose the layout that fits '
      f'({", ".join(HEAD_TENSORS)})'
    )
  if names and head['kernel'].shape[1] != 2:
    raise UserError(
      f'layout {layout} stores a head of two classes, this one has '
      f'{head["kernel"].shape[1]} outputs; train with the head two_class'
    )
  # The published model's own code makes a head as wide as the model.
  width = head['kernel'].shape[0] if names else config.d_model
  if width != config.d_model:
    raise UserError(
      f'layout {layout} stores a head as wide as the model '
      f'({config.d_model}), this one is {width}; train with that head.hidden'
    )


def _backbone(
  params: Params, config: TransformerConfig, layout: str, dtype: str | None
) -> list[Outgoing]:
  ours = flatten_dict(params, sep='/')
  expected = flatten_dict(abstract_params(config, 'float32'), sep='/')
  for name in sorted(ours.keys() | expected.keys()):
    found = ours[name].shape if name in ours else None
    wanted = expected[name].shape if name in expected else None
    if found != wanted:
      raise UserError(
        f'parameter {name}: shape {found}, the config makes it {wanted}; '
        'export with the config that the parameters were made with'
      )
  outgoing = []
  for tensor in tensors_of(config):
    array = ours[tensor.ours]
    if layout != 'lm' and tensor.ours == 'lm_head':
      continue
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
      raise UserError(
        f'parameter {tensor.ours} lies on several hosts; export from one host, '
        'restoring the checkpoint on its devices'
      )
    names = names_of(tensor, config)
    size = array.size // len(names) * jnp.dtype(dtype or array.dtype).itemsize
    for layer, name in enumerate(names):
      outgoing.append((name, size, _fetch(array, layer, tensor, dtype)))
  return outgoing


def _fetch(
  array: jax.Array | np.ndarray,
  layer: int,
  tensor: TensorMap,
  dtype: str | None,
) -> Callable[[], np.ndarray]:
  """Returns a function that fetches one layer, with the axes of the files."""
  letters = tensor.their_axes.replace(' ', '')
  order = [tensor.axes.index(letter) for letter in letters]

  def fetch() -> np.ndarray:
    ours = np.asarray(array[layer] if tensor.stacked else array)
    shape = iter(ours.transpose(order).shape)
    fused = [
      int(np.prod([next(shape) for _ in axis]))
      for axis in tensor.their_axes.split()
    ]
    theirs = np.ascontiguousarray(ours.transpose(order).reshape(fused))
    return theirs.astype(dtype or theirs.dtype, copy=False)

  return fetch


def _head(head: Params, layout: str, dtype: str | None) -> list[Outgoing]:
  outgoing = []
  for ours, theirs in HEAD_TENSORS[layout].items():
    array = np.ascontiguousarray(np.asarray(head[ours]).T)
    array = array.astype(dtype or array.dtype, copy=False)
    outgoing.append((theirs, array.nbytes, lambda array=array: array))
  return outgoing


def _tokenizer_files(
  source: str | pathlib.Path | None,
) -> list[pathlib.Path]:
  if source is None:
    return []
  folder = resolve(source)
  if not (folder / 'tokenizer.json').is_file():
    raise UserError(
      f'{folder} has no tokenizer.json to copy; name the folder of a model '
      'that has one'
    )
  found = {path for kind in TOKENIZER_FILES for path in folder.glob(kind)}
  return sorted(path for path in found if path.is_file())


def _write_tensors(
  directory: pathlib.Path, outgoing: list[Outgoing], shard_bytes: int
) -> None:
  shards: list[list[Outgoing]] = [[]]
  room = shard_bytes
  for item in outgoing:
    if shards[-1] and item[1] > room:
      shards.append([])
      room = shard_bytes
    shards[-1].append(item)
    room -= item[1]
  weight_map = {}
  for i, shard in enumerate(shards):
    file = SINGLE
    if len(shards) > 1:
      file = f'model-{i + 1:05}-of-{len(shards):05}.safetensors'
    # transformers rejects files without this metadata.
    save_file(
      {name: fetch() for name, _, fetch in shard},
      directory / file,
      {'format': 'pt'},
    )
    # The library makes files that only their owner can read.
    (directory / file).chmod((directory / 'config.json').stat().st_mode)
    weight_map |= dict.fromkeys((name for name, _, _ in shard), file)
  if len(shards) > 1:
    total = sum(size for _, size, _ in outgoing)
    index = {'metadata': {'total_size': total}, 'weight_map': weight_map}
    text = json.dumps(index, indent=2)
    (directory / INDEX).write_text(f'{text}\n', encoding='utf-8')
