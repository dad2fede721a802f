"""Finds, opens and checks checkpoint folders of published models.

    name of a model -> resolve -> folder -> TensorFiles: names and shapes

No weight is read here; `weights.load_backbone` reads slices of the files.
Pickled weights are never opened.
"""

import pathlib
from typing import Any

import huggingface_hub
import numpy as np
from safetensors import SafetensorError, safe_open

from prm_jax.models.hub.network import is_network_error
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.finite import NOT_FINITE

HUB = 'hf://'
# Neither pickles nor the same weights in formats of other libraries, of which
# Mistral's and those in folders are safetensors, too.
UNWANTED = ('consolidated*', '*/*')
WANTED = ('*.json', '*.safetensors', '*.jinja', 'tokenizer*', 'merges.txt')
INDEX = 'model.safetensors.index.json'
SINGLE = 'model.safetensors'
DTYPES = ('F32', 'BF16', 'F16')


def resolve(path: str | pathlib.Path) -> pathlib.Path:
  """Returns the local folder of a model, after a download if necessary.

  Args:
    path: a folder, or hf://OWNER/NAME (or hf://OWNER/NAME@REVISION), which is
      downloaded into Hugging Face's cache unless it is there.

  Raises:
    UserError: there is no such folder, or the model is neither in the cache nor
      can it be downloaded.
  """
  paths.check_local(path, 'a model')
  if not str(path).startswith(HUB):
    folder = paths.open_path(path)
    if not folder.is_dir():
      raise UserError(
        f'model {folder}: no such folder; name one that holds a config.json, '
        f'or {HUB}OWNER/NAME'
      )
    return folder
  name, _, revision = str(path).removeprefix(HUB).partition('@')
  try:
    return pathlib.Path(
      huggingface_hub.snapshot_download(
        name,
        revision=revision or None,
        allow_patterns=list(WANTED),
        ignore_patterns=list(UNWANTED),
      )
    )
  except Exception as error:
    # All errors of huggingface_hub itself are one or the other.
    if not isinstance(error, ValueError) and not is_network_error(error):
      raise
    why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise UserError(
      f'model {path} is neither in the cache of Hugging Face nor can it be '
      f'downloaded ({why[:200]}); on a machine with network run `hf download '
      f'{name}` and copy the folder, then give its path'
    ) from None


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object from a file of a model; a UserError names the file."""
  return paths.read_json(
    path, 'download the model again, or save it again with save_pretrained'
  )


class TensorFiles:
  """Reads the safetensors files of one folder.

  Opening checks the headers, so truncated and damaged files are found before
  weights are read. `check` compares names and shapes with the model's.

  Attributes:
    shapes: shape of every tensor by its name in the files.

  Raises:
    UserError: the folder has no safetensors, a shard is missing or damaged, or
      a tensor is not where the index says.
  """

  def __init__(self, directory: str | pathlib.Path) -> None:
    self.directory = pathlib.Path(directory)
    self.shapes: dict[str, tuple[int, ...]] = {}
    self._slices: dict[str, Any] = {}
    self._paths: dict[str, pathlib.Path] = {}
    index = self.directory / INDEX
    if (self.directory / SINGLE).is_file():  # first, as in transformers
      self._open(self.directory / SINGLE)
      return
    if not index.is_file():
      raise UserError(_explain_no_weights(self.directory))
    shards = _shards(index)
    for shard in sorted(set(shards.values())):
      self._open(self.directory / shard)
    for name, shard in shards.items():
      if self._paths.get(name) != self.directory / shard:
        raise UserError(
          f'{self.directory / shard} has no tensor {name!r}, which {INDEX} '
          'places there; download the model again'
        )

  def _open(self, path: pathlib.Path) -> None:
    try:
      # Names Git LFS pointers, which safetensors would call damaged.
      paths.open_bytes(path).close()
      handle = safe_open(path, framework='np')
      names = list(handle.keys())  # the handle itself is not iterable
    except (OSError, SafetensorError) as error:
      raise UserError(
        f'{path} is missing or damaged ({error}); download it again'
      ) from None
    for name in names:
      if name in self._paths:
        raise UserError(
          f'tensor {name!r} is both in {self._paths[name]} and in {path}; '
          'remove the file that belongs to another model'
        )
      self._slices[name] = handle.get_slice(name)
      self._paths[name] = path
      self.shapes[name] = tuple(self._slices[name].get_shape())

  def check(
    self,
    expected: dict[str, tuple[int, ...] | None],
    ignored: tuple[str, ...] = (),
  ) -> None:
    """Checks that the files hold the expected tensors and no others.

    Args:
      expected: shape by name; None accepts any shape.
      ignored: suffixes of names that the files may have, too.

    Raises:
      UserError: names the tensor and its file.
    """
    for name, shape in expected.items():
      self._check_tensor(name, shape)
    extra = [
      name
      for name in self.shapes
      if name not in expected and not name.endswith(ignored)
    ]
    if extra:
      raise UserError(
        f'{self._paths[extra[0]]}: tensor {extra[0]!r} (of {len(extra)} such) '
        'belongs to no part of the model that config.json describes; use a '
        'model of the Llama, Mistral, Qwen2 or Qwen3 family'
      )

  def _check_tensor(self, name: str, shape: tuple[int, ...] | None) -> None:
    if name not in self.shapes:
      raise UserError(
        f'{self.directory} has no tensor {name!r}, which is part of such a '
        'model; download it again, or correct its config.json'
      )
    if shape is not None and self.shapes[name] != tuple(shape):
      raise UserError(
        f'{self._paths[name]}: tensor {name!r} has shape '
        f'{list(self.shapes[name])}, but config.json makes it '
        f'{list(shape)}; the two belong to different models'
      )
    if 0 in self.shapes[name]:
      raise UserError(
        f'{self._paths[name]}: tensor {name!r} of shape '
        f'{list(self.shapes[name])} holds no number; download it again'
      )
    dtype = self._slices[name].get_dtype()
    if dtype not in DTYPES:
      raise UserError(
        f'{self._paths[name]}: tensor {name!r} is stored as {dtype}, '
        f'expected one of {", ".join(DTYPES)}; use weights that are not '
        'quantized'
      )

  def read_slice(self, name: str, where: tuple[slice, ...]) -> np.ndarray:
    """Reads a part of a tensor, and no more, in the stored type."""
    return self._slices[name][where]

  def read(self, name: str) -> np.ndarray:
    """Reads one tensor as float32.

    Raises:
      UserError: it is missing, of a type not in DTYPES, or not finite.
    """
    self._check_tensor(name, None)
    return self.read_part(name, ())

  def read_part(self, name: str, where: tuple[slice, ...]) -> np.ndarray:
    """Reads a part of a tensor as float32; a UserError if it is not finite."""
    part = np.asarray(self._slices[name][where or ...], np.float32)
    if not np.isfinite(part).all():
      raise self.not_finite(name)
    return part

  def not_finite(self, name: str) -> UserError:
    """Returns the error for a tensor that holds NaN or infinite values."""
    return UserError(
      f'{self._paths[name]}: tensor {name!r} {NOT_FINITE}download it again, '
      'or use an earlier checkpoint'
    )


def _shards(index: pathlib.Path) -> dict[str, str]:
  """Reads from an index which file holds each tensor."""
  shards = read_json(index).get('weight_map')
  if not isinstance(shards, dict) or not shards:
    raise UserError(
      f'{index}: weight_map={shards!r}, expected a file for every tensor; '
      'download it again'
    )
  for name, shard in shards.items():
    # An index must not make us read files outside of the model's folder, nor
    # name what no file can have, such as a zero byte.
    if (
      not isinstance(shard, str)
      or pathlib.Path(shard).name != shard
      or not shard.isprintable()
    ):
      raise UserError(
        f'{index}: tensor {name!r} is in {shard!r}, expected the name of a '
        'file of this folder; download it again'
      )
  return shards


def _explain_no_weights(directory: pathlib.Path) -> str:
  """Says why a folder has no weights that we open, and what to do."""
  if (directory / 'adapter_config.json').is_file():
    return (
      f'{directory} holds a LoRA adapter only; merge it with its base model '
      "(peft's merge_and_unload) and save that with save_pretrained"
    )
  if others := sorted(p.name for p in directory.glob('*.safetensors')):
    return (
      f'{directory} holds {others[0]}, but neither {SINGLE} nor {INDEX}; call '
      f'it {SINGLE} if it has all weights, or else bring the index'
    )
  kinds = ('*.bin', '*.pt', '*.pth', '*.ckpt')
  pickles = sorted(p.name for kind in kinds for p in directory.glob(kind))
  if pickles:
    return (
      f'{directory} holds {pickles[0]}, a pickle, which can run any code when '
      "opened; convert it with transformers' save_pretrained, which writes "
      'safetensors'
    )
  return (
    f'{directory} holds neither {SINGLE} nor {INDEX}; name the folder of a '
    'model as saved by save_pretrained'
  )
