"""The command line that compiles a config for a TPU, on a machine without one.

    python -m prm_jax.aot --config configs/prm_math.py:qwen2_5_math_7b \
      --topology v5e:16x16

The train step and the scoring step that run elsewhere go through the real TPU
compiler (pip install 'jax[tpu]'). It says what they need of each chip's memory
and how long they take at least; exit code 1 when they do not fit.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax import main as command_line
from prm_jax import manifest, score
from prm_jax.compiled.chips import Chip, chip_of
from prm_jax.compiled.compiler import (
  compile_program,
  memory_of,
  open_topology,
)
from prm_jax.compiled.program import read_program
from prm_jax.compiled.work import Count, count_work
from prm_jax.errors import UserError
from prm_jax.models import LoraConfig, TransformerConfig, merge
from prm_jax.models.tpu_attention import LANES
from prm_jax.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.settings import (
  check_mesh,
  check_values,
  head_of,
  loss_of,
  settings_of,
)
from prm_jax.sharding import batch_sharding, make_mesh
from prm_jax.train import compile_train_step, make_train_step
from prm_jax.train_state import TrainState, abstract_state, make_init

_TOPOLOGY = flags.DEFINE_string(
  'topology', '', "Chips, such as v5e:16x16; by default the config's own."
)
_SLICES = flags.DEFINE_integer(
  'slices', 1, 'So many such slices, joined by the data center network.'
)
_OUTPUT = flags.DEFINE_string('output', '', 'A JSON file to write, too.')

GB = 1e9
KERNEL = 'tpu_custom_call'  # what a Pallas kernel is in a program's text
# Of the state's dtype and shape only these matter to a bound.
PER_STEP = ('step_labels', 'step_weights', 'step_trials')


def model_of(config: Mapping[str, Any]) -> TransformerConfig:
  """The architecture; that of a base on the hub from the config itself."""
  known = config['aot']['model']
  if known:
    return TransformerConfig(**known, **config['model'])
  return settings_of(config).described.model


def train_state_of(config: Mapping[str, Any], mesh: Mesh) -> TrainState:
  """The state that `prm_job` trains, without values."""
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
  """The train step of `prm_job`, on shapes."""
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


PROGRAMS = {'train': lower_train, 'score': lower_score}
# Of them, what the job of a task runs.
PROGRAMS_OF = {'prm': ('train', 'score'), 'policy': ('train',)}


def times(count: Count, chip: Chip) -> dict[str, float]:
  """Least seconds of each resource, used alone at its published rate."""
  return {
    'compute': count.flops / chip.flops,
    'hbm': count.memory_bytes / chip.hbm_rate,
    'interconnect': sum(count.sent_bytes.values()) / chip.ici_rate,
  }


def useful_flops(
  name: str, config: Mapping[str, Any], model: TransformerConfig
) -> tuple[float, float]:
  """FLOPs of a step that any implementation needs: products, attention.

  2 per parameter and token (Kaplan et al., 2020), the embedding excepted, and
  4 H per pair of tokens and head; rows are taken as one chain each. A
  gradient costs twice the forward pass.
  """
  data = config['data']
  B, T = data['batch_size'], data['row_length']
  heads = model.n_heads + model.n_kv_heads
  layer = model.d_model * (2 * heads * model.head_dim + 3 * model.d_ff)
  pairs = T * (T + 1) / 2
  passes = 3 if name == 'train' else 1
  products = passes * 2 * B * T * layer * model.n_layers
  attention = (
    passes * 4 * B * pairs * model.head_dim * model.n_heads * model.n_layers
  )
  return products, attention


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


def smaller_changes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
  """Changes that save memory, the cheapest first: names -> values.

  Recomputation costs a third more work, smaller parts of a batch and wider
  tensor parallelism more traffic.
  """
  policies = ('none', 'dots', 'full')
  for remat in policies[policies.index(config['model']['remat']) + 1 :]:
    yield {'model.remat': remat}
  fullest = (
    {} if config['model']['remat'] == 'full' else {'model.remat': 'full'}
  )
  parts, rows = config['train']['microbatches'], config['data']['batch_size']
  while rows % (2 * parts) == 0:
    parts *= 2
    yield fullest | {'train.microbatches': parts}
  model = config['mesh']['model']
  while model < 16:
    model *= 2
    yield fullest | {'mesh.model': model, 'mesh.fsdp': -1}


def with_changes(
  config: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
  """A config with some dotted names set."""
  changed = {**config}
  for name, value in changes.items():
    section, key = name.split('.')
    changed[section] = {**changed[section], key: value}
  return changed


def find_cure(
  config: Mapping[str, Any], devices: Sequence[jax.Device], chip: Chip
) -> str | None:
  """Flags of the smallest change with which the train step fits."""
  for changes in smaller_changes(config):
    changed = with_changes(config, changes)
    flags_text = ' '.join(f'--config.{k}={v}' for k, v in changes.items())
    try:
      mesh = make_mesh(changed['mesh'], devices)
      check_mesh(changed, model_of(changed), mesh)
    except UserError:
      continue  # this split is not possible here; the next may be
    compiled, _ = compile_program(lower_train(changed, mesh))
    fits = compiled and memory_of(compiled)['total'] <= chip.hbm_bytes
    command_line.log(f'  with {flags_text}: {"fits" if fits else "no"}')
    if fits:
      return flags_text
  return None


def describe(
  name: str, config: Mapping[str, Any], mesh: Mesh, chip: Chip
) -> dict[str, Any]:
  """One program: memory, work, times and the bound that follows."""
  began = time.monotonic()
  compiled, said = compile_program(PROGRAMS[name](config, mesh))
  if compiled is None:
    return {'fits': False, 'compiler': said[-1][:300]}
  seconds = time.monotonic() - began
  memory = memory_of(compiled)
  text = compiled.as_text()
  work = count_work(read_program(text), mesh.size)
  model = model_of(config)
  products, attention = useful_flops(name, config, model)
  if KERNEL in text:
    work.flops += kernel_flops(name, model, attention) / mesh.size
  seconds_at_least = times(work, chip)
  useful = (products + attention) / mesh.size
  return {
    'fits': memory['total'] <= chip.hbm_bytes,
    'memory_bytes': memory,
    'flops': work.flops,
    'useful_flops': useful,
    'hbm_bytes': work.memory_bytes,
    'sent_bytes': work.sent_bytes,
    'largest_gather_bytes': work.largest_gather,
    'unknown_loops': work.unknown_loops,
    'seconds_at_least': seconds_at_least,
    'mfu_at_most': useful / chip.flops / max(seconds_at_least.values()),
    # Arrays that the devices exchange whole; there should be none.
    'rematerialized': [x for x in said if 'full rematerialization' in x],
    'compile_seconds': round(seconds, 1),
  }


def table(found: Mapping[str, Any], chip: Chip) -> str:
  """A few lines for the console."""
  if 'memory_bytes' not in found:
    return f'does not fit: {found["compiler"]}'

  def row(values: Mapping[str, float], unit: float, digits: int) -> str:
    return ', '.join(f'{k} {v / unit:.{digits}f}' for k, v in values.items())

  lines = [
    f'{"fits" if found["fits"] else "DOES NOT FIT"}, compiled in '
    f'{found["compile_seconds"]:.0f} s',
    f'GB of {chip.hbm_bytes / GB:.0f} a chip: '
    f'{row(found["memory_bytes"], GB, 2)}',
    f'TFLOP a chip: {found["flops"] / 1e12:.1f}, of them needed '
    f'{found["useful_flops"] / 1e12:.1f}',
    f'GB sent a chip: {row(found["sent_bytes"], GB, 2) or "nothing"}; gathered '
    f'at once {found["largest_gather_bytes"] / GB:.2f}',
    f'milliseconds at least: {row(found["seconds_at_least"], 1e-3, 0)}',
    f'MFU at most {100 * found["mfu_at_most"]:.0f}%',
  ]
  if found['unknown_loops']:
    lines.append(
      f'loops of unknown length, counted once: {found["unknown_loops"]}'
    )
  return '\n  '.join([*lines, *found['rematerialized']])


def main(argv: list[str]) -> int:
  """0 where all fits, 1 where not."""
  rest = command_line.parse_flags(argv)
  if len(rest) > 1:
    raise UserError(f'unknown argument {rest[1]!r}; see --help')
  config = command_line.CONFIG.value
  if config is None:
    raise UserError('--config is missing: --config configs/prm_math.py')
  config = config.to_dict()
  check_values(config)
  topology = _TOPOLOGY.value or config['aot']['topology']
  if not topology:
    raise UserError('--topology is missing: --topology v5e:4x4')
  output = pathlib.Path(_OUTPUT.value).expanduser() if _OUTPUT.value else None
  if output and not output.parent.is_dir():
    raise UserError(f'--output: there is no folder {output.parent}; make it')
  devices = open_topology(topology, _SLICES.value)
  chip = chip_of(devices[0].device_kind)
  mesh = make_mesh(config['mesh'], devices)
  check_mesh(config, model_of(config), mesh)
  shape = f'{_SLICES.value} x ' * (_SLICES.value > 1) + topology
  sizes = ', '.join(f'{axis} {size}' for axis, size in mesh.shape.items())
  command_line.log(f'{len(devices)} x {chip.name} ({shape}): {sizes}')
  command_line.log(
    f'  a chip: {chip.flops / 1e12:.0f} TFLOP/s, {chip.hbm_bytes / GB:.0f} GB '
    f'at {chip.hbm_rate / GB:,.0f} GB/s, links {chip.ici_rate / GB:.0f} GB/s '
    f'({chip.source})'
  )
  if _SLICES.value > 1:
    command_line.log(
      '  what is sent between slices is timed at that rate too: it takes longer'
    )
  found = {}
  for name in PROGRAMS_OF[config['task']]:
    found[name] = describe(name, config, mesh, chip)
    command_line.log(f'{name}: {table(found[name], chip)}')
  cure = None
  if not found['train']['fits']:
    command_line.log('looking for what makes the train step fit')
    cure = find_cure(config, devices, chip)
    command_line.log(f'train fits with {cure or "more chips only"}')
  if output:
    manifest.write_json(
      output,
      {
        'manifest': manifest.describe(config, 'prm_jax.aot'),
        'topology': topology,
        'slices': _SLICES.value,
        'chips': len(devices),
        'mesh': dict(mesh.shape),
        'tokens': config['data']['batch_size'] * config['data']['row_length'],
        'chip': dataclasses.asdict(chip),
        'programs': found,
        'fits_with': cure,
      },
    )
  return 0 if all(each['fits'] for each in found.values()) else 1


if __name__ == '__main__':
  if {'--help', '-h'} & set(sys.argv[1:]):
    print(f'{__doc__}\n{flags.FLAGS.main_module_help()}')
    sys.exit(0)
  try:
    sys.exit(main(sys.argv))
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
