"""Reads GGUF, the file format of llama.cpp: metadata and tensors.

    open_file: path -> GgufFile, its table of contents checked, no weight read
    read_tensor: one tensor, dequantised to float32

`gguf_file` makes a model of these. Sizes that a file states are checked against
its length before they are used.

The table of contents is read here, and not by `gguf.GGUFReader`, because that
never ends on an array that claims to be longer than the file, and takes seconds
for a vocabulary.
"""

import math
import mmap
import pathlib
import struct
from typing import Any, NamedTuple

import numpy as np

from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError

# Type numbers of metadata in the file, with their codes in struct and numpy.
_SCALARS = dict(zip((*range(8), 10, 11, 12), 'BbHhIif?Qqd', strict=True))
_STRING, _ARRAY = 8, 9


class GgufTensor(NamedTuple):
  """Says where a tensor is in the file, and how it is stored there."""

  shape: tuple[int, ...]  # row-major: [outputs, inputs]
  kind: Any  # gguf.GGMLQuantizationType
  start: int  # first byte in the file
  size: int  # bytes


class GgufFile(NamedTuple):
  """Holds an opened file whose tensors are not read yet."""

  path: pathlib.Path
  metadata: dict[str, Any]
  tensors: dict[str, GgufTensor]
  data: mmap.mmap


class _Cursor:
  """Reads a file from its start and never past its end."""

  def __init__(self, path: pathlib.Path, data: mmap.mmap) -> None:
    self.path, self.data, self.at = path, data, 0

  def fail(self, what: str) -> UserError:
    return UserError(f'{self.path}: {what}')

  def take(self, size: int) -> bytes:
    if size > len(self.data) - self.at:
      raise self.fail(
        f'the header goes on after the last byte ({len(self.data)}); the file '
        'is truncated or damaged, download it again'
      )
    self.at += size
    return self.data[self.at - size : self.at]

  def number(self, code: str) -> Any:
    return struct.unpack('<' + code, self.take(struct.calcsize('<' + code)))[0]

  def text(self) -> str:
    at = self.at
    try:
      return self.take(self.number('Q')).decode()
    except UnicodeDecodeError:
      raise self.fail(
        f'the text at byte {at} is not UTF-8; the file is damaged, download '
        'it again'
      ) from None

  def value(self, name: str) -> Any:
    kind = self.number('I')
    if kind == _STRING:
      return self.text()
    if kind in _SCALARS:
      return self.number(_SCALARS[kind])
    if kind == _ARRAY:
      kind, count = self.number('I'), self.number('Q')
      if kind == _STRING:
        return [self.text() for _ in range(count)]
      if kind in _SCALARS:
        dtype = np.dtype('<' + _SCALARS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)
    raise self.fail(
      f'{name!r:.80} has the unknown type {kind}; the file is damaged or '
      'newer than this reader'
    )


def _library() -> Any:
  try:
    import gguf  # noqa: PLC0415
  except ImportError:
    raise UserError(
      "GGUF files need the package 'gguf': pip install gguf"
    ) from None
  return gguf


def _metadata(cursor: _Cursor) -> tuple[dict[str, Any], int]:
  """Reads all keys, and the number of tensors that follow."""
  if len(cursor.data) < 4 or cursor.take(4) != b'GGUF':
    raise cursor.fail("not a GGUF file (it does not begin with 'GGUF')")
  version = cursor.number('I')
  if version not in (2, 3):
    raise cursor.fail(
      f'GGUF version {version}; expected 2 or 3, little-endian: convert it '
      "again with today's llama.cpp"
    )
  n_tensors, n_keys = cursor.number('Q'), cursor.number('Q')
  found: dict[str, Any] = {}
  for _ in range(n_keys):
    name = cursor.text()
    if name in found:
      raise cursor.fail(f'{name!r:.80} is there twice; the file is damaged')
    found[name] = cursor.value(name)
  return found, n_tensors


def _tensor(cursor: _Cursor, name: str, gguf: Any) -> GgufTensor:
  """Reads an entry of the table of tensors; `start` counts from its end."""
  n_axes = cursor.number('I')
  if n_axes > 4:
    raise cursor.fail(
      f'tensor {name!r:.80} has {n_axes} axes; the file is damaged'
    )
  shape = tuple(cursor.number('Q') for _ in range(n_axes))[::-1]
  number, start = cursor.number('I'), cursor.number('Q')
  try:
    kind = gguf.GGMLQuantizationType(number)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # Dequantising a block of zeros shows whether the package can do it.
    gguf.dequantize(np.zeros((1, size), np.uint8), kind)
  except (ValueError, KeyError, NotImplementedError):
    raise cursor.fail(
      f'tensor {name!r:.80} has quantisation type {number}, which the '
      'installed gguf package cannot turn into numbers; use a Q8_0 or F16 file'
    ) from None
  if not shape or min(shape) < 1 or shape[-1] % block:
    raise cursor.fail(
      f'tensor {name!r:.80} has shape {list(shape)}, which is no whole '
      f'number of {kind.name} blocks of {block}; the file is damaged'
    )
  return GgufTensor(shape, kind, start, math.prod(shape) // block * size)


def _tensors(
  cursor: _Cursor, count: int, align: int, gguf: Any
) -> dict[str, GgufTensor]:
  relative: dict[str, GgufTensor] = {}
  for _ in range(count):
    name = cursor.text()
    if name in relative:
      raise cursor.fail(
        f'tensor {name!r:.80} is there twice; the file is damaged'
      )
    relative[name] = _tensor(cursor, name, gguf)
  if isinstance(align, bool) or not isinstance(align, int) or align < 1:
    raise cursor.fail(f'general.alignment={align!r}; expected >= 1')
  first = -(-cursor.at // align) * align
  found = {k: t._replace(start=first + t.start) for k, t in relative.items()}
  end = first
  for name, tensor in sorted(found.items(), key=lambda item: item[1].start):
    if tensor.start < end:
      raise cursor.fail(
        f'tensor {name!r:.80} shares bytes with another; the file is damaged'
      )
    end = tensor.start + tensor.size
    if end > len(cursor.data):
      raise cursor.fail(
        f'tensor {name!r:.80} ends at byte {end} of {len(cursor.data)}; '
        'the file is truncated, download it again'
      )
  return found


def open_file(path: pathlib.Path | str) -> GgufFile:
  """Opens a file and checks that it holds every tensor that it lists.

  Raises:
    UserError: there is no such file, it is not GGUF, truncated or damaged, it
      has a quantisation that the `gguf` package cannot turn into numbers, or
      that package is not installed.
  """
  path = pathlib.Path(path)
  gguf = _library()
  try:
    with paths.open_bytes(path) as file:
      data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
  except UserError:
    raise
  except (OSError, ValueError) as error:  # ValueError: an empty file
    raise UserError(f'{path} cannot be read as GGUF: {error}') from None
  cursor = _Cursor(path, data)
  metadata, count = _metadata(cursor)
  align = metadata.get('general.alignment', 32)
  return GgufFile(path, metadata, _tensors(cursor, count, align, gguf), data)


def read_tensor(file: GgufFile, name: str) -> np.ndarray:
  """Reads a tensor as float32, in the layout of the file: [outputs, inputs]."""
  tensor = file.tensors[name]
  raw = np.frombuffer(file.data, np.uint8, tensor.size, tensor.start)
  rows = raw.reshape(*tensor.shape[:-1], -1)
  return _library().dequantize(rows, tensor.kind).reshape(tensor.shape)
