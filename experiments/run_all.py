"""Every experiment again, at small size, beside what is committed.

    pip install -e '.[experiments]'
    python experiments/run_all.py --budget quick --workdir /tmp/again

Runs each experiment's own command for its first seed, of the long ones for some
arms or problems only, and compares what it finds with the results.json that is
committed: every number that has a 95% interval in both, at the same place. Two
agree where their intervals meet. What is there already is not made again.
Writes WORKDIR/again.json; exit code 1 where a number does not come out again.
`--budget quickest` is a part of one experiment.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prm_jax import manifest

HERE = pathlib.Path(__file__).resolve().parent
VALUES = ('value', 'mean', 'f1')  # what an interval `ci95` is of
Path = tuple[str, ...]


class Again(NamedTuple):
  """How an experiment is repeated.

  Attributes:
    arguments: of its run.py, after --workdir and --output.
    minutes: it takes on two cores, about.
    folder: below the workdir; of several that share their runs.
    data: whether it reads the files below PRM_JAX_DATA.
  """

  arguments: tuple[str, ...]
  minutes: float
  folder: str = ''
  data: bool = False


FIRST = ('--seeds', '0')
QUICK = {
  'after_first_error': Again(FIRST, 2, 'ablations'),
  'labelled_chains': Again(FIRST, 4, 'ablations'),
  'prm_and_orm': Again(FIRST, 1, 'ablations'),
  'chain_length': Again(FIRST, 4, 'ablations'),
  'lm_loss': Again(FIRST, 5, 'ablations'),
  'out_of_distribution': Again(FIRST, 2, 'ablations'),
  'model_sizes': Again(FIRST, 4, 'ablations'),
  'prm_vs_orm': Again(FIRST, 8),
  'label_sources': Again((*FIRST, '--labels', 'verifier', 'corruption'), 5),
  'test_time_compute': Again((*FIRST, '--operations', '3'), 8),
  'rl_process_vs_outcome': Again(
    (
      *FIRST,
      *('--operations', '5', '--rates', '0.0002'),
      *('--arms', 'outcome', 'outcome + PRM'),
    ),
    6,
  ),
  'reward_hacking': Again(
    (*FIRST, '--forms', 'mean', 'the same, and outcome'), 6
  ),
  'human_labels': Again(('--problems', '60'), 5, data=True),
}
NOT_REPEATED = {
  'neutral_labels': 'its human labels want an hour',
  'smollm2_prm': 'its backbone wants an hour, and weights of 140 MB',
  'scaling': 'compiles for TPUs, which has no interval: see its own command',
  'speed': 'is of the machine it was measured on: see its own commands',
}
QUICKEST = {
  'after_first_error': Again(
    (*FIRST, '--arms', 'mask', 'keep'), 1.5, 'ablations'
  )
}
BUDGETS = {'quick': QUICK, 'quickest': QUICKEST}


def intervals(
  document: Any, path: Path = ()
) -> Iterator[tuple[Path, float, tuple[float, float]]]:
  """(where, number, its interval) of all that has one in a results.json."""
  if isinstance(document, list):
    for k, part in enumerate(document):
      yield from intervals(part, (*path, str(k)))
  if not isinstance(document, Mapping):
    return
  if 'seeds_end' in document:  # an arm of RL: its first seed, where it ends
    yield from _first_seed(document, (*path, 'first seed'))
    return
  value = next((document[k] for k in VALUES if k in document), None)
  bounds = document.get('ci95')
  if isinstance(value, list) and bounds:
    for k, (each, ends) in enumerate(zip(value, bounds, strict=True)):
      yield (*path, str(k)), each, tuple(ends)
  elif value is not None and bounds:
    yield path, value, tuple(bounds)
  for name, part in document.items():
    yield from intervals(part, (*path, name))


def _first_seed(
  arm: Mapping[str, Any], path: Path
) -> Iterator[tuple[Path, float, tuple[float, float]]]:
  """Its interval is that of all seeds, as wide as one of them makes it."""
  low, high = (arm['accuracy'][name][-1] for name in ('low', 'high'))
  half = (high - low) / 2 * len(arm['seeds_end']) ** 0.5
  value = arm['seeds_end'][0]
  yield path, value, (value - half, value + half)


def compare(known: Any, found: Any) -> list[dict[str, Any]]:
  """Numbers that both have, and whether they agree."""
  before = {path: (value, ends) for path, value, ends in intervals(known)}
  rows = []
  for path, value, (low, high) in intervals(found):
    if path in before:
      was, (was_low, was_high) = before[path]
      rows.append(
        {
          'where': ' / '.join(path),
          'committed': [was, was_low, was_high],
          'again': [value, low, high],
          'agrees': low <= was_high and was_low <= high,
        }
      )
  return rows


def repeat(name: str, again: Again, workdir: pathlib.Path) -> dict[str, Any]:
  """Runs one experiment and compares it."""
  if not (HERE / name / 'results.json').exists():
    return {'failed': 'no results.json is committed', 'minutes': 0.0}
  began = time.monotonic()
  output = workdir / 'results' / name
  output.mkdir(parents=True, exist_ok=True)
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      f'experiments.{name}.run',
      f'--workdir={workdir / (again.folder or name)}',
      f'--output={output}',
      *again.arguments,
    ],
    cwd=HERE.parent,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
  )
  minutes = (time.monotonic() - began) / 60
  if done.returncode:
    return {'failed': done.stdout.strip()[-2000:], 'minutes': minutes}
  known, found = (
    json.loads((folder / 'results.json').read_text())
    for folder in (HERE / name, output)
  )
  return {'minutes': minutes, 'numbers': compare(known, found)}


def told(name: str, result: Mapping[str, Any]) -> str:
  """A line on what came of an experiment, and one for each disagreement."""
  minutes = f'{result["minutes"]:.1f} minutes'
  if 'failed' in result:
    return f'{name}: FAILED after {minutes}:\n{result["failed"]}'
  rows = result['numbers']
  differ = [row for row in rows if not row['agrees']]
  lines = [f'{name}: {len(rows) - len(differ)} of {len(rows)} agree, {minutes}']
  for row in differ:
    was, now = (
      f'{value:.3f} [{low:.3f}, {high:.3f}]'
      for value, low, high in (row['committed'], row['again'])
    )
    lines.append(f'  {row["where"]}: committed {was}, now {now}')
  return '\n'.join(lines)


def is_good(result: Mapping[str, Any]) -> bool:
  """Something was compared, and all of it agrees."""
  rows = result.get('numbers', [])
  return bool(rows) and all(row['agrees'] for row in rows)


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--budget', choices=BUDGETS, default='quick')
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--only', nargs='+', choices=QUICK, default=tuple(QUICK))
  args = parser.parse_args()
  if not importlib.util.find_spec('matplotlib'):
    sys.exit("error: matplotlib is missing: pip install -e '.[experiments]'")
  wanted = {
    name: again
    for name, again in BUDGETS[args.budget].items()
    if name in args.only
  }
  if not wanted:
    parser.error(f'--budget {args.budget} has none of these')
  minutes = sum(again.minutes for again in wanted.values())
  print(f'{len(wanted)} experiments, about {minutes:.0f} minutes', flush=True)
  found = {}
  for name, again in wanted.items():
    if again.data and not os.environ.get('PRM_JAX_DATA'):
      print(f'{name}: left out, PRM_JAX_DATA names no folder', flush=True)
      continue
    found[name] = repeat(name, again, args.workdir.absolute())
    print(told(name, found[name]), flush=True)
    manifest.write_json(args.workdir / 'again.json', found)
  for name, why in NOT_REPEATED.items() if wanted == QUICK else ():
    print(f'{name}: not repeated; {why}')
  good = sum(map(is_good, found.values()))
  spent = sum(result['minutes'] for result in found.values())
  print(f'{good} of {len(found)} come out again, {spent:.0f} minutes')
  if not found or good < len(found):
    sys.exit(1)


if __name__ == '__main__':
  main()
