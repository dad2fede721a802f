"""TrainState: all that a train step changes, and how it comes to be.

Also which parts of the parameters are trained: all of them, or, with LoRA,
adapters and head over a backbone that stays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from prm_jax.models import (
  HeadConfig,
  LoraConfig,
  TransformerConfig,
  init_head,
  init_lora,
  init_params,
)
from prm_jax.sharding import shardings

NO_LORA = LoraConfig()


class TrainState(NamedTuple):
  """All that a step changes."""

  step: jax.Array  # [] int32, updates tried so far
  params: Any  # {'backbone': ..., 'head': ...}, with LoRA {'lora': ...} too
  opt_state: Any  # of the trained parts only
  key: jax.Array  # never changes; a step folds its number into it
  skipped: jax.Array  # [] int32, steps whose loss or gradient was not finite
  skipped_in_a_row: jax.Array  # [] int32


def trained_parts(lora: LoraConfig) -> tuple[str, ...]:
  """Names of the parameters that the optimizer moves."""
  return ('head', 'lora') if lora.rank else ('backbone', 'head')


def make_params(
  key: jax.Array,
  model: TransformerConfig,
  head: HeadConfig,
  lora: LoraConfig = NO_LORA,
  backbone: Any = None,
) -> Any:
  """First parameters; the backbone is random unless one is given."""
  backbone_key, head_key, lora_key = jax.random.split(key, 3)
  if backbone is None:
    backbone = init_params(backbone_key, model)
  params = {
    'backbone': backbone,
    'head': init_head(head_key, model.d_model, head),
  }
  if lora.rank:
    params['lora'] = init_lora(lora_key, backbone, lora)
  return params


def make_init(
  model: TransformerConfig,
  head: HeadConfig,
  optimizer: optax.GradientTransformation,
  lora: LoraConfig = NO_LORA,
) -> Callable[..., TrainState]:
  """A pure function from a key, and a backbone if there is one, to a state."""

  def init(key: jax.Array, backbone: Any = None) -> TrainState:
    params_key, loop_key = jax.random.split(key)
    params = make_params(params_key, model, head, lora, backbone)
    trained = {name: params[name] for name in trained_parts(lora)}
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
      zero, params, optimizer.init(trained), loop_key, zero, zero
    )

  return init


def init_state(
  init: Callable, mesh: Mesh, seed: int, backbone: Any = None
) -> TrainState:
  """Makes the first state in place: no device ever holds more than its part.

  Args:
    backbone: pretrained parameters on the mesh, given away; None: random.
  """
  key = jax.random.key(seed)
  placed = shardings(jax.eval_shape(init, key, backbone), mesh)
  with jax.set_mesh(mesh):
    make = jax.jit(init, out_shardings=placed, donate_argnums=1)
    return make(key, backbone)


def abstract_state(init: Callable, mesh: Mesh) -> TrainState:
  """Shapes, types and shardings of a state, without its values."""
  return placed_shapes(jax.eval_shape(init, jax.random.key(0)), mesh)


def placed_shapes(shapes: Any, mesh: Mesh) -> Any:
  """ShapeDtypeStructs with the shardings of the rules."""
  return jax.tree.map(
    lambda leaf, placed: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=placed
    ),
    shapes,
    shardings(shapes, mesh),
  )
