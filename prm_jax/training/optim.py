"""The optimizer: AdamW or Adafactor, a schedule, clipping and a decay mask.

Gradients of the trained parameters and these parameters in float32 come from
the train step; updates go back to it. How much memory each choice keeps is in
OptimConfig.
"""

import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import path_name

OPTIMIZERS = ('adamw', 'adafactor')
MOMENTS = ('float32', 'bfloat16')
SCHEDULES = ('constant', 'linear', 'cosine')
# Weight decay pulls on matrices, not on norms and biases.
DECAYED = re.compile(r'(kernel|embed_tokens|lm_head|/a|/b)$')


@dataclasses.dataclass(frozen=True)
class OptimConfig:
  """What turns gradients into updates.

  Bytes that a trained parameter keeps from step to step, its own included;
  a gradient comes on top while a step runs:

    model.param_dtype   adamw   adamw, moments=bfloat16   adafactor
    float32              12              10                  4 and a little
    bfloat16             14              12                  6 and a little

  Attributes:
    name: 'adamw' (Loshchilov and Hutter, 2019), or 'adafactor' (Shazeer and
      Stern, 2018), which keeps row and column means of a matrix's squared
      gradients instead of two moments of each of its elements.
    lr: peak learning rate, reached after `warmup` steps. With both it is how
      far a typical element moves in a step; Adafactor's own schedule and its
      steps relative to a parameter's size are not used.
    schedule: what follows: 'constant', or 'linear' / 'cosine' to 0.
    b1, b2: of adamw only.
    weight_decay: times the learning rate, of matrices only.
    clip: largest global gradient norm.
    moments: what adamw keeps its first moment in; the second, whose changes
      are too small for bfloat16, stays in float32.
  """

  name: str = 'adamw'
  lr: float = 1e-3
  warmup: int = 100
  schedule: str = 'cosine'
  b1: float = 0.9
  b2: float = 0.95
  weight_decay: float = 0.01
  clip: float = 1.0
  moments: str = 'float32'

  def __post_init__(self) -> None:
    if self.name not in OPTIMIZERS:
      raise UserError(
        f'optim.name={self.name!r}: expected one of {", ".join(OPTIMIZERS)}'
      )
    if self.moments not in MOMENTS:
      raise UserError(
        f'optim.moments={self.moments!r}: expected one of {", ".join(MOMENTS)}'
      )
    if self.name == 'adafactor' and self.moments != 'float32':
      raise UserError(
        f'optim.moments={self.moments!r} is for optim.name=adamw; adafactor '
        'keeps no moment of that size: leave it at float32'
      )
    if self.schedule not in SCHEDULES:
      raise UserError(
        f'optim.schedule={self.schedule!r}: expected one of '
        f'{", ".join(SCHEDULES)}'
      )


def make_schedule(config: OptimConfig, steps: int) -> optax.Schedule:
  """Learning rate by step, 0 to `steps`."""
  warmup = min(config.warmup, steps)
  rest = max(steps - warmup, 1)
  after = {
    'constant': optax.constant_schedule(config.lr),
    'linear': optax.linear_schedule(config.lr, 0.0, rest),
    'cosine': optax.cosine_decay_schedule(config.lr, rest),
  }[config.schedule]
  if not warmup:
    return after
  rise = optax.linear_schedule(config.lr / warmup, config.lr, warmup)
  return optax.join_schedules([rise, after], [warmup])


def decay_mask(params: Any) -> Any:
  """True where weight decay applies."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: bool(DECAYED.search(path_name(path))), params
  )


def matrices(tree: Any) -> Any:
  """Attention's arrays with heads and head size as the one axis they are.

  [L, D, N, H] -> [L, D, N * H], and o_proj's [L, N, H, D] -> [L, N * H, D].
  """

  def reshape(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
    if x.ndim < 4:
      return x
    at = 1 if '/o_proj/' in path_name(path) else 2
    return x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])

  return jax.tree_util.tree_map_with_path(reshape, tree)


def scale_by_factored_rms() -> optax.GradientTransformation:
  """optax's, over matrices whose both sides have 128 elements at least.

  Without `matrices` it would average over one head's 64 elements, or over no
  side of a small model's projections.
  """
  inner = optax.scale_by_factored_rms()

  def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
    updates, state = inner.update(matrices(grads), state, matrices(params))
    return jax.tree.map(lambda x, g: x.reshape(g.shape), updates, grads), state

  return optax.GradientTransformation(lambda p: inner.init(matrices(p)), update)


def clip_by_layer_rms(threshold: float) -> optax.GradientTransformation:
  """Adafactor's update clipping, layer by layer of stacked parameters.

  u / max(1, RMS(u) / threshold); `optax.clip_by_block_rms` would take the mean
  over all layers.
  """

  def clip(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
    axes = range('layers/' in path_name(path), update.ndim)
    square = jnp.mean(update**2, tuple(axes), keepdims=True)
    return update / jnp.maximum(1.0, jnp.sqrt(square) / threshold)

  return optax.stateless(
    lambda updates, _: jax.tree_util.tree_map_with_path(clip, updates)
  )


class HeadFirstState(NamedTuple):
  """What `head_first` keeps."""

  count: jax.Array  # [] int32, updates made so far
  head: Any
  rest: Any  # as it was initialised until the rest begins to move


def head_first(
  head: optax.GradientTransformation,
  rest: optax.GradientTransformation,
  head_only_steps: int,
) -> optax.GradientTransformation:
  """Trains the head alone for so many updates, then all.

  Until then nothing happens to the rest: it has no updates, and its moments and
  its count, which warmup and Adam's bias correction go by, begin after it.
  """

  def split(params: Any) -> tuple[Any, Any]:
    others = {name: part for name, part in params.items() if name != 'head'}
    return {'head': params['head']}, others

  def init(params: Any) -> HeadFirstState:
    first, others = split(params)
    return HeadFirstState(
      jnp.zeros((), jnp.int32), head.init(first), rest.init(others)
    )

  def update(
    grads: Any, state: HeadFirstState, params: Any
  ) -> tuple[Any, HeadFirstState]:
    (first, others), (own, theirs) = split(grads), split(params)
    moved, head_state = head.update(first, state.head, own)
    moved_others, rest_state = jax.lax.cond(
      state.count < head_only_steps,
      lambda: (jax.tree.map(jnp.zeros_like, theirs), state.rest),
      lambda: rest.update(others, state.rest, theirs),
    )
    kept = HeadFirstState(state.count + 1, head_state, rest_state)
    return moved | moved_others, kept

  return optax.GradientTransformation(init, update)


def make_optimizer(
  config: OptimConfig, steps: int, head_only_steps: int = 0
) -> optax.GradientTransformation:
  """The optimizer of trained parameters, which it is given in float32.

  Args:
    head_only_steps: see `train.LoopConfig`. The head's schedule is that of
      `steps`; the others' begins when they do, and has the steps that are left.
  """
  clip = optax.clip_by_global_norm(config.clip)
  moving = _unclipped(config, make_schedule(config, steps))
  if not head_only_steps:
    return optax.chain(clip, *moving)
  left = make_schedule(config, steps - head_only_steps)
  later = optax.chain(*_unclipped(config, left))
  return optax.chain(
    clip, head_first(optax.chain(*moving), later, head_only_steps)
  )


def _unclipped(
  config: OptimConfig, schedule: optax.Schedule
) -> tuple[optax.GradientTransformation, ...]:
  if config.name == 'adafactor':
    # The order of optax.adafactor, but decay is scaled by the learning rate.
    return (
      scale_by_factored_rms(),
      clip_by_layer_rms(1.0),
      optax.add_decayed_weights(config.weight_decay, decay_mask),
      optax.scale_by_learning_rate(schedule),
    )
  return (
    optax.adamw(
      schedule,
      b1=config.b1,
      b2=config.b2,
      weight_decay=config.weight_decay,
      mask=decay_mask,
      mu_dtype=config.moments,
    ),
  )
