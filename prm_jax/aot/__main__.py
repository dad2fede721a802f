"""Compiles a config for TPUs or GPUs, on a machine without them.

    python -m prm_jax.aot --config configs/prm_math.py:qwen2_5_math_7b \
      --topology v5e:16x16

The real compiler (pip install 'jax[tpu]' or 'jax[cuda13]') compiles the
programs of the config's task: the train step and scoring for a PRM, or with
frozen.heads the reading of features; the train step, prefill and sampling for a
policy; all of these for RL; and for sampling, labelling and search the programs
of the models that they open. The report gives the memory that each program
needs on a chip and the least time that it takes. The exit code is 1 if one does
not fit.
"""

import dataclasses
import pathlib
import sys

from absl import flags

from prm_jax.aot.chips import chip_of
from prm_jax.aot.compiler import open_topology
from prm_jax.aot.estimate import (
  GB,
  TASKS,
  describe,
  find_cure,
  shown,
  table,
  token_rates,
  written_rate,
)
from prm_jax.jobs import settings
from prm_jax.runtime import command_line, manifest
from prm_jax.runtime.errors import UserError, exit_on_user_error
from prm_jax.runtime.workdir import write_json

flags.declare_key_flag('config')
_TOPOLOGY = flags.DEFINE_string(
  'topology', '', "Chips, such as v5e:16x16; by default the config's own."
)
_SLICES = flags.DEFINE_integer(
  'slices', 1, 'Number of such slices, joined by the data center network.'
)
_SHARED = flags.DEFINE_float(
  'shared',
  1.0,
  'Tokens of the chains for each token of their trees, as training prints it.',
  lower_bound=1.0,
)
_OUTPUT = flags.DEFINE_string('output', '', 'A JSON file to write, too.')


def main(argv: list[str]) -> int:
  """Compiles the config's programs; returns 0 if all fit, else 1."""
  rest = command_line.parse_flags(argv)
  if len(rest) > 1:
    raise UserError(f'unknown argument {rest[1]!r}; see --help')
  config = command_line.CONFIG.value
  if config is None:
    raise UserError('--config is missing: --config configs/prm_math.py')
  chosen = settings.read_settings(config.to_dict())
  if chosen.task not in TASKS:
    raise UserError(
      f'config.task={chosen.task!r} is not compiled ahead; expected one of '
      f'{", ".join(TASKS)}'
    )
  topology = _TOPOLOGY.value or chosen.aot.topology
  if not topology:
    raise UserError('--topology is missing: --topology v5e:4x4')
  output = pathlib.Path(_OUTPUT.value).expanduser() if _OUTPUT.value else None
  if output and not output.parent.is_dir():
    raise UserError(f'--output: there is no folder {output.parent}; make it')
  devices = open_topology(topology, _SLICES.value)
  chip = chip_of(devices[0].device_kind)
  plan = TASKS[chosen.task](chosen, devices)
  shape = f'{_SLICES.value} x ' * (_SLICES.value > 1) + topology
  sizes = '; '.join(map(shown, plan.meshes))
  command_line.log(f'{len(devices)} x {chip.name} ({shape}): {sizes}')
  command_line.log(
    f'  a chip: {chip.flops / 1e12:.0f} TFLOP/s, {chip.hbm_bytes / GB:.0f} GB '
    f'at {chip.hbm_rate / GB:,.0f} GB/s, links {chip.ici_rate / GB:.0f} GB/s '
    f'({chip.source})'
  )
  if _SLICES.value > 1:
    command_line.log(
      '  transfers between slices are timed at that rate too, but take longer'
    )
  found = {}
  for name, program in plan.programs.items():
    found[name] = describe(program, chip)
    command_line.log(f'{name}: {table(found[name], chip)}')
  trained, cure = found.get('train', {}), None
  rates = token_rates(trained, plan.rows * plan.length, _SHARED.value)
  if rates:
    command_line.log(
      '  tokens a second at most: '
      f'{rates["unique"]:,.0f} in rows, {rates["flat"]:,.0f} of the chains'
    )
  written = written_rate(found, plan.slots)
  if written:
    command_line.log(f'  tokens written a second at most: {written:,.0f}')
  if trained and not trained['fits']:
    command_line.log('looking for a setting with which the train step fits')
    cure = find_cure(chosen, plan, devices, chip)
    command_line.log(f'train fits with {cure or "more chips only"}')
  if output:
    write_json(
      output,
      {
        'manifest': manifest.describe(chosen.seed, 'prm_jax.aot'),
        'topology': topology,
        'slices': _SLICES.value,
        'chips': len(devices),
        'mesh': dict(plan.meshes[0].shape),
        'tokens': plan.rows * plan.length,
        'shared': _SHARED.value,
        'tokens_per_second_at_most': rates,
        'written_per_second_at_most': written,
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
  with exit_on_user_error():
    sys.exit(main(sys.argv))
