"""Loads checkpoints of MaxText, a trainer of language models in JAX.

    FOLDER/items (Orbax), config.json, tokenizer.json -> parameters

MaxText has no file that describes a model, so `items` lies beside the files of
the same model at the Hugging Face Hub. Its layers may be stacked (scanned), on
their second axis, or lie in trees of their own. Their kernels have our axes.
For Llama, query kernels are divided by sqrt(H) and, with the rotary frequencies
of Llama 3.1, rotary pairs are interleaved; ours are half-split.
"""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.models.config import TransformerConfig
from prm_jax.models.hub.safetensors_files import read_json
from prm_jax.models.hub.weights import abstract_params, sizes_of, tensors_of
from prm_jax.runtime.checkpoints import load_tree, read_shapes
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.finite import NOT_FINITE, first_not_finite
from prm_jax.runtime.metrics import Heartbeat
from prm_jax.runtime.sharding import spec_for

Shape = tuple[int, ...]
Params = dict[str, Any]
ITEMS = 'items'
FAMILIES = 'llama', 'qwen2', 'qwen3'
# Our paths without layers/ -> theirs below decoder/, or below params.
NAMES = {
  'embed_tokens': 'token_embedder/embedding',
  'lm_head': 'decoder/logits_dense/kernel',
  'norm/scale': 'decoder/decoder_norm/scale',
  'input_layernorm/scale': 'pre_self_attention_layer_norm/scale',
  'post_attention_layernorm/scale': 'post_self_attention_layer_norm/scale',
  'self_attn/q_proj/kernel': 'self_attention/query/kernel',
  'self_attn/k_proj/kernel': 'self_attention/key/kernel',
  'self_attn/v_proj/kernel': 'self_attention/value/kernel',
  'self_attn/o_proj/kernel': 'self_attention/out/kernel',
  'self_attn/q_proj/bias': 'self_attention/query/bias',
  'self_attn/k_proj/bias': 'self_attention/key/bias',
  'self_attn/v_proj/bias': 'self_attention/value/bias',
  'self_attn/q_norm/scale': 'self_attention/query_norm/scale',
  'self_attn/k_norm/scale': 'self_attention/key_norm/scale',
  'mlp/gate_proj/kernel': 'mlp/wi_0/kernel',
  'mlp/up_proj/kernel': 'mlp/wi_1/kernel',
  'mlp/down_proj/kernel': 'mlp/wo/kernel',
}
QUERY, KEY = 'layers/self_attn/q_proj/kernel', 'layers/self_attn/k_proj/kernel'


class MaxTextCheckpoint:
  """Describes a checkpoint whose weights are not read yet.

  Args:
    directory: folder with `items` and config.json.
    config: the model that config.json describes.

  Raises:
    UserError: there is no such checkpoint, or it is not of this model.
  """

  def __init__(
    self, directory: pathlib.Path, config: TransformerConfig
  ) -> None:
    self.directory, self.config = directory, config
    path = directory / 'config.json'
    family = read_json(path).get('model_type')
    if family not in FAMILIES:
      raise UserError(
        f'{path}: model_type={family!r}: of MaxText only checkpoints of '
        f'{", ".join(FAMILIES)} are read; export it to safetensors first'
      )
    self._is_llama = family == 'llama'
    self._shapes = read_shapes(directory, ITEMS)
    self._scanned = any(
      name.startswith('params/params/decoder/layers/') for name in self._shapes
    )
    self._check()

  def names(self, ours: str) -> list[str]:
    """Returns MaxText's paths of our parameter: one, or one per layer."""
    inner = ours.removeprefix('layers/')
    if inner == ours:
      return [f'params/params/{NAMES[ours]}']
    if self._scanned:
      return [f'params/params/decoder/layers/{NAMES[inner]}']
    parents = [f'layers_{i}' for i in range(self.config.n_layers)]
    return [f'params/params/decoder/{x}/{NAMES[inner]}' for x in parents]

  def _expected(self) -> dict[str, tuple[str, Shape]]:
    """Returns our path and their shape, by their paths."""
    sizes, found = sizes_of(self.config), {}
    for tensor in tensors_of(self.config):
      shape = tuple(sizes[letter] for letter in tensor.axes)
      if tensor.ours == 'lm_head':
        shape = shape[::-1]
      if tensor.stacked and self._scanned:
        shape = (shape[0], self.config.n_layers, *shape[1:])
      found |= {name: (tensor.ours, shape) for name in self.names(tensor.ours)}
    return found

  def _check(self) -> None:
    """Compares names and shapes with those of the model."""
    path, layers = self.directory / ITEMS, self.config.n_layers
    # Before making a name for each.
    if not self._scanned and layers > len(self._shapes):
      raise UserError(
        f'{path}: {len(self._shapes)} arrays are too few for the '
        f'num_hidden_layers={layers} of config.json; the two belong to '
        'different models'
      )
    expected = self._expected()
    held = {x for x in self._shapes if x.startswith('params/')}
    if missing := sorted(expected.keys() - held):
      raise UserError(
        f'{path} has no {missing[0]!r} (of {len(missing)} such), which is part '
        'of the model that config.json describes; the two belong to different '
        'models'
      )
    if extra := sorted(held - expected.keys()):
      raise UserError(
        f'{path}: {extra[0]!r} (of {len(extra)} such) belongs to no part of '
        'the model that config.json describes'
      )
    for name, (ours, shape) in expected.items():
      # Their vocabulary may be padded.
      rows = 1 if ours == 'lm_head' else 0
      given = list(self._shapes[name])
      if ours in ('lm_head', 'embed_tokens') and len(given) == 2:
        given[rows] = min(given[rows], shape[rows])
      if tuple(given) != shape:
        raise UserError(
          f'{path}: {name!r} has shape {list(self._shapes[name])}, but '
          f'config.json makes it {list(shape)}; the two belong to different '
          'models'
        )

  def load(self, mesh: Mesh, dtype: str = 'float32') -> Params:
    """Loads the parameters of `models.forward`, as `load_backbone` does.

    Raises:
      UserError: the checkpoint is damaged, or has values that are not finite.
    """
    abstract = abstract_params(self.config, dtype)
    tensors = tensors_of(self.config)
    heartbeat = Heartbeat(f'loading {self.directory}, arrays', len(tensors))
    loaded = {}
    # One at a time, as each takes twice its memory while its axes change.
    for number, tensor in enumerate(tensors):
      heartbeat.at(number)
      ours = tensor.ours
      shape = functools.reduce(
        lambda tree, key: tree[key], ours.split('/'), abstract
      ).shape
      spec = spec_for(ours, shape, mesh)
      convert = jax.jit(
        functools.partial(self._convert, ours),
        out_shardings=NamedSharding(mesh, spec),
      )
      theirs = self._load_parts(ours, spec, mesh, dtype)
      with jax.set_mesh(mesh):
        loaded[ours] = convert(theirs)
    params = unflatten_dict(loaded, sep='/')
    if bad := first_not_finite(params):
      path, layer = bad
      name = self.names(path)[0 if self._scanned else layer]
      raise UserError(
        f'{self.directory / ITEMS}: {name!r} {NOT_FINITE}use an earlier '
        'checkpoint'
      )
    return params

  def _load_parts(
    self, ours: str, spec: P, mesh: Mesh, dtype: str
  ) -> list[jax.Array]:
    """Reads the arrays of one parameter, split as ours is."""
    axes: list[Any] = [*spec]
    if ours == 'lm_head':
      axes.reverse()
    elif ours.startswith('layers/'):
      axes = axes[1:]
      if self._scanned:
        axes.insert(1, None)

    def shape_of(name: str) -> jax.ShapeDtypeStruct:
      shape = self._shapes[name]
      # A vocabulary that is padded may not divide as ours does.
      sizes = zip(axes, shape, strict=False)
      fits = [a if a and n % mesh.shape[a] == 0 else None for a, n in sizes]
      placed = NamedSharding(mesh, P(*fits))
      return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)

    names = self.names(ours)
    asked = unflatten_dict({x: shape_of(x) for x in names}, sep='/')
    found = flatten_dict(load_tree(self.directory, ITEMS, asked), sep='/')
    return [found[name] for name in names]

  def _convert(self, ours: str, parts: list[jax.Array]) -> jax.Array:
    """Gives their arrays of one parameter our form."""
    if not ours.startswith('layers/'):
      [x] = parts
      x = x.T if ours == 'lm_head' else x
      return x[: self.config.vocab_size] if ours != 'norm/scale' else x
    x = jnp.moveaxis(parts[0], 1, 0) if self._scanned else jnp.stack(parts)
    if self._is_llama and self.config.rope_scaling and ours in (QUERY, KEY):
      x = jnp.concatenate([x[..., ::2], x[..., 1::2]], -1)
    if self._is_llama and ours == QUERY:
      scale = self.config.head_dim**0.5
      x = (x.astype(jnp.float32) * scale).astype(x.dtype)
    return x
