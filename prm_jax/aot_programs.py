"""The programs that aot.py compiles, on shapes alone.

A config -> its train step and its scoring step, or a policy's sampling step,
lowered for a mesh whose devices need not be here, and the work that each
needs at least.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax import score
from prm_jax.batching import jit_chunk
from prm_jax.cache_shardings import cache_sharding, decoding_shardings
from prm_jax.generate import Slots, Stops
from prm_jax.models import (
  LoraConfig,
  TransformerConfig,
  attention_flops,
  init_cache,
  init_params,
  merge,
  product_flops,
  unstack_layers,
)
from prm_jax.models.tpu_attention import LANES
from prm_jax.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.settings import head_of, loss_of, sampling_of, settings_of
from prm_jax.sharding import batch_sharding
from prm_jax.train import compile_train_step, make_train_step
from prm_jax.train_state import TrainState, abstract_state, make_init

# Of the state's dtype and shape only these matter to a bound.
PER_STEP = ('step_labels', 'step_weights', 'step_trials')


def model_of(config: Mapping[str, Any]) -> TransformerConfig:
  """The architecture; that of a base on the hub from the config itself."""
  known = config['aot']['model']
  if known:
    return TransformerConfig(**known, **config['model'])
  return settings_of(config).described.model


def train_state_of(config: Mapping[str, Any], mesh: Mesh) -> TrainState:
  """The state that the job trains, without values."""
  optimizer = make_optimizer(
    OptimConfig(**config['optim']), config['train']['steps']
  )
  init = make_init(
    model_of(config),
    head_of(config),
    optimizer,
    LoraConfig(**config['lora']),
    lm_loss=loss_of(config).lm_weight > 0,
  )
  return abstract_state(init, mesh)


def lower_train(config: Mapping[str, Any], mesh: Mesh) -> jax.stages.Lowered:
  """The train step of the job, on shapes."""
  optim, steps = OptimConfig(**config['optim']), config['train']['steps']
  state = train_state_of(config, mesh)
  step = make_train_step(
    model_of(config),
    head_of(config),
    loss_of(config),
    make_optimizer(optim, steps),
    make_schedule(optim, steps),
    config['train']['microbatches'],
    LoraConfig(**config['lora']),
    config['train'].get('head_only_steps', 0),
  )
  with jax.set_mesh(mesh):
    return compile_train_step(step, state, mesh).lower(
      state, abstract_batch(config, mesh)
    )


def abstract_batch(
  config: Mapping[str, Any], mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
  """The batch contract of `pipeline.make_batches`, without values."""
  data = config['data']
  B, T, P = (
    data[name] for name in ('batch_size', 'row_length', 'max_steps_per_row')
  )

  def of(length: int, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
      (B, length), dtype, sharding=batch_sharding(mesh)
    )

  tokens = dict.fromkeys(('tokens', 'positions', 'segment_ids'))
  return (
    {name: of(T, jnp.int32) for name in tokens}
    | {name: of(P, jnp.int32) for name in ('step_ends', 'chain_ids')}
    | {name: of(P, jnp.float32) for name in PER_STEP}
    | {name: of(T, jnp.bool_) for name in ('numbers', 'lm_mask')}
    | {'step_mask': of(P, jnp.bool_)}
  )


def lower_score(config: Mapping[str, Any], mesh: Mesh) -> jax.stages.Lowered:
  """`score.row_scores` of as many rows as a training batch has.

  As in an evaluation during training, with the optimizer's state on the chip.
  """
  model = model_of(config)
  head, lora = head_of(config), LoraConfig(**config['lora'])
  state = train_state_of(config, mesh)
  batch = abstract_batch(config, mesh)
  rows = score.Rows(*(batch[name] for name in score.Rows._fields))

  def step_scores(state: TrainState, rows: score.Rows) -> jax.Array:
    params = state.params
    if lora.rank:
      merged = merge(params['backbone'], params['lora'], lora)
      params = params | {'backbone': merged}
    return score.row_scores(params, rows, None, model, head)

  with jax.set_mesh(mesh):
    return jax.jit(
      step_scores, keep_unused=True, out_shardings=NamedSharding(mesh, P())
    ).lower(state, rows)


def abstract_cache(config: Mapping[str, Any], mesh: Mesh) -> Any:
  """The longest cache that sampling needs, without values."""
  model, slots = model_of(config), sampling_of(config).slots
  split = cache_sharding(model, slots, mesh)
  shapes = jax.eval_shape(
    lambda: init_cache(model, slots, config['data']['max_length'])
  )
  return _placed(shapes, jax.tree.map(lambda _: split, shapes))


def _placed(shapes: Any, where: Any) -> Any:
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    where,
  )


def lower_sample(config: Mapping[str, Any], mesh: Mesh) -> jax.stages.Lowered:
  """A chunk of `Writer`, with chains as long as they can become.

  Its loop over tokens is counted once: the work is that of one token of every
  slot.
  """
  model, sampling = model_of(config), sampling_of(config)
  stacked = jax.eval_shape(lambda k: init_params(k, model), jax.random.key(0))
  params = _placed(
    jax.eval_shape(lambda params: unstack_layers(params, model), stacked),
    decoding_shardings(stacked, model, mesh),
  )
  whole = NamedSharding(mesh, P())

  def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

  B = sampling.slots
  slots = Slots(*(of(jnp.int32, B) for _ in range(4)), of(jnp.uint32, B, 2))
  # Which tokens stop a chain is no matter of its shape.
  chunk = jit_chunk(model, mesh, sampling, Stops(separator=2, end=3))
  with jax.set_mesh(mesh):
    return chunk.lower(
      params, slots, abstract_cache(config, mesh), of(jnp.int32)
    )


def cache_bytes(config: Mapping[str, Any], mesh: Mesh) -> int:
  """What the cache takes of one device's memory."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(abstract_cache(config, mesh))
  )


PROGRAMS: dict[str, dict[str, Callable[..., jax.stages.Lowered]]] = {
  'prm': {'train': lower_train, 'score': lower_score},
  'policy': {'train': lower_train, 'sample': lower_sample},
}


def useful_flops(
  name: str, config: Mapping[str, Any], model: TransformerConfig
) -> tuple[float, float]:
  """FLOPs of a step that any implementation needs: products, attention.

  Rows are taken as one chain each. A gradient costs twice the forward pass.
  """
  data = config['data']
  B, T = data['batch_size'], data['row_length']
  pairs, logits = B * T * (T + 1) / 2, 0
  if name == 'sample':  # one token that sees a full cache, and its logits
    B, T = sampling_of(config).slots, 1
    pairs, logits = B * data['max_length'], B
  passes = 3 if name == 'train' else 1
  products = passes * product_flops(model, B * T, logits)
  return products, passes * attention_flops(model, pairs)


def kernel_flops(
  name: str, model: TransformerConfig, attention: float
) -> float:
  """FLOPs of the attention kernels of a step, which cannot be seen into.

  To the 2 products of the forward kernel the two of the gradient have 7, as
  both make the scores again. With activations that are not kept forward runs
  twice. Heads are padded to LANES.

  Args:
    attention: from `useful_flops`: 2 products, of a train step 6.
  """
  forward = 1 if name == 'score' or model.remat == 'none' else 2
  products, needed = (2 * forward + 7, 6) if name == 'train' else (2, 2)
  wide = -(-model.head_dim // LANES) * LANES / model.head_dim
  return attention * products / needed * wide
