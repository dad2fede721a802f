"""Low-rank adapters: a trained backbone is kept, small products are learnt.

W' = W + (alpha / rank) A B for chosen projections (LoRA; Hu et al., 2021). The
adapters are a tree of their own beside the backbone's, and `merge` makes an
ordinary backbone of both, so that nothing else has to know of them.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from prm_jax.runtime.errors import UserError

Params = dict[str, Any]

# Where the projections live, and how many axes each of them contracts.
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
  """Adapters of rank `rank`; 0 trains the backbone itself."""

  rank: int = 0
  alpha: float = 16.0
  targets: tuple[str, ...] = tuple(TARGETS)

  def __post_init__(self) -> None:
    if self.rank < 0:
      raise UserError(f'lora.rank={self.rank}: expected >= 0 (0: no adapters)')
    object.__setattr__(self, 'targets', tuple(self.targets))
    for name in self.targets:
      if name not in TARGETS:
        raise UserError(
          f'lora.targets: unknown {name!r}, expected some of '
          f'{", ".join(TARGETS)}'
        )
    if not self.targets:
      raise UserError('lora.targets is empty: name a projection, or all')


def init_lora(key: jax.Array, backbone: Params, config: LoraConfig) -> Params:
  """Adapters that change nothing yet: A is random, B is 0.

  Args:
    backbone: parameters, or their shapes.

  Returns:
    {'layers': {room: {target: {'a': [L, *inputs, r], 'b': [L, r, *outputs]}}}}
  """
  layers: Params = {}
  for name, target_key in zip(
    config.targets, jax.random.split(key, len(config.targets)), strict=True
  ):
    room, inputs = TARGETS[name]
    shape = backbone['layers'][room][name]['kernel'].shape
    fan_in, fan_out = shape[1 : 1 + inputs], shape[1 + inputs :]
    scale = math.prod(fan_in) ** -0.5
    down = jax.random.normal(target_key, (shape[0], *fan_in, config.rank))
    layers.setdefault(room, {})[name] = {
      'a': scale * down,
      'b': jnp.zeros((shape[0], config.rank, *fan_out)),
    }
  return {'layers': layers}


def merge(backbone: Params, lora: Params, config: LoraConfig) -> Params:
  """The backbone with its adapters added to its kernels."""
  layers = dict(backbone['layers'])
  for room, adapters in lora['layers'].items():
    layers[room] = dict(layers[room])
    for name, adapter in adapters.items():
      projection = layers[room][name]
      product = jax.vmap(lambda a, b: jnp.tensordot(a, b, 1))(
        adapter['a'], adapter['b']
      )
      kernel = projection['kernel']
      # Added before it is rounded: most of a change is below bfloat16's steps.
      merged = kernel + config.alpha / config.rank * product
      layers[room][name] = projection | {'kernel': merged.astype(kernel.dtype)}
  return backbone | {'layers': layers}
