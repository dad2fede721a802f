"""Collects the results of all parts, and makes their tables."""

import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.tables import table, times

Found = Mapping[str, Any]  # what a case measured
# part -> case -> side -> the results of its turns, in order
Parts = dict[str, dict[str, dict[str, list[Found]]]]
# Heading, key of the rate, unit, digits.
RATES = {
  'training': ('tokens_per_second', 'tokens/s', 0),
  'scoring': ('candidates_per_second', 'candidates/s', 1),
  'sampling': ('tokens_per_second', 'tokens/s', 0),
  'rl': ('tokens_per_second', 'tokens/s', 0),
}


def collect(workdir: pathlib.Path, ended: Mapping[str, str]) -> dict[str, Any]:
  """Reads what all turns wrote.

  Args:
    ended: for turns that did not end well, PART.SIDE.ROUND, what was wrong.
  """
  parts: Parts = {}
  for path in sorted(workdir.glob('*/*.json')):
    case, side, _, _ = path.name.rsplit('.', 3)
    sides = parts.setdefault(path.parent.name, {}).setdefault(case, {})
    # A number that is not finite becomes None, which strict JSON can hold.
    found = json.loads(path.read_text(), parse_constant=lambda _: None)
    sides.setdefault(side, []).append(found)
  failed = {
    f'{path.parent.name}.{path.name.removesuffix(".failed")}': path.read_text()
    for path in sorted(workdir.glob('*/*.failed'))
  }
  # A turn that failed in its cases has said so; others never came to one.
  for name, fault in ended.items():
    part, side, turn = name.split('.')
    said = [
      key
      for key in failed
      if key.startswith(f'{part}.') and key.endswith(f'.{side}.{turn}')
    ]
    if not said:
      failed[name] = fault
  failed |= {f'right.{name}': fault for name, fault in wrong(parts)}
  failed |= {
    f'training.{case}.roofline': found['roofline_fault']
    for case, sides in parts.get('training', {}).items()
    for found in sides.get('ours', ())
    if 'roofline_fault' in found
  }
  return {'machine': machine_of(parts), 'parts': parts, 'failed': failed}


def wrong(parts: Parts) -> Iterator[tuple[str, str]]:
  """Yields the checks of the part `right` that do not hold."""
  for case, sides in parts.get('right', {}).items():
    for check in sides['ours'][-1]['checks']:
      if not check['holds']:
        yield (
          f'{case}.{check["name"]}',
          f'{scientific(check["difference"])} is above {check["bound"]:.1e}',
        )


def scientific(difference: float | None) -> str:
  """Formats a difference; None is one that is not finite."""
  return 'NaN' if difference is None else f'{difference:.1e}'


def machine_of(parts: Parts) -> dict[str, Any]:
  """Describes the machine: device, versions of both sides, ceilings."""
  sides = parts.get('machine', {})
  found = {'versions': {}}
  for side in ('theirs', 'ours'):
    for said in sides.get('about', {}).get(side, ()):
      found |= said | {'versions': found['versions'] | said['versions']}
  for name, key in (
    ('product', 'flops_per_second'),
    ('copy', 'bytes_per_second'),
  ):
    rates = [
      each[key] for side in sides.get(name, {}).values() for each in side
    ]
    if rates:
      found[key] = max(rates)
  return found


def render(found: Mapping[str, Any]) -> str:
  """Makes the tables of all parts."""
  machine, parts = found['machine'], found['parts']
  made = [about_table(machine)] if machine.get('device') else []
  if 'right' in parts:
    made.append(right_table(parts['right']))
  for name in RATES:
    if name in parts:
      made.append(rate_table(name, parts[name], machine))
  if rows := race_rows(parts.get('rl', {})):
    made.append(
      table(
        'race | side | held-out accuracy | seconds | of them compiling | '
        'updates | reached',
        rows,
      )
    )
  if rows := roofline_rows(parts.get('training', {})):
    made.append(
      table('train step | bound by | at least, ms | measured, ms | ratio', rows)
    )
  return '\n\n'.join(made)


def about_table(machine: Mapping[str, Any]) -> str:
  """Makes the table of the machine."""
  versions = ', '.join(f'{k} {v}' for k, v in machine['versions'].items())
  rows = [
    ['device', f'{machine["count"]} x {machine["device"]}'],
    ['versions', versions],
  ]
  if 'flops_per_second' in machine:
    reached = machine['flops_per_second'] / 1e12
    rows.append(['bfloat16 product, TFLOP/s', f'{reached:,.1f}'])
  if 'bytes_per_second' in machine:
    rows.append(['copy, GB/s', f'{machine["bytes_per_second"] / 1e9:,.0f}'])
  return table('machine | ', rows)


def right_table(cases: Mapping[str, Any]) -> str:
  """Makes the table of checks beside the CPU, and what was left out."""
  rows, notes = [], []
  for case, sides in cases.items():
    found = sides['ours'][-1]
    rows += [
      [
        case,
        check['name'],
        scientific(check['difference']),
        f'{check["bound"]:.1e}',
        'yes' if check['holds'] else 'NO',
      ]
      for check in found['checks']
    ]
    notes += [f'- {case}: {note}' for note in found.get('notes', ())]
  made = table('program | what | difference | bound | holds', rows)
  return '\n'.join([made, '', *notes] if notes else [made])


def rate_table(
  part: str, cases: Mapping[str, Any], machine: Mapping[str, Any]
) -> str:
  """Makes the table of one part in which both sides are measured.

  Sides that had unlike batches, as memory was short for one, have no ratio.
  """
  key, unit, digits = RATES[part]
  rows = []
  for case, sides in cases.items():
    rates = {
      side: [each[key] for each in turns if key in each]
      for side, turns in sides.items()
    }
    if not any(rates.values()):
      continue
    row = [case]
    for side in ('ours', 'theirs'):
      values = rates.get(side)
      row.append(
        f'{statistics.median(values):,.{digits}f}' if values else 'not measured'
      )
    alike = len({each.get('rows') for side in sides.values() for each in side})
    row.append(
      ratio(rates.get('ours'), rates.get('theirs')) if alike == 1 else 'unlike'
    )
    for side in ('ours', 'theirs'):
      row.append(details(sides.get(side, ()), machine))
    rows.append(row)
  return table(
    f'{part}, {unit} | ours | theirs | ratio [min, max] | ours | theirs', rows
  )


def ratio(ours: Sequence[float] | None, theirs: Sequence[float] | None) -> str:
  """Formats how many times faster ours is, turn by turn."""
  if not ours or not theirs:
    return ''
  values = [a / b for a, b in zip(ours, theirs, strict=False)]
  return (
    f'{times(statistics.median(values), 2)} '
    f'[{min(values):.2f}, {max(values):.2f}]'
  )


def details(turns: Sequence[Found], machine: Mapping[str, Any]) -> str:
  """Formats what else a side measured: MFU, memory, time to compile."""
  if not turns:
    return ''
  last, said = turns[-1], []
  peak = machine.get('peak_flops_per_second')
  if peak and 'useful_flops_per_second' in last:
    said.append(f'MFU {100 * last["useful_flops_per_second"] / peak:.0f}%')
  if last.get('memory_bytes'):
    said.append(f'{last["memory_bytes"] / 1e9:.1f} GB')
  if 'compile_seconds' in last:
    compiled = max(each['compile_seconds'] for each in turns)
    said.append(f'compiled in {compiled:.0f} s')
  return ', '.join([*said, *last.get('notes', ())])


def race_rows(cases: Mapping[str, Any]) -> list[list[str]]:
  """Makes the rows of the time that each side's RL took to an accuracy."""
  return [
    [
      case,
      side,
      f'{100 * found["accuracy"]:.0f}%',
      f'{found["seconds"]:.0f}',
      f'{found["compile_seconds"]:.0f}' if 'compile_seconds' in found else '',
      str(found['updates']),
      'yes' if found['reached'] else 'no',
    ]
    for case, sides in cases.items()
    for side, turns in sides.items()
    for found in turns[-1:]
    if 'reached' in found
  ]


def roofline_rows(cases: Mapping[str, Any]) -> list[list[str]]:
  """Makes the rows of measured steps beside their predicted bounds."""
  rows = []
  for case, sides in cases.items():
    for found in sides.get('ours', ())[-1:]:
      bounds = found.get('seconds_at_least')
      if bounds:
        by = max(bounds, key=bounds.get)
        measured = found['seconds_per_step']
        rows.append(
          [
            case,
            by,
            ', '.join(f'{k} {1e3 * v:.1f}' for k, v in bounds.items()),
            f'{1e3 * measured:.1f}',
            times(measured / bounds[by], 2),
          ]
        )
  return rows
