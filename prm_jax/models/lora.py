"""Trains low-rank adapters beside a frozen backbone.

W' = W + (alpha / rank) A B for chosen projections (LoRA; Hu et al., 2021). The
adapters are a parameter tree beside the backbone's. Training puts them beside
the kernels (`attach`), which then need no gradient; what only reads the model
adds them to the kernels once (`merge`). Every other function works on the
backbone that results. As nothing changes the kernels, training may store them
in fewer bits (QLoRA; Dettmers et al., 2023).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from prm_jax.models.quantized import FORMS, dequantize, quantize
from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, at_least, each, one_of

Params = dict[str, Any]

# The parent of each projection in the parameter tree, and how many axes it
# contracts.
TARGETS = {
  'q_proj': ('self_attn', 1),
  'k_proj': ('self_attn', 1),
  'v_proj': ('self_attn', 1),
  'o_proj': ('self_attn', 2),
  'gate_proj': ('mlp', 1),
  'up_proj': ('mlp', 1),
  'down_proj': ('mlp', 1),
}


@dataclasses.dataclass(frozen=True)
class LoraConfig:
  """Says which projections get adapters.

  Attributes:
    rank: inner size of an adapter; 0 trains the backbone itself.
    alpha: adapters are multiplied by alpha / rank.
    targets: some of TARGETS.
    quantized: how the kernels of all projections are stored, which adapters
      leave as they are: '' as the backbone's other parameters, or one of
      `quantized.FORMS`.
  """

  rank: Annotated[int, at_least(0)] = 0
  alpha: Annotated[float, above(0)] = 16.0
  targets: Annotated[tuple[str, ...], each(one_of(*TARGETS))] = tuple(TARGETS)
  quantized: Annotated[str, one_of('', *FORMS)] = ''

  def __post_init__(self) -> None:
    checks.check(self)
    if not self.targets:
      checks.fail('targets', self.targets, 'name a projection, or all')
    if self.quantized and not self.rank:
      checks.fail(
        'quantized',
        self.quantized,
        "kernels that are trained cannot be stored so; set rank, or ''",
      )


def init_lora(key: jax.Array, backbone: Params, config: LoraConfig) -> Params:
  """Makes adapters that do not change the model yet: A is random, B is 0.

  Args:
    backbone: parameters, or their shapes.

  Returns:
    {'layers': {parent: {target: {'a': [L, *inputs, r],
                                  'b': [L, r, *outputs]}}}}
  """
  layers: Params = {}
  for name, target_key in zip(
    config.targets, jax.random.split(key, len(config.targets)), strict=True
  ):
    parent, inputs = TARGETS[name]
    shape = backbone['layers'][parent][name]['kernel'].shape
    fan_in, fan_out = shape[1 : 1 + inputs], shape[1 + inputs :]
    scale = math.prod(fan_in) ** -0.5
    down = jax.random.normal(target_key, (shape[0], *fan_in, config.rank))
    layers.setdefault(parent, {})[name] = {
      'a': scale * down,
      'b': jnp.zeros((shape[0], config.rank, *fan_out)),
    }
  return {'layers': layers}


def quantize_backbone(backbone: Params, form: str) -> Params:
  """Returns the backbone with the kernels of all projections quantized."""

  def store(projection: Params, inputs: int) -> Params:
    rest = dict(projection)
    return rest | quantize(rest.pop('kernel'), inputs, form)  # axis 0 is L

  return _map_projections(backbone, store)


def _dequantize_backbone(backbone: Params) -> Params:
  """Undoes `quantize_backbone`, but for what was lost."""

  def restore(projection: Params, inputs: int) -> Params:
    if 'kernel' in projection:
      return projection
    rest = dict(projection)
    codes, scales = rest.pop('codes'), rest.pop('scales')
    return rest | {'kernel': dequantize(codes, scales, inputs)}

  return _map_projections(backbone, restore)


def _map_projections(
  backbone: Params, change: Callable[[Params, int], Params]
) -> Params:
  layers = dict(backbone['layers'])
  for name, (parent, inputs) in TARGETS.items():
    changed = change(layers[parent][name], inputs)
    layers[parent] = layers[parent] | {name: changed}
  return backbone | {'layers': layers}


def attach(backbone: Params, lora: Params, config: LoraConfig) -> Params:
  """Returns the backbone with the adapters beside its kernels.

  A projection x W becomes x W + (x A) B, so the gradient of the adapters needs
  no gradient of W, and no copy of it.
  """
  scale = config.alpha / config.rank
  layers = dict(backbone['layers'])
  for parent, adapters in lora['layers'].items():
    beside = {
      name: layers[parent][name]
      | {'lora_a': each['a'], 'lora_b': scale * each['b']}
      for name, each in adapters.items()
    }
    layers[parent] = layers[parent] | beside
  return backbone | {'layers': layers}


def merge(backbone: Params, lora: Params, config: LoraConfig) -> Params:
  """Returns an ordinary backbone, with the adapters added to its kernels."""
  backbone = _dequantize_backbone(backbone)
  layers = dict(backbone['layers'])
  for parent, adapters in lora['layers'].items():
    layers[parent] = dict(layers[parent])
    for name, adapter in adapters.items():
      projection = layers[parent][name]
      product = jax.vmap(lambda a, b: jnp.tensordot(a, b, 1))(
        adapter['a'], adapter['b']
      )
      kernel = projection['kernel']
      # Added before rounding, because most changes are below bfloat16's steps.
      merged = kernel + config.alpha / config.rank * product
      merged = merged.astype(kernel.dtype)
      layers[parent][name] = projection | {'kernel': merged}
  return backbone | {'layers': layers}
