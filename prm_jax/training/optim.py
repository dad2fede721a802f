"""Builds the optimizer: AdamW or Adafactor, schedule, clipping, decay mask.

The train step gives it gradients and parameters in float32 and gets updates
back. OptimConfig lists the memory that each choice takes.
"""

import dataclasses
import re
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from prm_jax.runtime import checks
from prm_jax.runtime.checks import above, at_least, from_to_below, one_of
from prm_jax.runtime.sharding import path_name

OPTIMIZERS = ('adamw', 'adafactor')
MOMENTS = ('float32', 'bfloat16')
SCHEDULES = ('constant', 'linear', 'cosine')
# Weight decay applies to matrices, not to norms and biases.
DECAYED = re.compile(r'(kernel|embed_tokens|lm_head|/a|/b)$')


@dataclasses.dataclass(frozen=True)
class OptimConfig:
  """Says how gradients become updates.

  Bytes that a trained parameter takes between steps, its own value included;
  while a step runs, a gradient is added:

    model.param_dtype   adamw   adamw, moments=bfloat16   adafactor
    float32              12              10                  4 and a little
    bfloat16             14              12                  6 and a little

  Attributes:
    name: 'adamw' (Loshchilov and Hutter, 2019), or 'adafactor' (Shazeer and
      Stern, 2018), which keeps row and column means of a matrix's squared
      gradients instead of two moments of each of its elements.
    lr: peak learning rate. With both optimizers it is how far a typical element
      moves in a step; Adafactor's own schedule and its steps relative to a
      parameter's size are not used.
    warmup: steps of linear warmup to the peak. A run of no more steps than
      these is all warmup, and no `schedule` follows.
    schedule: what follows: 'constant', or 'linear' or 'cosine' down to 0.
    b1, b2: decay rates of adamw's moments.
    weight_decay: decay of matrices per step, multiplied by the learning rate.
    clip: largest global gradient norm.
    moments: type of adamw's first moment; the second stays float32, because its
      changes are too small for bfloat16.
  """

  name: Annotated[str, one_of(*OPTIMIZERS)] = 'adamw'
  lr: Annotated[float, at_least(0)] = 1e-3
  warmup: Annotated[int, at_least(0)] = 100
  schedule: Annotated[str, one_of(*SCHEDULES)] = 'cosine'
  b1: Annotated[float, from_to_below(0, 1)] = 0.9
  b2: Annotated[float, from_to_below(0, 1)] = 0.95
  weight_decay: Annotated[float, at_least(0)] = 0.01
  clip: Annotated[float, above(0)] = 1.0
  moments: Annotated[str, one_of(*MOMENTS)] = 'float32'

  def __post_init__(self) -> None:
    checks.check(self)
    if self.name == 'adafactor' and self.moments != 'float32':
      checks.fail(
        'moments',
        self.moments,
        'is for name=adamw: adafactor keeps no moment of that size; leave it '
        'at float32',
      )


def make_schedule(config: OptimConfig, steps: int) -> optax.Schedule:
  """Makes the schedule: step, from 0 to `steps`, -> learning rate."""
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
  """Returns a tree that is True where weight decay applies."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: bool(DECAYED.search(path_name(path))), params
  )


def merge_heads(tree: Any) -> Any:
  """Merges heads and head size of attention's arrays into one axis.

  [L, D, N, H] -> [L, D, N * H], and o_proj's [L, N, H, D] -> [L, N * H, D].
  """

  def reshape(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
    if x.ndim < 4:
      return x
    at = 1 if '/o_proj/' in path_name(path) else 2
    return x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])

  return jax.tree_util.tree_map_with_path(reshape, tree)


def scale_by_factored_rms() -> optax.GradientTransformation:
  """Wraps optax's transformation so that it sees heads as one axis.

  optax factors the two largest axes if both have at least 128 elements. Without
  `merge_heads` it would average over the 64 elements of one head, or not factor
  a small model's projections at all.
  """
  inner = optax.scale_by_factored_rms()

  def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
    updates, state = inner.update(
      merge_heads(grads), state, merge_heads(params)
    )
    return jax.tree.map(lambda x, g: x.reshape(g.shape), updates, grads), state

  return optax.GradientTransformation(
    lambda p: inner.init(merge_heads(p)), update
  )


def clip_by_layer_rms(threshold: float) -> optax.GradientTransformation:
  """Clips updates as Adafactor does, each layer by itself.

  u / max(1, RMS(u) / threshold); `optax.clip_by_block_rms` would take the mean
  over all stacked layers.
  """

  def clip(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
    axes = range('layers/' in path_name(path), update.ndim)
    square = jnp.mean(update**2, tuple(axes), keepdims=True)
    return update / jnp.maximum(1.0, jnp.sqrt(square) / threshold)

  return optax.stateless(
    lambda updates, _: jax.tree_util.tree_map_with_path(clip, updates)
  )


class HeadFirstState(NamedTuple):
  """Holds the state of `head_first`."""

  count: jax.Array  # [] int32, number of updates so far
  head: Any
  rest: Any  # unchanged until the rest begins to learn


def head_first(
  head: optax.GradientTransformation,
  rest: optax.GradientTransformation,
  head_only_steps: int,
) -> optax.GradientTransformation:
  """Trains only the head for `head_only_steps` updates, then everything.

  Until then the rest has no updates and its optimizer state stays as it was
  initialised, so its warmup and Adam's bias correction begin after the wait.
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
    # Chosen number by number, as in `loop.make_step`: a `lax.cond` would copy
    # all parameters.
    waits = state.count < head_only_steps
    moved_others, rest_state = jax.tree.map(
      lambda new, old: jnp.where(waits, old, new),
      rest.update(others, state.rest, theirs),
      (jax.tree.map(jnp.zeros_like, theirs), state.rest),
    )
    kept = HeadFirstState(state.count + 1, head_state, rest_state)
    return moved | moved_others, kept

  return optax.GradientTransformation(init, update)


def make_optimizer(
  config: OptimConfig, steps: int, head_only_steps: int = 0
) -> optax.GradientTransformation:
  """Builds the optimizer; parameters must be float32.

  Args:
    steps: length of the head's schedule, and of all others' if none waits.
    head_only_steps: see `loop.TrainConfig`. The schedule of the other
      parameters begins after these steps and has the length that is left.
  """
  clip = optax.clip_by_global_norm(config.clip)
  unclipped = _unclipped(config, make_schedule(config, steps))
  if not head_only_steps:
    return optax.chain(clip, *unclipped)
  later_schedule = make_schedule(config, steps - head_only_steps)
  rest = optax.chain(*_unclipped(config, later_schedule))
  return optax.chain(
    clip, head_first(optax.chain(*unclipped), rest, head_only_steps)
  )


def _unclipped(
  config: OptimConfig, schedule: optax.Schedule
) -> tuple[optax.GradientTransformation, ...]:
  if config.name == 'adafactor':
    # As in optax.adafactor, but decay is multiplied by the learning rate.
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
