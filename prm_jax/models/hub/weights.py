"""Weights in: published safetensors to our parameters.

One table, TENSORS, says which of their tensors is which of ours, for this file
and for `publish`, which goes the other way. Every device's slice is read from
the files as exactly that slice, and stays every bit as it was stored.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax.models.config import DTYPES, TransformerConfig
from prm_jax.models.hub.safetensors_files import TensorFiles
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.finite import first_not_finite
from prm_jax.runtime.metrics import Heartbeat
from prm_jax.runtime.sharding import shardings

Params = dict[str, Any]

# Buffers that old versions of transformers saved; they follow from the config.
IGNORED = ('rotary_emb.inv_freq',)


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One parameter of ours and its place in their files.

  Attributes:
    ours: path in the parameter tree; under layers/ it has a leading axis L.
    theirs: name in the files, {} is the layer.
    axes: ours after L, in the letters of `models`.
    their_axes: theirs; letters that are written together are one axis there.
    when: the switch of TransformerConfig that brings it in, '' is always.
  """

  ours: str
  theirs: str
  axes: str
  their_axes: str
  when: str = ''

  @property
  def stacked(self) -> bool:
    return self.ours.startswith('layers/')


def _of_layer(
  ours: str, theirs: str, axes: str, their_axes: str, when: str = ''
) -> Tensor:
  names = f'layers/{ours}', f'model.layers.{{}}.{theirs}.weight'
  if ours.endswith('/bias'):
    names = names[0], names[1].replace('.weight', '.bias')
  return Tensor(*names, axes, their_axes, when)


TENSORS = (
  Tensor('embed_tokens', 'model.embed_tokens.weight', 'VD', 'V D'),
  Tensor('lm_head', 'lm_head.weight', 'VD', 'V D', 'untied'),
  Tensor('norm/scale', 'model.norm.weight', 'D', 'D'),
  _of_layer('input_layernorm/scale', 'input_layernorm', 'D', 'D'),
  _of_layer(
    'post_attention_layernorm/scale', 'post_attention_layernorm', 'D', 'D'
  ),
  _of_layer('self_attn/q_proj/kernel', 'self_attn.q_proj', 'DNH', 'NH D'),
  _of_layer('self_attn/k_proj/kernel', 'self_attn.k_proj', 'DKH', 'KH D'),
  _of_layer('self_attn/v_proj/kernel', 'self_attn.v_proj', 'DKH', 'KH D'),
  _of_layer('self_attn/o_proj/kernel', 'self_attn.o_proj', 'NHD', 'D NH'),
  _of_layer('self_attn/q_proj/bias', 'self_attn.q_proj', 'NH', 'NH', 'bias'),
  _of_layer('self_attn/k_proj/bias', 'self_attn.k_proj', 'KH', 'KH', 'bias'),
  _of_layer('self_attn/v_proj/bias', 'self_attn.v_proj', 'KH', 'KH', 'bias'),
  _of_layer('self_attn/q_norm/scale', 'self_attn.q_norm', 'H', 'H', 'qk_norm'),
  _of_layer('self_attn/k_norm/scale', 'self_attn.k_norm', 'H', 'H', 'qk_norm'),
  _of_layer('mlp/gate_proj/kernel', 'mlp.gate_proj', 'DF', 'F D'),
  _of_layer('mlp/up_proj/kernel', 'mlp.up_proj', 'DF', 'F D'),
  _of_layer('mlp/down_proj/kernel', 'mlp.down_proj', 'FD', 'D F'),
)


# Heads by layout; all that have two axes are transposed. See `publish`.
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


def tensors_of(config: TransformerConfig) -> list[Tensor]:
  """The rows of the table that a model has."""
  has = {
    '': True,
    'untied': not config.tie_embeddings,
    'bias': config.qkv_bias,
    'qk_norm': config.qk_norm,
  }
  return [tensor for tensor in TENSORS if has[tensor.when]]


def sizes_of(config: TransformerConfig) -> dict[str, int]:
  """How long the axis of every letter of the table is."""
  return {
    'V': config.vocab_size,
    'D': config.d_model,
    'F': config.d_ff,
    'N': config.n_heads,
    'K': config.n_kv_heads,
    'H': config.head_dim,
  }


def names_of(tensor: Tensor, config: TransformerConfig) -> list[str]:
  """Their names of one parameter, layer by layer."""
  if not tensor.stacked:
    return [tensor.theirs]
  return [tensor.theirs.format(i) for i in range(config.n_layers)]


def expected_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
  """Their shapes by their names, for all of a backbone."""
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
  """The backbone's tree of shapes."""
  sizes = sizes_of(config)
  return _nest(
    {
      tensor.ours: jax.ShapeDtypeStruct(
        (config.n_layers,) * tensor.stacked
        + tuple(sizes[letter] for letter in tensor.axes),
        dtype,
      )
      for tensor in tensors_of(config)
    }
  )


def check_backbone(
  files: TensorFiles, config: TransformerConfig, also: tuple[str, ...] = ()
) -> None:
  """Raises UserError unless the files hold the model, and `also`, no more."""
  tied = ('lm_head.weight',) if config.tie_embeddings else ()
  files.check(
    expected_shapes(config) | dict.fromkeys(also), ignored=IGNORED + tied
  )


def load_backbone(
  files: TensorFiles,
  config: TransformerConfig,
  mesh: Mesh,
  dtype: str = 'float32',
  also: tuple[str, ...] = (),
) -> Params:
  """The parameters of `models.forward`, each device's part read on its own.

  Args:
    files: of a model that `config` describes; checked before anything is read.
    mesh: where they go, by the rules of `sharding`.
    dtype: of the parameters, 'float32' or 'bfloat16'.
    also: names of other tensors that the files may and must have, for the
      caller to `files.read`.

  Returns:
    The tree of `init_params`. `lm_head` is there only where embeddings are not
    tied; where they are, one in the files is not read.

  Raises:
    UserError: a tensor is missing, of another shape, or nobody's, or has
      values that are not finite.
  """
  if dtype not in DTYPES:
    raise UserError(f'dtype {dtype!r}: expected one of {", ".join(DTYPES)}')
  if config.n_layers > len(files.shapes):  # before a name is made for each
    raise UserError(
      f'{files.directory}: {len(files.shapes)} tensors are too few for the '
      f'num_hidden_layers={config.n_layers} of config.json; the two are of '
      'different models'
    )
  check_backbone(files, config, also)
  abstract = abstract_params(config, dtype)
  shapes, places = flatten(abstract), flatten(shardings(abstract, mesh))
  loaded, tensors = {}, {each.ours: each for each in tensors_of(config)}
  heartbeat = Heartbeat(f'loading {files.directory}, tensors', len(tensors))
  for number, tensor in enumerate(tensors.values()):
    shape = shapes[tensor.ours].shape
    turn = functools.partial(heartbeat.at, number)
    read = _reader(files, tensor, config, shape, dtype, turn)
    loaded[tensor.ours] = jax.make_array_from_callback(
      shape, places[tensor.ours], read
    )
  params = _nest(loaded)
  if bad := first_not_finite(params):
    path, layer = bad
    raise files.not_finite(names_of(tensors[path], config)[layer])
  return params


def _reader(
  files: TensorFiles,
  tensor: Tensor,
  config: TransformerConfig,
  shape: tuple[int, ...],
  dtype: str,
  turn: Callable[[], None],
) -> Callable[[tuple[slice, ...]], np.ndarray]:
  """A function from an index into our parameter to its values in the files.

  Args:
    turn: called before every tensor that is read.
  """
  names, sizes = names_of(tensor, config), sizes_of(config)
  seen = {}  # replicas ask for the same part

  def read(index: tuple[slice, ...]) -> np.ndarray:
    bounds = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
    if bounds not in seen:
      out = _empty(tuple(end - start for start, end in bounds), dtype)
      layers = range(*bounds[0]) if tensor.stacked else (None,)
      inner = dict(zip(tensor.axes, bounds[tensor.stacked :], strict=True))
      for i, layer in enumerate(layers):
        turn()
        name = names[layer or 0]
        part = out[i] if tensor.stacked else out
        part[...] = _read_ours(files, name, tensor, inner, sizes)
      seen[bounds] = out
    return seen[bounds]

  return read


def _read_ours(
  files: TensorFiles,
  name: str,
  tensor: Tensor,
  bounds: dict[str, tuple[int, int]],
  sizes: dict[str, int],
) -> np.ndarray:
  """A part of one of their tensors, its axes as ours.

  Args:
    bounds: start and end along each of our axes.
  """
  where = []
  lengths = []
  for axis in tensor.their_axes.split():
    # A fused axis is cut by its first letter; rows of the others go whole.
    inner = math.prod(sizes[letter] for letter in axis[1:])
    start, end = bounds[axis[0]]
    where.append(slice(start * inner, end * inner))
    lengths += [end - start, *(sizes[letter] for letter in axis[1:])]
  letters = tensor.their_axes.replace(' ', '')
  part = files.read_slice(name, tuple(where)).reshape(lengths)
  return part.transpose([letters.index(letter) for letter in tensor.axes])


def _empty(shape: tuple[int, ...], dtype: str) -> np.ndarray:
  """Memory that JAX takes over as it is on a CPU: aligned to 64 bytes."""
  kind = jax.numpy.dtype(dtype)
  size = math.prod(shape) * kind.itemsize
  raw = np.empty(size + 64, np.uint8)
  start = -raw.ctypes.data % 64
  return raw[start : start + size].view(kind).reshape(shape)


def flatten(tree: Params, prefix: str = '') -> dict[str, Any]:
  """A nested dict as one whose keys are the paths, 'a/b/c'."""
  flat = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      flat |= flatten(value, f'{prefix}{name}/')
    else:
      flat[prefix + name] = value
  return flat


def _nest(flat: dict[str, Any]) -> Params:
  tree: Params = {}
  for path, value in flat.items():
    *folders, name = path.split('/')
    node = tree
    for folder in folders:
      node = node.setdefault(folder, {})
    node[name] = value
  return tree
