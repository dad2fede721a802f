"""Takes the results of an accelerator over into the repository.

    python -m experiments.accelerator.keep /tmp/chip/results.json

Writes results.json beside this file, which has one entry for each kind of chip,
and the tables of README.md beside it and of the project's README.md. Results of
a CPU or of tiny sizes are not taken.
"""

import argparse
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.accelerator.results import RATES, render
from experiments.runner import ROOT
from experiments.tables import table, times
from prm_jax.report import readme_table
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError, exit_on_user_error
from prm_jax.runtime.workdir import write_json

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / 'results.json'
NAME_OTHER = 'name the results.json that experiments.accelerator.run wrote'
CPU = (
  'yes: all jobs and tests, and all experiments but those that need a GPU or '
  'published weights; training, sampling, labels and search also on many '
  'processes'
)
PLATFORMS = {'gpu': 'GPU', 'tpu': 'TPU'}
# What is known without a chip.
COMPILED = {
  'gpu': 'programs compiled with the real GPU compiler for the H100, H200, '
  'A100 and L4 ([docs/hardware.md](docs/hardware.md))',
  'tpu': 'programs compiled with the real TPU compiler for 8 to 1,024 chips, '
  'memory and bounds on speed read from them '
  '([experiments/scaling](experiments/scaling))',
}

Machines = Mapping[str, Mapping[str, Any]]  # device kind -> its results


def kept() -> dict[str, Any]:
  """Returns the results that the repository keeps, by kind of chip."""
  return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def summary(found: Mapping[str, Any]) -> str:
  """Says in a line what ran on a machine, and how fast."""
  machine, parts = found['machine'], found['parts']
  checks = [
    check
    for sides in parts.get('right', {}).values()
    for check in sides['ours'][-1]['checks']
  ]
  hold = sum(check['holds'] for check in checks)
  said = [
    f'{machine["count"]} x {machine["device"]}',
    f'{hold} of {len(checks)} checks beside the CPU hold',
    *speeds(machine, parts),
  ]
  if found['failed']:
    said.append(f'{len(found["failed"])} cases failed')
  return '; '.join(said)


def speeds(
  machine: Mapping[str, Any], parts: Mapping[str, Any]
) -> Iterator[str]:
  """Yields the best MFU, and each part's speed beside the other side's."""
  peak = machine.get('peak_flops_per_second')
  mfus = [
    (found['useful_flops_per_second'] / peak, case)
    for case, sides in parts.get('training', {}).items()
    for found in sides.get('ours', ())[-1:]
    if peak
  ]
  if mfus:
    best, case = max(mfus)
    model, _, row = case.partition('_')
    yield (
      f"training at up to {100 * best:.0f}% of the chip's peak FLOPs "
      f'({model} parameters, rows of {int(row):,} tokens)'
    )
  for part, (key, _, _) in RATES.items():
    ratios = [
      ours[key] / theirs[key]
      for sides in parts.get(part, {}).values()
      for ours, theirs in zip(
        sides.get('ours', ()), sides.get('theirs', ()), strict=False
      )
      if key in ours and key in theirs
    ]
    if ratios:
      ratio = times(statistics.median(ratios), 1)
      yield f'{part} {ratio} as fast as the PyTorch side'


def where_table(machines: Machines) -> str:
  """Makes the table of what has run where."""
  rows = [['CPU', CPU]]
  for platform, name in PLATFORMS.items():
    own = [
      found
      for found in machines.values()
      if found['machine']['platform'] == platform
    ]
    ran = [
      f'{summary(found)} ([experiments/accelerator](experiments/accelerator))'
      for found in own
    ]
    rows.append([name, '; '.join([*(ran or ['not yet']), COMPILED[platform]])])
  return table(['', ''], rows)


def tables(machines: Machines) -> str:
  """Makes the tables of every chip."""
  parts = [f'## {kind}\n\n{render(found)}' for kind, found in machines.items()]
  return '\n\n'.join(parts) or 'Not yet: no accelerator was at hand.'


def fill(machines: Machines) -> None:
  """Writes the tables of both README files."""
  readme_table.fill(HERE / 'README.md', tables(machines))
  readme_table.fill(ROOT / 'README.md', where_table(machines))


def main() -> None:
  parser = argparse.ArgumentParser(
    prog='python -m experiments.accelerator.keep',
    description=__doc__.splitlines()[0],
  )
  parser.add_argument('results', type=pathlib.Path, nargs='?')
  given = parser.parse_args().results
  machines = kept()
  if given:
    found = paths.read_json(given, NAME_OTHER)
    if not {'machine', 'tiny'} <= found.keys():
      raise UserError(f'{given} holds no results of a chip; {NAME_OTHER}')
    machine = found['machine']
    if found['tiny'] or machine.get('platform') not in PLATFORMS:
      parser.error(f'{given} is of a CPU, or of tiny sizes; it is not kept')
    machines[machine['device']] = found
    write_json(RESULTS, machines)
  fill(machines)


if __name__ == '__main__':
  with exit_on_user_error():
    main()
