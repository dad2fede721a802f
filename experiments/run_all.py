"""Every experiment again, at small size, beside what is committed.

    pip install -e '.[experiments]'
    python experiments/run_all.py --budget quick --workdir /tmp/again

Runs each experiment's own command for its first seed, of the long ones for some
arms or problems only, and compares what it finds with the results.json that is
committed: each accuracy, F1 and reward that has a 95% interval of that seed in
both, at the same place. Two agree where their intervals meet. The same command
goes on where an earlier one stopped. Experiments run side by side, each on a
core of its own, those that share runs one after another. Writes
WORKDIR/again.json; exit code 1 where a number does not come out again.
`--budget quickest` is a part of one experiment; `--record` keeps the quick
budget's again.json, and the table of AGAIN.md, beside this file.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prm_jax.report import readme_table
from prm_jax.runtime import manifest

HERE = pathlib.Path(__file__).resolve().parent
VALUES = ('value', 'mean', 'f1')  # what an interval `ci95` is of
POOLED = ('differences', 'times_less')  # of all seeds, and of no single one
Path = tuple[str, ...]


class Again(NamedTuple):
  """How an experiment is repeated.

  Attributes:
    arguments: of its run.py, after --workdir and --output.
    folder: below the workdir; of several that share their runs.
    data: whether it reads the files below PRM_JAX_DATA.
  """

  arguments: tuple[str, ...]
  folder: str = ''
  data: bool = False


FIRST = ('--seeds', '0')
QUICK = {
  'after_first_error': Again((*FIRST, '--arms', 'mask', 'bad'), 'ablations'),
  'labelled_chains': Again(FIRST, 'ablations'),
  'prm_and_orm': Again(FIRST, 'ablations'),
  'chain_length': Again((*FIRST, '--arms', '2 steps', '5 steps'), 'ablations'),
  'lm_loss': Again(
    (
      *FIRST,
      '--arms',
      'from scratch, weight 0',
      'from scratch, weight 1',
      'from the policy, weight 1',
    ),
    'ablations',
  ),
  'out_of_distribution': Again(FIRST, 'ablations'),
  'model_sizes': Again(FIRST, 'ablations'),
  'prm_vs_orm': Again(FIRST),
  'label_sources': Again((*FIRST, '--labels', 'verifier', 'corruption')),
  'test_time_compute': Again((*FIRST, '--operations', '3')),
  'rl_process_vs_outcome': Again(
    (
      *FIRST,
      *('--operations', '5', '--rates', '0.0002'),
      *('--arms', 'outcome', 'outcome + PRM'),
    )
  ),
  'reward_hacking': Again((*FIRST, '--forms', 'mean', 'the same, and outcome')),
  'human_labels': Again(('--problems', '60'), data=True),
}
NOT_REPEATED = {
  'neutral_labels': 'its human labels want an hour',
  'smollm2_prm': 'its backbone wants an hour, and weights of 140 MB',
  'scaling': 'compiles for TPUs, which has no interval: see its own command',
  'speed': 'is of the machine it was measured on: see its own commands',
  'answer_equality': 'tests/data/verify/test_answer_pairs.py repeats it',
}
QUICKEST = {
  'after_first_error': Again((*FIRST, '--arms', 'mask', 'keep'), 'ablations')
}
COMMAND = (
  'PRM_JAX_DATA=DIR python experiments/run_all.py --budget quick '
  '--workdir DIR --record'
)
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
  if 'seeds_end' in document:  # an arm of RL
    ends = (document['accuracy'][name][-1] for name in ('low', 'high'))
    yield (*path, 'first seed'), *_first_seed(document['seeds_end'], *ends)
    return
  if 'accuracy' in document and 'seeds' in document:  # a search
    ends = document['accuracy']['ci95']
    yield (*path, 'first seed'), *_first_seed(document['seeds'], *ends)
    return
  value = next((document[k] for k in VALUES if k in document), None)
  bounds = document.get('ci95')
  if isinstance(value, list) and bounds:
    for k, (each, ends) in enumerate(zip(value, bounds, strict=True)):
      yield (*path, str(k)), each, tuple(ends)
  elif value is not None and bounds:
    yield path, value, tuple(bounds)
  for name, part in document.items():
    if name not in POOLED:
      yield from intervals(part, (*path, name))


def _first_seed(
  seeds: Sequence[float], low: float, high: float
) -> tuple[float, tuple[float, float]]:
  """Its interval is that of all seeds, as wide as one of them makes it."""
  half = (high - low) / 2 * len(seeds) ** 0.5
  return seeds[0], (seeds[0] - half, seeds[0] + half)


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
  output = workdir / 'results' / name
  begun = output.exists()
  output.mkdir(parents=True, exist_ok=True)
  began = time.monotonic()
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
  # Of one that goes on nobody knows how long it took.
  minutes = None if begun else (time.monotonic() - began) / 60
  result = {'arguments': list(again.arguments), 'minutes': minutes}
  if done.returncode:
    return result | {'failed': done.stdout.strip()[-2000:]}
  known, found = (
    json.loads((folder / 'results.json').read_text())
    for folder in (HERE / name, output)
  )
  return result | {'numbers': compare(known, found)}


def side_by_side(
  wanted: Mapping[str, Again],
  repeated: Callable[[str, Again], None],
) -> None:
  """Calls a function for each experiment, on a thread for each core.

  What a thread starts has that core, or its share of them, for itself. Of
  experiments that share a folder each finds there what those before it made.
  """
  lanes: dict[str, list[str]] = {}
  for name, again in wanted.items():
    lanes.setdefault(again.folder or name, []).append(name)
  affinity = getattr(os, 'sched_getaffinity', lambda _: range(os.cpu_count()))
  cores = sorted(affinity(0))
  workers = min(len(lanes), len(cores))
  shares: queue.Queue[list[int]] = queue.Queue()
  for worker in range(workers):
    shares.put(cores[worker::workers])

  def take_cores() -> None:
    share = shares.get()
    if hasattr(os, 'sched_setaffinity'):
      os.sched_setaffinity(0, share)  # of this thread; a child inherits it

  def run(names: Sequence[str]) -> None:
    for name in names:
      repeated(name, wanted[name])

  with concurrent.futures.ThreadPoolExecutor(
    workers, initializer=take_cores
  ) as pool:
    list(pool.map(run, lanes.values()))


def differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
  """A line on each number that does not come out again."""
  lines = []
  for row in rows:
    if not row['agrees']:
      was, now = (
        f'{value:.3f} [{low:.3f}, {high:.3f}]'
        for value, low, high in (row['committed'], row['again'])
      )
      lines.append(f'{row["where"]}: committed {was}, now {now}')
  return lines


def agreeing(rows: Sequence[Mapping[str, Any]]) -> str:
  return f'{sum(row["agrees"] for row in rows)} of {len(rows)}'


def told(name: str, result: Mapping[str, Any]) -> str:
  """A line on what came of an experiment, and one for each disagreement."""
  minutes = result['minutes']
  took = 'begun before' if minutes is None else f'{minutes:.1f} minutes'
  if 'failed' in result:
    return f'{name}: FAILED, {took}:\n{result["failed"]}'
  rows = result['numbers']
  line = f'{name}: {agreeing(rows)} agree, {took}'
  return '\n  '.join([line, *differing(rows)])


def is_good(result: Mapping[str, Any]) -> bool:
  """Something was compared, and all of it agrees."""
  rows = result.get('numbers', [])
  return bool(rows) and all(row['agrees'] for row in rows)


def render(record: Mapping[str, Any]) -> str:
  """The table of AGAIN.md, Markdown."""
  cores = record['cores']
  lines = [
    f'| experiment | repeated | numbers that agree | minutes, 1 of {cores} '
    'cores |',
    '| --- | --- | --- | --- |',
  ]
  differ, results = [], record['experiments']
  for name, result in results.items():
    lines.append(
      f'| [{name}]({name}) | `{shlex.join(result["arguments"])}` | '
      f'{agreeing(result["numbers"])} | {result["minutes"]:.1f} |'
    )
    differ += [f'- {name}, {line}' for line in differing(result['numbers'])]
  lines.append(f'| all of them | | | {record["minutes"]:.0f} |')
  for name, why in record['not_repeated'].items():
    lines.append(f'| [{name}]({name}) | no: {why} | | |')
  return '\n'.join([*lines, '', *(differ or ['All numbers agree.'])])


def keep(record: Mapping[str, Any]) -> None:
  """Beside this file, where each experiment was repeated from its beginning."""
  known = record['experiments']
  found = {name: known[name] for name in QUICK if name in known}
  for name in QUICK:
    if not found.get(name, {}).get('numbers'):
      sys.exit(f'error: not recorded: {name} gave no numbers')
  if record['minutes'] is None:
    sys.exit('error: not recorded: not repeated in one go; use a new --workdir')
  record = record | {'experiments': found}  # in this order
  record = {'command': COMMAND, **record, 'not_repeated': NOT_REPEATED}
  manifest.write_json(HERE / 'again.json', record)
  readme_table.fill(HERE / 'AGAIN.md', render(record))


def earlier(path: pathlib.Path) -> dict[str, Any]:
  """What earlier commands found in this workdir."""
  new = {
    'git_commit': manifest.git_commit(),
    'cores': os.cpu_count(),
    'minutes': None,  # of all; unknown where a command goes on
    'experiments': {},
  }
  if not path.exists():
    return new
  record = json.loads(path.read_text())
  if record.get('git_commit') != new['git_commit']:
    sys.exit(
      f'error: {path} is of commit {record.get("git_commit")}, not of '
      f'{new["git_commit"]}; use a new --workdir'
    )
  return record


def repeat_all(
  wanted: Mapping[str, Again], workdir: pathlib.Path
) -> dict[str, Any]:
  """Repeats what an earlier command did not; tells and keeps what is found."""
  path = workdir / 'again.json'
  record = earlier(path)
  found = record['experiments']
  left = {}
  for name, again in wanted.items():
    known = found.get(name, {})
    if 'numbers' in known and known['arguments'] == list(again.arguments):
      print(told(name, known), flush=True)
    else:
      left[name] = again
  if not left:
    return record
  whole, began = not found, time.monotonic()
  record['minutes'] = None
  writing = threading.Lock()

  def repeated(name: str, again: Again) -> None:
    result = repeat(name, again, workdir)
    with writing:
      found[name] = result
      manifest.write_json(path, record)
    print(told(name, result), flush=True)

  side_by_side(left, repeated)
  if whole and all(row['minutes'] is not None for row in found.values()):
    record['minutes'] = (time.monotonic() - began) / 60
    manifest.write_json(path, record)
  return record


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--budget', choices=BUDGETS, default='quick')
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--only', nargs='+', choices=QUICK, default=tuple(QUICK))
  parser.add_argument('--record', action='store_true')
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
  if args.record and wanted != QUICK:
    parser.error('--record: of the whole quick budget only')
  if args.record and not os.environ.get('PRM_JAX_DATA'):
    parser.error('--record: PRM_JAX_DATA names no folder')
  if not os.environ.get('PRM_JAX_DATA'):
    for name in [name for name, again in wanted.items() if again.data]:
      del wanted[name]
      print(f'{name}: left out, PRM_JAX_DATA names no folder', flush=True)
  record = repeat_all(wanted, args.workdir.absolute())
  found = record['experiments']
  good = sum(is_good(found[name]) for name in wanted)
  for name, why in NOT_REPEATED.items() if args.budget == 'quick' else ():
    print(f'{name}: not repeated; {why}')
  print(f'{good} of {len(wanted)} come out again')
  if args.record:
    keep(record)
  if good < len(wanted) or not good:
    sys.exit(1)


if __name__ == '__main__':
  main()
