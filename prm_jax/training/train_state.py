"""Makes TrainState, everything that a train step changes.

This module also says which parameters are trained: all of them, or, with LoRA,
adapters and head over a frozen backbone.
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
  quantize_backbone,
)
from prm_jax.runtime.sharding import shardings

NO_LORA = LoraConfig()


class TrainState(NamedTuple):
  """Holds everything that a train step changes."""

  step: jax.Array  # [] int32, number of steps so far, skipped ones included
  params: Any  # {'backbone'}, with 'head' in reward models, 'lora' if adapted
  opt_state: Any  # for trained parameters only; WithMaster if bfloat16
  key: jax.Array  # no step reads it; checkpoints have it
  skipped: jax.Array  # [] int32, steps whose loss or gradient was not finite
  skipped_in_a_row: jax.Array  # [] int32


class WithMaster(NamedTuple):
  """Holds the optimizer state for a backbone stored in bfloat16.

  Updates are added to the float32 master, and the parameters are its rounded
  copy. Most updates are smaller than half of a bfloat16's last bit (1/256 of
  its value) and would otherwise be lost (Micikevicius et al., 2018, section
  3.1).
  """

  backbone: Any  # the master, float32
  optimizer: Any  # the optimizer's own state


def split_params(
  params: Any, head: HeadConfig | None, lora: LoraConfig, lm_loss: bool
) -> tuple[Any, Any]:
  """Splits parameters into those that the optimizer updates, and the rest.

  A policy has no head. With adapters the backbone is frozen. So is an output
  embedding that neither the LM loss nor the head reads: it has no gradient, but
  the optimizer would keep moments for it and decay it.

  Args:
    lm_loss: whether the loss has a language-model part.
  """
  names = ('head', 'lora') if lora.rank else ('backbone', 'head')
  trained = {name: params[name] for name in names if name in params}
  frozen = {k: v for k, v in params.items() if k not in names}
  unread = not lm_loss and not (head and head.likelihood)
  if unread and 'lm_head' in trained.get('backbone', {}):
    backbone = dict(trained['backbone'])
    frozen['backbone'] = {'lm_head': backbone.pop('lm_head')}
    trained['backbone'] = backbone
  return trained, frozen


def join_params(trained: Any, frozen: Any) -> Any:
  """Undoes `split_params`."""
  return {
    name: frozen.get(name, {}) | trained.get(name, {})
    for name in trained | frozen
  }


def make_params(
  key: jax.Array,
  model: TransformerConfig,
  head: HeadConfig | None,
  lora: LoraConfig = NO_LORA,
  backbone: Any = None,
) -> Any:
  """Makes the first parameters, float32; the backbone is random if not given.

  Args:
    head: None for a policy.
  """
  backbone_key, head_key, lora_key = jax.random.split(key, 3)
  if backbone is None:
    backbone = init_params(backbone_key, model)
  params = {'backbone': backbone}
  if head is not None:
    params['head'] = init_head(head_key, model.d_model, head)
  if lora.rank:
    params['lora'] = init_lora(lora_key, backbone, lora)
  if lora.quantized:
    params['backbone'] = quantize_backbone(backbone, lora.quantized)
  return params


def to_param_dtype(params: Any, model: TransformerConfig) -> Any:
  """Casts the backbone to the type in which it is stored, `param_dtype`."""
  if 'backbone' not in params:
    return params

  def cast(x: jax.Array) -> jax.Array:  # codes of quantized kernels stay
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(model.param_dtype) if is_float else x

  return params | {'backbone': jax.tree.map(cast, params['backbone'])}


def split_master(
  trained: Any, opt_state: Any, model: TransformerConfig
) -> tuple[Any, Any]:
  """Rounds float32 parameters for storage, and adds a master if they need one.

  Returns:
    The stored parameters, and the optimizer state with the master.
  """
  if model.param_dtype == 'float32' or 'backbone' not in trained:
    return trained, opt_state
  return to_param_dtype(trained, model), WithMaster(
    trained['backbone'], opt_state
  )


def join_master(trained: Any, opt_state: Any) -> tuple[Any, Any]:
  """Undoes `split_master`."""
  if not isinstance(opt_state, WithMaster):
    return trained, opt_state
  return trained | {'backbone': opt_state.backbone}, opt_state.optimizer


def make_init(
  model: TransformerConfig,
  head: HeadConfig | None,
  optimizer: optax.GradientTransformation,
  lora: LoraConfig = NO_LORA,
  lm_loss: bool = True,
) -> Callable[..., TrainState]:
  """Makes a pure function: key, and a backbone if given, -> first state.

  Args:
    lm_loss: whether the loss has a language-model part; see `split_params`.
  """

  def init(key: jax.Array, backbone: Any = None) -> TrainState:
    params_key, loop_key = jax.random.split(key)
    params = make_params(params_key, model, head, lora, backbone)
    trained, _ = split_params(params, head, lora, lm_loss)
    _, opt_state = split_master(trained, optimizer.init(trained), model)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
      zero, to_param_dtype(params, model), opt_state, loop_key, zero, zero
    )

  return init


def init_state(
  init: Callable, mesh: Mesh, seed: int, backbone: Any = None
) -> TrainState:
  """Makes the first state on the mesh; each device only holds its own part.

  Args:
    backbone: pretrained parameters on the mesh, which are donated; None makes
      random ones. A master takes their values unrounded.
  """
  key = jax.random.key(seed)
  placed = shardings(jax.eval_shape(init, key, backbone), mesh)
  with jax.set_mesh(mesh):
    make = jax.jit(init, out_shardings=placed, donate_argnums=1)
    return make(key, backbone)


def abstract_state(init: Callable, mesh: Mesh) -> TrainState:
  """Returns the shapes, types and shardings of a state, without values."""
  return placed_shapes(jax.eval_shape(init, jax.random.key(0)), mesh)


def placed_shapes(shapes: Any, mesh: Mesh) -> Any:
  """Adds the shardings of the rules to a tree of shapes."""
  return jax.tree.map(
    lambda leaf, placed: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=placed
    ),
    shapes,
    shardings(shapes, mesh),
  )
