"""Trains low-rank adapters beside a frozen backbone.

W' = W + (alpha / rank) A B for chosen projections (LoRA; Hu et al., 2021). The
adapters are a parameter tree beside the backbone's. Training puts them beside
the kernels (`attach`), which then need no gradient; what only reads the model
adds them to the kernels once (`merge`). Every other function works on the
backbone that results.
"""

import dataclasses
import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp

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
  """

  rank: Annotated[int, at_least(0)] = 0
  alpha: Annotated[float, above(0)] = 16.0
  targets: Annotated[tuple[str, ...], each(one_of(*TARGETS))] = tuple(TARGETS)

  def __post_init__(self) -> None:
    checks.check(self)
    if not self.targets:
      checks.fail('targets', self.targets, 'name a projection, or all')


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
