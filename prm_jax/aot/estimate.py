"""Estimates what a plan's programs need, and finds a small change that fits.

The command line is `python -m prm_jax.aot`.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from prm_jax.aot import item_programs, programs, rl_programs
from prm_jax.aot.chips import Chip
from prm_jax.aot.compiler import compile_program, memory_of
from prm_jax.aot.hlo import read_program
from prm_jax.aot.shapes import Plan, Program
from prm_jax.aot.work import Count, count_work
from prm_jax.jobs.settings.items import ItemSettings
from prm_jax.jobs.settings.rl import RlSettings
from prm_jax.runtime import command_line
from prm_jax.runtime.errors import UserError

Settings = programs.Settings | RlSettings | ItemSettings
TASKS = {
  'prm': programs.plan,
  'policy': programs.plan,
  'sample': item_programs.plan,
  'label': item_programs.plan,
  'search': item_programs.plan,
  'rl': rl_programs.plan,
}
GB = 1e9


def times(count: Count, chip: Chip) -> dict[str, float]:
  """Returns the least seconds on each resource, at its published rate."""
  return {
    'compute': count.flops / chip.flops,
    'hbm': count.memory_bytes / chip.hbm_rate,
    'interconnect': sum(count.sent_bytes.values()) / chip.ici_rate,
  }


def smaller_changes(
  settings: Settings, remat: str, rows: int, model: int
) -> Iterator[Mapping[str, Any]]:
  """Yields changes that save memory, the cheapest first: names -> values.

  Recomputation costs a third more work, smaller parts of a batch and wider
  tensor parallelism more traffic.

  Args:
    remat: the model's setting.
    rows: rows of a batch.
    model: devices that share a layer.
  """
  policies = ('none', 'dots', 'full')
  for more in policies[policies.index(remat) + 1 :]:
    yield {'model.remat': more}
  fullest = {} if remat == 'full' else {'model.remat': 'full'}
  parts = settings.train.microbatches
  while rows % (2 * parts) == 0:
    parts *= 2
    yield fullest | {'train.microbatches': parts}
  while model < 16:
    model *= 2
    yield fullest | {'mesh.model': model, 'mesh.fsdp': -1}


def with_changes(settings: Settings, changes: Mapping[str, Any]) -> Settings:
  """Returns the settings with the values of some dotted names replaced."""
  for name, value in changes.items():
    section, key = name.split('.')
    changed = dataclasses.replace(getattr(settings, section), **{key: value})
    settings = dataclasses.replace(settings, **{section: changed})
  return settings


def find_cure(
  settings: Settings,
  plan: Plan,
  devices: Sequence[jax.Device],
  chip: Chip,
) -> str | None:
  """Returns flags of the smallest change with which the train step fits."""
  for changes in smaller_changes(
    settings, plan.remat, plan.rows, plan.meshes[0].shape['model']
  ):
    changed = with_changes(settings, changes)
    flags_text = ' '.join(f'--config.{k}={v}' for k, v in changes.items())
    try:
      program = TASKS[settings.task](changed, devices).programs['train']
    except UserError:
      continue  # this split is not possible here; the next may be
    compiled, _ = compile_program(program.lower())
    fits = compiled and memory(program, compiled)['total'] <= chip.hbm_bytes
    command_line.log(f'  with {flags_text}: {"fits" if fits else "no"}')
    if fits:
      return flags_text
  return None


def memory(program: Program, compiled: jax.stages.Compiled) -> dict[str, float]:
  """Counts bytes on one device, with arrays that the program does not read."""
  found = memory_of(compiled)
  parts = {'arguments': found.pop('arguments') - program.cache}
  parts |= {'cache': program.cache, 'beside': program.beside}
  found['total'] += program.beside
  return {k: v for k, v in parts.items() if v or k == 'arguments'} | found


def describe(program: Program, chip: Chip) -> dict[str, Any]:
  """Compiles one program and reports its memory, work and least times.

  Returns:
    Per device: `fits`; `memory_bytes` by part; `flops`, `useful_flops`,
    `hbm_bytes`, `sent_bytes` by collective, `largest_gather_bytes`;
    `seconds_at_least` by resource; `mfu_at_most` in [0, 1]; `unknown_loops`,
    `rematerialized` (compiler warnings) and `compile_seconds`. If the
    compiler refuses it, only `fits` and the `compiler`'s last line.
  """
  began = time.monotonic()
  compiled, lines = compile_program(program.lower())
  if compiled is None:
    return {'fits': False, 'compiler': lines[-1][:300]}
  seconds = time.monotonic() - began
  bytes_used = memory(program, compiled)
  text = compiled.as_text()
  work = count_work(read_program(text), program.devices)
  for kernel, flops in program.kernels.items():
    work.flops += flops / program.devices * (kernel in text)
  seconds_at_least = times(work, chip)
  useful = (program.products + program.attention) / program.devices
  return {
    'fits': bytes_used['total'] <= chip.hbm_bytes,
    'memory_bytes': bytes_used,
    'flops': work.flops,
    'useful_flops': useful,
    'hbm_bytes': work.memory_bytes,
    'sent_bytes': work.sent_bytes,
    'largest_gather_bytes': work.largest_gather,
    'unknown_loops': work.unknown_loops,
    'seconds_at_least': seconds_at_least,
    'mfu_at_most': useful / chip.flops / max(seconds_at_least.values()),
    # Arrays that the devices exchange whole; there should be none.
    'rematerialized': [
      line for line in lines if 'full rematerialization' in line
    ],
    'compile_seconds': round(seconds, 1),
  }


def token_rates(
  found: Mapping[str, Any], tokens: int, shared: float
) -> dict[str, float]:
  """Returns bounds on tokens per second: in rows, and of the chains.

  Rows of trees take as long as rows of chains: the kernels' work is counted as
  if each token saw all tokens before it in its row.

  Args:
    found: what `describe` returned.
    tokens: tokens in the rows of a step.
    shared: tokens of the chains per token of the rows.
  """
  if 'seconds_at_least' not in found:
    return {}
  unique = tokens / max(found['seconds_at_least'].values())
  return {'unique': unique, 'flat': shared * unique}


def written_rate(
  found: Mapping[str, Mapping[str, Any]], slots: int
) -> float | None:
  """Returns a bound on the tokens per second that a policy writes.

  All slots are in use, and all chains as long as they can be.

  Args:
    found: what `describe` returned, by the name of the program.
    slots: chains that are written at the same time.
  """
  seconds = found.get('sample', {}).get('seconds_at_least')
  return slots / max(seconds.values()) if seconds else None


def table(found: Mapping[str, Any], chip: Chip) -> str:
  """Formats the report of a program for the console."""
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


def shown(mesh: Mesh) -> str:
  """Formats a mesh as its axes and their sizes."""
  return ', '.join(f'{axis} {size}' for axis, size in mesh.shape.items())
