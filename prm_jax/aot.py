"""The command line that compiles a config for a TPU, on a machine without one.

    python -m prm_jax.aot --config configs/prm_math.py:qwen2_5_math_7b \
      --topology v5e:16x16

The train step and the scoring step that run elsewhere go through the real TPU
compiler (pip install 'jax[tpu]'). It says what they need of each chip's memory
and how long they take at least; exit code 1 when they do not fit.
"""

import dataclasses
import os
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from jax.experimental import topologies
from jax.sharding import Mesh

from prm_jax import main as command_line
from prm_jax import manifest, score
from prm_jax.collectives import read_collectives
from prm_jax.errors import UserError
from prm_jax.models import HeadConfig, TransformerConfig
from prm_jax.optim import OptimConfig, make_optimizer, make_schedule
from prm_jax.settings import check_mesh, settings_of
from prm_jax.sharding import batch_sharding, make_mesh
from prm_jax.tpu_chips import Chip, chip_of
from prm_jax.train import LossConfig, compile_train_step, make_train_step
from prm_jax.train_state import LoraConfig, abstract_state, make_init

_TOPOLOGY = flags.DEFINE_string(
  'topology', '', "Chips, such as v5e:16x16; by default the config's own."
)
_OUTPUT = flags.DEFINE_string('output', '', 'A JSON file to write, too.')

GB = 1e9
# Of the state's dtype and shape only these matter to a bound.
PER_STEP = ('step_labels', 'step_weights', 'step_trials')


def open_topology(name: str) -> list[jax.Device]:
  """The devices of a TPU slice that is not here.

  Raises:
    UserError: libtpu is missing, or knows no such slice.
  """
  os.environ['TPU_SKIP_MDS_QUERY'] = '1'  # no TPU host is asked what it is
  jax.config.update('jax_platforms', 'cpu')
  try:
    found = topologies.get_topology_desc(platform='tpu', topology_name=name)
  except Exception as error:  # XLA raises kinds of its own
    text = ' '.join(str(error).split())
    if 'libtpu' in text:
      raise UserError("libtpu is missing: pip install 'jax[tpu]'") from None
    raise UserError(
      f'topology {name!r} is unknown ({text[:200]}); name one such as v5e:4x4 '
      'or v5p:2x2x2'
    ) from None
  return found.devices


def model_of(config: Mapping[str, Any]) -> TransformerConfig:
  """The architecture; that of a base on the hub from the config itself."""
  known = config['aot']['model']
  if known:
    return TransformerConfig(**known, **config['model'])
  return settings_of(config).described.model


def lower_train(
  config: Mapping[str, Any], model: TransformerConfig, mesh: Mesh
) -> jax.stages.Lowered:
  """The train step of `prm_job`, on shapes."""
  head, lora = HeadConfig(**config['head']), LoraConfig(**config['lora'])
  optim, steps = OptimConfig(**config['optim']), config['train']['steps']
  optimizer, loss = make_optimizer(optim, steps), LossConfig(**config['loss'])
  init = make_init(model, head, optimizer, lora, lm_loss=loss.lm_weight > 0)
  state = abstract_state(init, mesh)
  step = make_train_step(
    model,
    head,
    loss,
    optimizer,
    make_schedule(optim, steps),
    config['train']['microbatches'],
    lora,
    config['train']['head_only_steps'],
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
    | {'numbers': of(T, jnp.bool_), 'step_mask': of(P, jnp.bool_)}
  )


def lower_score(
  config: Mapping[str, Any], model: TransformerConfig, mesh: Mesh
) -> jax.stages.Lowered:
  """`score.row_scores` of as many rows as a training batch has."""
  head = HeadConfig(**config['head'])
  optimizer = make_optimizer(OptimConfig(**config['optim']), 1)
  params = abstract_state(make_init(model, head, optimizer), mesh).params
  batch = abstract_batch(config, mesh)
  rows = score.Rows(*(batch[name] for name in score.Rows._fields))
  with jax.set_mesh(mesh):
    return jax.jit(
      lambda params, rows: score.row_scores(params, rows, None, model, head)
    ).lower(params, rows)


PROGRAMS = {'train': lower_train, 'score': lower_score}


@dataclasses.dataclass(frozen=True)
class Count:
  """Work of one program on one device, all layers counted."""

  flops: float
  hbm_bytes: float
  collectives: Mapping[str, float]  # kind -> bytes sent

  def times(self, chip: Chip) -> dict[str, float]:
    """Least seconds of each resource, used alone at its published rate."""
    return {
      'compute': self.flops / chip.flops,
      'hbm': self.hbm_bytes / chip.hbm_rate,
      'interconnect': sum(self.collectives.values()) / chip.ici_rate,
    }


def count_layers(one: Count, two: Count, layers: int) -> Count:
  """A program of `layers` from those of one and of two: linear in layers."""

  def along(a: float, b: float) -> float:
    return a + (layers - 1) * (b - a)

  kinds = sorted({*one.collectives, *two.collectives})
  return Count(
    along(one.flops, two.flops),
    along(one.hbm_bytes, two.hbm_bytes),
    {
      kind: along(one.collectives.get(kind, 0), two.collectives.get(kind, 0))
      for kind in kinds
    },
  )


def count(compiled: jax.stages.Compiled, devices: int) -> Count:
  """What the compiler counts, loops once: for programs without any."""
  cost = compiled.cost_analysis()
  sent: dict[str, float] = {}
  for item in read_collectives(compiled.as_text(), devices):
    sent[item.kind] = sent.get(item.kind, 0.0) + item.sent
  return Count(cost['flops'], cost['bytes accessed'], sent)


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


def memory_of(compiled: jax.stages.Compiled) -> dict[str, float]:
  """Bytes on one device; outputs that take over an input's place count once."""
  found = compiled.memory_analysis()
  parts = {
    'arguments': found.argument_size_in_bytes,
    'outputs': found.output_size_in_bytes - found.alias_size_in_bytes,
    'temporaries': found.temp_size_in_bytes,
    'code': found.generated_code_size_in_bytes,
  }
  return parts | {'total': sum(parts.values())}


def compile_fitting(lowered: jax.stages.Lowered) -> Any:
  """The compiled program, or the compiler's words on why it does not fit."""
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    text = ' '.join(str(error).split())
    if 'RESOURCE_EXHAUSTED' not in text:
      raise
    return text[:300]


def smaller_changes(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Changes that save memory, the cheapest first: flags -> the config."""
  changes = {}
  remat = config['model']['remat']
  for policy in ('dots', 'full')[('none', 'dots', 'full').index(remat) :]:
    changed = {**config, 'model': {**config['model'], 'remat': policy}}
    changes[f'--config.model.remat={policy}'] = changed
  parts, rows = config['train']['microbatches'], config['data']['batch_size']
  fullest = {**config['model'], 'remat': 'full'}
  while rows % (2 * parts) == 0:
    parts *= 2
    train = {**config['train'], 'microbatches': parts}
    flag = f'--config.train.microbatches={parts}'
    if remat != 'full':
      flag = f'--config.model.remat=full {flag}'
    changes[flag] = {**config, 'model': fullest, 'train': train}
  return changes


def describe(
  name: str,
  config: Mapping[str, Any],
  model: TransformerConfig,
  mesh: Mesh,
  chip: Chip,
) -> dict[str, Any]:
  """One program: memory, work, times and the bound that follows."""
  began = time.monotonic()
  compiled = compile_fitting(PROGRAMS[name](config, model, mesh))
  seconds = time.monotonic() - began
  if isinstance(compiled, str):
    return {'fits': False, 'compiler': compiled}
  memory = memory_of(compiled)
  # Loops are counted once, so layers and parts are taken out of theirs.
  parts = config['train']['microbatches'] if name == 'train' else 1
  rows = config['data']['batch_size'] // parts
  part = {
    **config,
    'data': {**config['data'], 'batch_size': rows},
    'train': {**config['train'], 'microbatches': 1},
  }
  counts = [
    count(
      PROGRAMS[name](
        part, dataclasses.replace(model, n_layers=n, scan_unroll=n), mesh
      ).compile(),
      mesh.size,
    )
    for n in (1, 2)
  ]
  work = count_layers(*counts, model.n_layers)
  products, attention = useful_flops(name, config, model)
  # The attention kernel is not counted by the compiler; its backward pass
  # makes the scores again, as does recomputation.
  again = {'train': 4 / 3 if model.remat != 'full' else 5 / 3, 'score': 1}
  work = Count(
    parts * work.flops + again[name] * attention / mesh.size,
    parts * work.hbm_bytes,
    {kind: parts * sent for kind, sent in work.collectives.items()},
  )
  times = work.times(chip)
  useful = (products + attention) / mesh.size
  return {
    'fits': memory['total'] <= chip.hbm_bytes,
    'memory_bytes': memory,
    'flops': work.flops,
    'useful_flops': useful,
    'hbm_bytes': work.hbm_bytes,
    'sent_bytes': work.collectives,
    'seconds_at_least': times,
    'mfu_at_most': useful / chip.flops / max(times.values()),
    'compile_seconds': round(seconds, 1),
  }


def table(name: str, found: Mapping[str, Any], chip: Chip) -> str:
  """A few lines for the console."""
  if 'memory_bytes' not in found:
    return f'{name}: does not fit: {found["compiler"]}'
  memory = ', '.join(
    f'{part} {size / GB:.2f}' for part, size in found['memory_bytes'].items()
  )
  sent = ', '.join(
    f'{kind} {size / GB:.2f}' for kind, size in found['sent_bytes'].items()
  )
  times = ', '.join(
    f'{part} {1e3 * s:.0f}' for part, s in found['seconds_at_least'].items()
  )
  return '\n'.join(
    (
      f'{name}: {"fits" if found["fits"] else "DOES NOT FIT"}, compiled in '
      f'{found["compile_seconds"]:.0f} s',
      f'  GB of {chip.hbm_bytes / GB:.0f} a chip: {memory}',
      f'  TFLOP a chip: {found["flops"] / 1e12:.1f}, of them needed '
      f'{found["useful_flops"] / 1e12:.1f}',
      f'  GB sent a chip: {sent or "nothing"}',
      f'  milliseconds at least: {times}',
      f'  MFU at most {100 * found["mfu_at_most"]:.0f}%',
    )
  )


def main(argv: list[str]) -> int:
  """Entry point: 0 where all fits, 1 where not, 2 for a user's fault."""
  command_line.parse_flags(argv)
  config = command_line.CONFIG.value
  if config is None:
    raise UserError('--config is missing: --config configs/prm_math.py')
  config = config.to_dict()
  topology = _TOPOLOGY.value or config['aot']['topology']
  if not topology:
    raise UserError('--topology is missing: --topology v5e:4x4')
  devices = open_topology(topology)
  chip = chip_of(devices[0].device_kind)
  mesh = make_mesh(config['mesh'], devices)
  check_mesh(config, mesh)
  model = model_of(config)
  command_line.log(f'{len(devices)} x {chip.name} ({topology})')
  found = {}
  for name in PROGRAMS:
    found[name] = describe(name, config, model, mesh, chip)
    command_line.log(table(name, found[name], chip))
  cure = None
  if not found['train']['fits']:
    for flag, changed in smaller_changes(config).items():
      changed_model = dataclasses.replace(
        model, remat=changed['model']['remat']
      )
      check_mesh(changed, mesh)
      if describe('train', changed, changed_model, mesh, chip)['fits']:
        cure = flag
        break
    command_line.log(f'train fits with {cure or "more chips only"}')
  if _OUTPUT.value:
    manifest.write_json(
      pathlib.Path(_OUTPUT.value),
      {
        'manifest': manifest.describe(config),
        'topology': topology,
        'chips': len(devices),
        'chip': dataclasses.asdict(chip),
        'programs': found,
        'fits_with': cure,
      },
    )
  return 0 if all(each['fits'] for each in found.values()) else 1


if __name__ == '__main__':
  try:
    sys.exit(main(sys.argv))
  except UserError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
