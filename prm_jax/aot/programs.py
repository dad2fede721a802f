"""Lowers the programs of a config, on shapes alone.

A config -> its train step and its scoring step, or a policy's sampling
programs, lowered for a mesh whose devices need not be here, with the least
work that each needs. `rl_programs.py` lowers those of RL.
"""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.aot.useful_flops import learning, reading
from prm_jax.data.config import DataConfig
from prm_jax.inference import loading, score
from prm_jax.inference.loading import ModelDescription
from prm_jax.inference.packing import bucket
from prm_jax.inference.sampler import SamplingConfig, Slots, Stops
from prm_jax.inference.writer import (
  PROMPT_TOKENS,
  SMALLEST_BUCKET,
  jit_chunk,
  jit_read,
)
from prm_jax.jobs.settings.training import PolicySettings, PrmSettings
from prm_jax.jobs.training import check_mesh, open_model
from prm_jax.models import (
  HeadConfig,
  Rows,
  TransformerConfig,
  attach,
  attention_flops,
  init_cache,
  init_params,
  product_flops,
  unstack_layers,
)
from prm_jax.models.cache_shardings import cache_sharding, decoding_shardings
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
  make_params,
  placed_shapes,
  to_param_dtype,
)

Settings = PrmSettings | PolicySettings
HEAD = HeadConfig('two_class')  # of a PRM that is not there yet
# Of the state's dtype and shape only these matter to a bound.
PER_STEP = ('step_labels', 'step_weights', 'step_trials')


class Program(NamedTuple):
  """Describes a program before it is compiled.

  Attributes:
    lower: returns the lowered program.
    devices: the number of devices that it runs on.
    products, attention: FLOPs that any implementation needs.
    kernels: FLOPs of attention kernels, by the name that a kernel has in a
      compiled program.
    cache: bytes per device of the cache among its arguments.
    beside: bytes per device that are allocated while it runs but that it does
      not read.
  """

  lower: Callable[[], jax.stages.Lowered]
  devices: int
  products: float = 0.0
  attention: float = 0.0
  kernels: Mapping[str, float] = types.MappingProxyType({})
  cache: int = 0
  beside: int = 0


class Plan(NamedTuple):
  """Describes what a config would run.

  Attributes:
    programs: programs by name; `train` trains, and `sample` writes a token.
    meshes: the meshes; the one for training is first.
    remat: the remat setting of the trained model; '' trains none.
    rows, length: shape of a training batch, or 0.
    slots: chains that are written at the same time, or 0.
  """

  programs: dict[str, Program]
  meshes: tuple[Mesh, ...]
  remat: str = ''
  rows: int = 0
  length: int = 0
  slots: int = 0


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


def placed(shapes: Any, where: Any) -> Any:
  """Adds a tree of shardings to a tree of shapes."""
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    where,
  )


def bytes_of(tree: Any) -> int:
  """Returns the bytes that placed shapes take on one device."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def abstract_params(
  model: TransformerConfig, head: HeadConfig | None, mesh: Mesh
) -> Any:
  """Returns the shapes of a model's parameters as they are opened."""
  shapes = jax.eval_shape(
    lambda key: to_param_dtype(make_params(key, model, head), model),
    jax.random.key(0),
  )
  return placed_shapes(shapes, mesh)


def read_prm(path: str, implicit: bool = False) -> ModelDescription:
  """Reads how a PRM that was trained here is made.

  Args:
    implicit: whether it may be a policy, which scores by its likelihoods.

  Raises:
    UserError: there is none at this path.
  """
  folder = paths.open_path(path)
  if not (folder / 'model.json').is_file():
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


class Sampling(NamedTuple):
  """Describes the programs with which a policy samples.

  Attributes:
    length: tokens of its longest chain.
  """

  model: TransformerConfig
  config: SamplingConfig
  length: int
  mesh: Mesh

  def params(self) -> Any:
    """Returns the parameters' shapes, in the form that the sampler reads."""
    stacked = self.stacked()
    return placed(
      jax.eval_shape(lambda x: unstack_layers(x, self.model), stacked),
      decoding_shardings(stacked, self.model, self.mesh, self.config.spread),
    )

  def stacked(self) -> Any:
    """Returns the parameters' shapes as they are trained, in its dtype."""
    return jax.eval_shape(
      lambda key: init_params(key, self.model), jax.random.key(0)
    )

  def cache(self) -> Any:
    """Returns the shapes of the largest cache that it needs."""
    slots = self.config.slots
    split = cache_sharding(self.model, slots, self.mesh)
    shapes = jax.eval_shape(lambda: init_cache(self.model, slots, self.length))
    return placed(shapes, jax.tree.map(lambda _: split, shapes))

  def lower_read(self) -> jax.stages.Lowered:
    """Lowers the call in which `Writer` reads as many prompts as it can."""
    params = self.params()
    tokens = jax.ShapeDtypeStruct(self._prompts(), jnp.int32)
    with jax.set_mesh(self.mesh):
      return jit_read(self.model, self.config.spread).lower(params, tokens)

  def _prompts(self) -> tuple[int, int]:
    """Returns the largest prompt length that leaves room to write."""
    longest = max(1, self.length - self.config.max_tokens)
    T = bucket(longest, SMALLEST_BUCKET)
    return max(1, min(PROMPT_TOKENS // T, bucket(self.config.slots, 1))), T

  def lower_chunk(self) -> jax.stages.Lowered:
    """Lowers a chunk of `Writer`, with chains of the greatest length.

    The body of its loop over tokens counts once: the work is that of one token
    in every slot.
    """
    whole = NamedSharding(self.mesh, P())

    def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
      return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    B = self.config.slots
    slots = Slots(*(of(jnp.int32, B) for _ in range(4)), of(jnp.uint32, B, 2))
    # The shapes do not depend on which tokens stop a chain.
    stops = Stops(separator=2, end=3)
    chunk = jit_chunk(self.model, self.mesh, self.config, stops)
    params, cache = self.params(), self.cache()
    with jax.set_mesh(self.mesh):
      return chunk.lower(params, slots, cache, of(jnp.int32))

  def programs(self) -> dict[str, Program]:
    """Returns the two programs: reading prompts, and writing."""
    B, size, model = self.config.slots, self.mesh.size, self.model
    rows, length = self._prompts()
    # Of the last layer keys and values alone.
    whole = reading(model, rows, length)
    share = (model.n_layers - 1) / model.n_layers
    last = 4 * rows * length * model.d_model * model.n_kv_heads * model.head_dim
    return {
      'read': Program(
        self.lower_read,
        size,
        share * whole['products'] + last,
        share * whole['attention'],
      ),
      # One token that sees a full cache, and its logits.
      'sample': Program(
        self.lower_chunk,
        size,
        product_flops(model, B, B),
        attention_flops(model, B * self.length),
        cache=bytes_of(self.cache()),
      ),
    }


def plan(settings: Settings, devices: Sequence[jax.Device]) -> Plan:
  """Returns the programs of a reward model or of a policy that imitates.

  Raises:
    UserError: the settings do not fit the devices.
  """
  mesh = make_mesh(settings.mesh.shape, devices)
  model = model_of(settings)
  check_mesh(settings, model, mesh)
  rows, length = settings.data.batch_size, settings.data.row_length
  logits, head = settings.loss.lm_weight > 0, settings.head
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
      **reading(model, rows, length, ends=None if head.likelihood else ends),
    )
  slots = settings.sampling.slots if settings.sampling else 0
  return Plan(programs, (mesh,), model.remat, rows, length, slots)
