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
from prm_jax.runtime.sharding import shardings

NO_LORA = LoraConfig()


class TrainState(NamedTuple):
  """All that a step changes."""

  step: jax.Array  # [] int32, updates tried so far
  params: Any  # {'backbone'}, 'head' of a reward model, 'lora' of adapters
  opt_state: Any  # of the trained parts only; WithMaster where there is one
  key: jax.Array  # never changes; a step folds its number into it
  skipped: jax.Array  # [] int32, steps whose loss or gradient was not finite
  skipped_in_a_row: jax.Array  # [] int32


class WithMaster(NamedTuple):
  """The optimizer's state of a backbone that is kept in bfloat16.

  Updates add up in the master, of which the parameters are the rounded copy:
  most are smaller than half of a bfloat16's last bit (1/256 of its value) and
  would be lost one by one (Micikevicius et al., 2018, section 3.1).
  """

  backbone: Any  # the master, float32
  optimizer: Any


def split_params(
  params: Any, head: HeadConfig | None, lora: LoraConfig, lm_loss: bool
) -> tuple[Any, Any]:
  """The parameters that the optimizer moves, and those that stay.

  A policy has no head. With adapters the backbone stays. So does an output
  embedding that neither the language-model loss nor the head reads: without a
  gradient it would have moments, and decay.
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
  """First parameters, float32; the backbone is random unless one is given.

  Args:
    head: None for a policy, which has none.
  """
  backbone_key, head_key, lora_key = jax.random.split(key, 3)
  if backbone is None:
    backbone = init_params(backbone_key, model)
  params = {'backbone': backbone}
  if head is not None:
    params['head'] = init_head(head_key, model.d_model, head)
  if lora.rank:
    params['lora'] = init_lora(lora_key, backbone, lora)
  return params


def stored(params: Any, model: TransformerConfig) -> Any:
  """Parameters in what they are kept in: see `param_dtype`."""
  if 'backbone' not in params:
    return params
  dtype = model.param_dtype
  rounded = jax.tree.map(lambda x: x.astype(dtype), params['backbone'])
  return params | {'backbone': rounded}


def split_master(
  trained: Any, opt_state: Any, model: TransformerConfig
) -> tuple[Any, Any]:
  """Trained parameters in float32 -> as they are kept, and what keeps them.

  Args:
    opt_state: the optimizer's own.
  """
  if model.param_dtype == 'float32' or 'backbone' not in trained:
    return trained, opt_state
  return stored(trained, model), WithMaster(trained['backbone'], opt_state)


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
  """A pure function from a key, and a backbone if there is one, to a state.

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
      zero, stored(params, model), opt_state, loop_key, zero, zero
    )

  return init


def init_state(
  init: Callable, mesh: Mesh, seed: int, backbone: Any = None
) -> TrainState:
  """Makes the first state in place: no device ever holds more than its part.

  Args:
    backbone: pretrained parameters on the mesh, given away; None: random. A
      master is what is given, so that nothing is rounded on the way to it.
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
