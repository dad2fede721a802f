"""Lowers the programs of a config, on shapes alone.

A config -> its train step and its scoring step, or a policy's sampling
programs, or what reads features for heads on a frozen backbone, lowered for a
mesh whose devices need not be here, with the least work that each needs.
`rl_programs.py` lowers those of RL.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.aot.sampling import Sampling
from prm_jax.aot.shapes import Plan, Program, abstract_params, full_call
from prm_jax.aot.useful_flops import learning, reading
from prm_jax.data.config import DataConfig
from prm_jax.inference import features, loading, score
from prm_jax.inference.loading import ModelDescription
from prm_jax.inference.scorer import jit_row_features
from prm_jax.jobs.settings.training import PolicySettings, PrmSettings
from prm_jax.jobs.training import check_mesh, open_model
from prm_jax.models import (
  HeadConfig,
  Rows,
  TransformerConfig,
  attach,
)
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.sharding import batch_sharding, make_mesh
from prm_jax.training.loop import compile_train_step, make_train_step
from prm_jax.training.objective import ObjectiveConfig, reads_all
from prm_jax.training.optim import make_optimizer, make_schedule
from prm_jax.training.train_state import (
  TrainState,
  abstract_state,
  make_init,
)

Settings = PrmSettings | PolicySettings
HEAD = HeadConfig('two_class')  # of a PRM that is not there yet
# Arrays of a batch with one float32 per step, [B, P].
PER_STEP = ('step_labels', 'step_weights', 'step_trials')


def model_of(settings: Settings) -> TransformerConfig:
  """Returns the architecture; for a base on the hub, `aot.model`."""
  known = settings.aot.model.given()
  if known:
    return TransformerConfig(**known | settings.model.given())
  return open_model(settings).described.model


def optimizer_of(settings: Settings) -> optax.GradientTransformation:
  """Returns the optimizer that `jobs.training.train_best` makes."""
  train = settings.train
  return make_optimizer(settings.optim, train.steps, train.head_only_steps)


def train_state_of(settings: Settings, mesh: Mesh) -> TrainState:
  """Returns the shapes of the state that the job trains."""
  init = make_init(
    model_of(settings),
    settings.head,
    optimizer_of(settings),
    settings.lora,
    lm_loss=settings.loss.lm_weight > 0,
  )
  return abstract_state(init, mesh)


def objective_of(settings: Settings) -> ObjectiveConfig:
  """Returns the objective of the job's train step."""
  return ObjectiveConfig(
    model_of(settings), settings.head, settings.loss, settings.lora
  )


def lower_train(settings: Settings, mesh: Mesh) -> jax.stages.Lowered:
  """Lowers the job's train step, on shapes."""
  train = settings.train
  state = train_state_of(settings, mesh)
  step = make_train_step(
    objective_of(settings),
    optimizer_of(settings),
    make_schedule(settings.optim, train.steps),
    train.microbatches,
    train.head_only_steps,
  )
  with jax.set_mesh(mesh):
    return compile_train_step(step, state, mesh).lower(
      state, abstract_batch(settings.data, mesh)
    )


def abstract_batch(
  data: DataConfig, mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of a batch of `pipeline.make_batches`."""
  B, T, P = data.batch_size, data.row_length, data.max_steps_per_row

  def of(length: int, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
      (B, length), dtype, sharding=batch_sharding(mesh)
    )

  return (
    {name: of(T, jnp.int32) for name in Rows._fields[:4]}
    | {name: of(P, jnp.int32) for name in ('step_ends', 'step_begins')}
    | {'chain_ids': of(P, jnp.int32)}
    | {name: of(P, jnp.float32) for name in PER_STEP}
    | {'kinds': of(T, jnp.int8), 'lm_weights': of(T, jnp.float32)}
    | {
      'step_mask': of(P, jnp.bool_),
      'flat_tokens': jax.ShapeDtypeStruct(
        (B,), jnp.int32, sharding=batch_sharding(mesh)
      ),
    }
  )


def lower_score(settings: Settings, mesh: Mesh) -> jax.stages.Lowered:
  """Lowers `score.row_scores` for as many rows as a training batch has.

  The optimizer's state counts too, as in an evaluation during training.
  """
  model, head, lora = model_of(settings), settings.head, settings.lora
  state = train_state_of(settings, mesh)
  batch = abstract_batch(settings.data, mesh)
  rows = Rows(*(batch[name] for name in Rows._fields))

  def step_scores(state: TrainState, rows: Rows) -> jax.Array:
    params = state.params
    if lora.rank:
      attached = attach(params['backbone'], params['lora'], lora)
      params = params | {'backbone': attached}
    return score.row_scores(params, rows, model, head)

  with jax.set_mesh(mesh):
    return jax.jit(
      step_scores, keep_unused=True, out_shardings=NamedSharding(mesh, P())
    ).lower(state, rows)


def plan_features(
  settings: PrmSettings, model: TransformerConfig, mesh: Mesh
) -> Plan:
  """Returns the one program of a job with `frozen.heads`.

  The backbone, alone, reads as many chains as one call takes. Fitting heads to
  what it finds takes next to nothing.
  """
  params = abstract_params(model, None, mesh)
  rows = full_call(features.PART, settings.data.max_length, mesh)

  def lower() -> jax.stages.Lowered:
    with jax.set_mesh(mesh):
      return jit_row_features(model, mesh).lower(params, rows)

  needed = reading(model, *rows.tokens.shape, logits=True)
  return Plan({'features': Program(lower, mesh.size, **needed)}, (mesh,))


def read_prm(path: str, implicit: bool = False) -> ModelDescription:
  """Reads how a PRM that was trained here is made.

  Args:
    implicit: whether it may be a policy, which scores by its likelihoods.

  Raises:
    UserError: there is none at this path.
  """
  folder = paths.open_path(path)
  if not loading.is_run(folder):
    raise UserError(
      f'config.prm.path={path!r}: has no model.json of a training run. A '
      "published PRM is not read here; set it to '' for one as large as the "
      'policy'
    )
  described = loading.read_description(folder)
  if described.head is None and not implicit:
    raise UserError(
      f'config.prm.path={path!r}: holds a policy, which scores nothing; name '
      'the workdir of a reward model'
    )
  return described


def plan(settings: Settings, devices: Sequence[jax.Device]) -> Plan:
  """Returns the programs of a reward model or of a policy that imitates.

  Raises:
    UserError: the settings do not fit the devices.
  """
  mesh = make_mesh(settings.mesh.shape, devices)
  model = model_of(settings)
  check_mesh(settings, model, mesh)
  if isinstance(settings, PrmSettings) and settings.frozen.heads:
    return plan_features(settings, model, mesh)
  rows, length = settings.data.batch_size, settings.data.row_length
  head = settings.head
  likelihood = bool(head and head.likelihood)
  logits = likelihood or settings.loss.lm_weight > 0
  ends = settings.data.max_steps_per_row
  trained = None if reads_all(objective_of(settings)) else ends
  programs = {
    'train': Program(
      lambda: lower_train(settings, mesh),
      mesh.size,
      **learning(
        model, rows, length, logits, trained, frozen=settings.lora.rank > 0
      ),
    )
  }
  if settings.sampling:
    window = settings.data.max_length
    programs |= Sampling(model, settings.sampling, window, mesh).programs()
  else:
    programs['score'] = Program(
      lambda: lower_score(settings, mesh),
      mesh.size,
      **reading(
        model, rows, length, likelihood, ends=None if likelihood else ends
      ),
    )
  slots = settings.sampling.slots if settings.sampling else 0
  return Plan(programs, (mesh,), model.remat, rows, length, slots)
