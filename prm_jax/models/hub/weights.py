"""Loads the weights of published safetensors as our parameters.

The table TENSORS maps their tensors to ours; `publish` uses it for the other
direction. Each device's slice of a parameter is read from the files as exactly
that slice, and no value is changed.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from prm_jax.models.config import DTYPES, TransformerConfig
from prm_jax.models.hub.architectures import ties_output
from prm_jax.models.hub.safetensors_files import TensorFiles
from prm_jax.runtime.array_reader import empty_aligned
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.finite import first_not_finite
from prm_jax.runtime.metrics import Heartbeat
from prm_jax.runtime.sharding import shardings

Params = dict[str, Any]

# Buffers that old versions of transformers saved; they follow from the config.
IGNORED = ('rotary_emb.inv_freq',)
# The two embeddings in the files, of the words that go in and that come out.
INPUT, OUTPUT = 'model.embed_tokens.weight', 'lm_head.weight'
ROWS_PER_PART = 4096  # words whose vectors are compared at a time


@dataclasses.dataclass(frozen=True)
class TensorMap:
  """Maps one parameter of ours to its tensors in the files.

  Attributes:
    ours: path in the parameter tree; under layers/ it has a leading axis L.
    theirs: name in the files, with {} for the layer.
    axes: our axes after L, in the letters of `models`.
    their_axes: the axes in the files; letters without a space between them are
      one axis there.
    when: the feature of a model that brings the parameter in; '' is always.
  """

  ours: str
  theirs: str
  axes: str
  their_axes: str
  when: str = ''

  @property
  def stacked(self) -> bool:
    return self.ours.startswith('layers/')


def _in_layers(
  ours: str, theirs: str, axes: str, their_axes: str, when: str = ''
) -> TensorMap:
  names = f'layers/{ours}', f'model.layers.{{}}.{theirs}.weight'
  if ours.endswith('/bias'):
    names = names[0], names[1].replace('.weight', '.bias')
  return TensorMap(*names, axes, their_axes, when)


TENSORS = (
  TensorMap('embed_tokens', INPUT, 'VD', 'V D'),
  TensorMap('lm_head', OUTPUT, 'VD', 'V D', 'untied'),
  TensorMap('norm/scale', 'model.norm.weight', 'D', 'D'),
  _in_layers('input_layernorm/scale', 'input_layernorm', 'D', 'D'),
  _in_layers(
    'post_attention_layernorm/scale', 'post_attention_layernorm', 'D', 'D'
  ),
  _in_layers('self_attn/q_proj/kernel', 'self_attn.q_proj', 'DNH', 'NH D'),
  _in_layers('self_attn/k_proj/kernel', 'self_attn.k_proj', 'DKH', 'KH D'),
  _in_layers('self_attn/v_proj/kernel', 'self_attn.v_proj', 'DKH', 'KH D'),
  _in_layers('self_attn/o_proj/kernel', 'self_attn.o_proj', 'NHD', 'D NH'),
  _in_layers('self_attn/q_proj/bias', 'self_attn.q_proj', 'NH', 'NH', 'bias'),
  _in_layers('self_attn/k_proj/bias', 'self_attn.k_proj', 'KH', 'KH', 'bias'),
  _in_layers('self_attn/v_proj/bias', 'self_attn.v_proj', 'KH', 'KH', 'bias'),
  _in_layers('self_attn/q_norm/scale', 'self_attn.q_norm', 'H', 'H', 'qk_norm'),
  _in_layers('self_attn/k_norm/scale', 'self_attn.k_norm', 'H', 'H', 'qk_norm'),
  _in_layers('mlp/gate_proj/kernel', 'mlp.gate_proj', 'DF', 'F D'),
  _in_layers('mlp/up_proj/kernel', 'mlp.up_proj', 'DF', 'F D'),
  _in_layers('mlp/down_proj/kernel', 'mlp.down_proj', 'FD', 'D F'),
)
# The tensors of a head by layout; kernels are transposed. See `publish`.
HEAD_TENSORS: dict[str, dict[str, str]] = {
  'lm': {},
  'token_classification': {'kernel': 'score.weight', 'bias': 'score.bias'},
  'process_reward_model': {
    'hidden_kernel': 'score.0.weight',
    'hidden_bias': 'score.0.bias',
    'kernel': 'score.2.weight',
    'bias': 'score.2.bias',
  },
}


def tensors_of(config: TransformerConfig) -> list[TensorMap]:
  """Returns the rows of the table that a model has."""
  has = {
    '': True,
    'untied': not config.tie_embeddings,
    'bias': config.qkv_bias,
    'qk_norm': config.qk_norm,
  }
  return [tensor for tensor in TENSORS if has[tensor.when]]


def sizes_of(config: TransformerConfig) -> dict[str, int]:
  """Returns the length of the axis for each letter of the table."""
  return {
    'V': config.vocab_size,
    'D': config.d_model,
    'F': config.d_ff,
    'N': config.n_heads,
    'K': config.n_kv_heads,
    'H': config.head_dim,
  }


def names_of(tensor: TensorMap, config: TransformerConfig) -> list[str]:
  """Returns the names of one parameter in the files, layer by layer."""
  if not tensor.stacked:
    return [tensor.theirs]
  return [tensor.theirs.format(i) for i in range(config.n_layers)]


def expected_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a backbone's tensors by their names in the files."""
  sizes = sizes_of(config)
  return {
    name: tuple(
      math.prod(sizes[letter] for letter in axis)
      for axis in tensor.their_axes.split()
    )
    for tensor in tensors_of(config)
    for name in names_of(tensor, config)
  }


def abstract_params(config: TransformerConfig, dtype: str) -> Params:
  """Returns the backbone's parameter tree as shapes."""
  sizes = sizes_of(config)
  shapes = {
    tensor.ours: jax.ShapeDtypeStruct(
      (config.n_layers,) * tensor.stacked
      + tuple(sizes[letter] for letter in tensor.axes),
      dtype,
    )
    for tensor in tensors_of(config)
  }
  return unflatten_dict(shapes, sep='/')


def check_backbone(
  files: TensorFiles, config: TransformerConfig, also: tuple[str, ...] = ()
) -> None:
  """Raises UserError unless the files hold exactly the model and `also`.

  If config.json ties the embeddings, an output embedding in the files has to be
  a copy of the input's: transformers does not tie them otherwise.
  """
  expected = expected_shapes(config) | dict.fromkeys(also)
  ignored = IGNORED + (OUTPUT,) * config.tie_embeddings
  has_copy = OUTPUT in files.shapes and ties_output(files.directory)
  if has_copy:
    expected[OUTPUT] = expected[INPUT]
  files.check(expected, ignored)
  if has_copy:
    _check_copy(files)


def _check_copy(files: TensorFiles) -> None:
  """Raises UserError unless the two embeddings are equal, read part by part."""
  words = files.shapes[INPUT][0]
  for start in range(0, words, ROWS_PER_PART):
    rows = (slice(start, min(start + ROWS_PER_PART, words)),)
    parts = (files.read_part(name, rows) for name in (INPUT, OUTPUT))
    if not np.array_equal(*parts):
      raise UserError(
        f'{files.directory}: {OUTPUT!r} differs from {INPUT!r}, though '
        'config.json ties the two; set "tie_word_embeddings": false there'
      )


def load_backbone(
  files: TensorFiles,
  config: TransformerConfig,
  mesh: Mesh,
  dtype: str = 'float32',
  also: tuple[str, ...] = (),
) -> Params:
  """Loads the parameters of `models.forward`, each device's part by itself.

  Args:
    files: files of a model that `config` describes; checked before reading.
    mesh: devices that get the parameters, by the rules of `runtime.sharding`.
    dtype: type of the parameters, 'float32' or 'bfloat16'.
    also: names of other tensors that the files must have, which the caller
      reads with `files.read`.

  Returns:
    The tree of `init_params`. It has `lm_head` only if embeddings are not tied.

  Raises:
    UserError: a tensor is missing, unknown, of another shape, or has values
      that are not finite; or config.json ties two embeddings that differ.
  """
  if dtype not in DTYPES:
    raise UserError(f'dtype {dtype!r}: expected one of {", ".join(DTYPES)}')
  if config.n_layers > len(files.shapes):  # before making a name for each
    raise UserError(
      f'{files.directory}: {len(files.shapes)} tensors are too few for the '
      f'num_hidden_layers={config.n_layers} of config.json; the two belong to '
      'different models'
    )
  check_backbone(files, config, also)
  abstract = abstract_params(config, dtype)
  shapes = flatten_dict(abstract, sep='/')
  places = flatten_dict(shardings(abstract, mesh), sep='/')
  loaded, tensors = {}, {each.ours: each for each in tensors_of(config)}
  heartbeat = Heartbeat(f'loading {files.directory}, tensors', len(tensors))
  for number, tensor in enumerate(tensors.values()):
    shape = shapes[tensor.ours].shape
    report = functools.partial(heartbeat.at, number)
    read = _reader(files, tensor, config, shape, dtype, report)
    loaded[tensor.ours] = jax.make_array_from_callback(
      shape, places[tensor.ours], read
    )
  params = unflatten_dict(loaded, sep='/')
  if bad := first_not_finite(params):
    path, layer = bad
    raise files.not_finite(names_of(tensors[path], config)[layer])
  return params


def _reader(
  files: TensorFiles,
  tensor: TensorMap,
  config: TransformerConfig,
  shape: tuple[int, ...],
  dtype: str,
  report: Callable[[], None],
) -> Callable[[tuple[slice, ...]], np.ndarray]:
  """Returns a function that reads a part of our parameter from the files.

  Args:
    report: called before each tensor is read.
  """
  names, sizes = names_of(tensor, config), sizes_of(config)
  seen = {}  # replicas ask for the same part

  def read(index: tuple[slice, ...]) -> np.ndarray:
    bounds = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
    if bounds not in seen:
      out = empty_aligned(tuple(end - start for start, end in bounds), dtype)
      layers = range(*bounds[0]) if tensor.stacked else (None,)
      inner = dict(zip(tensor.axes, bounds[tensor.stacked :], strict=True))
      for i, layer in enumerate(layers):
        report()
        name = names[layer or 0]
        part = out[i] if tensor.stacked else out
        part[...] = _read_ours(files, name, tensor, inner, sizes)
      seen[bounds] = out
    return seen[bounds]

  return read


def _read_ours(
  files: TensorFiles,
  name: str,
  tensor: TensorMap,
  bounds: dict[str, tuple[int, int]],
  sizes: dict[str, int],
) -> np.ndarray:
  """Reads a part of one tensor in the files, and gives it our axes.

  Args:
    bounds: start and end along each of our axes.
  """
  where = []
  lengths = []
  for axis in tensor.their_axes.split():
    # Of a fused axis only the first letter is cut; the others are read whole.
    inner = math.prod(sizes[letter] for letter in axis[1:])
    start, end = bounds[axis[0]]
    where.append(slice(start * inner, end * inner))
    lengths += [end - start, *(sizes[letter] for letter in axis[1:])]
  letters = tensor.their_axes.replace(' ', '')
  part = files.read_slice(name, tuple(where)).reshape(lengths)
  return part.transpose([letters.index(letter) for letter in tensor.axes])
