"""The optimizer: AdamW with a schedule, clipping and a decay mask."""

import dataclasses
import re
from typing import Any

import jax
import optax

from prm_jax.errors import UserError
from prm_jax.sharding import path_name

SCHEDULES = ('constant', 'linear', 'cosine')
# Weight decay pulls on matrices, not on norms and biases.
DECAYED = re.compile(r'(kernel|embed_tokens|lm_head|/a|/b)$')


@dataclasses.dataclass(frozen=True)
class OptimConfig:
  """AdamW (Loshchilov and Hutter, 2019).

  Attributes:
    lr: peak learning rate, reached after `warmup` steps.
    schedule: what follows: 'constant', or 'linear' / 'cosine' to 0.
    clip: largest global gradient norm.
  """

  lr: float = 1e-3
  warmup: int = 100
  schedule: str = 'cosine'
  b1: float = 0.9
  b2: float = 0.95
  weight_decay: float = 0.01
  clip: float = 1.0

  def __post_init__(self):
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


def make_optimizer(
  config: OptimConfig, steps: int
) -> optax.GradientTransformation:
  return optax.chain(
    optax.clip_by_global_norm(config.clip),
    optax.adamw(
      make_schedule(config, steps),
      b1=config.b1,
      b2=config.b2,
      weight_decay=config.weight_decay,
      mask=decay_mask,
    ),
  )
