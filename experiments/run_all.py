"""Repeats the experiments at small size and compares them with what we found.

    pip install -e '.[experiments]'
    python experiments/run_all.py --budget quick --workdir /tmp/again

Runs each experiment's own command for its first seed, for the long ones with
some arms or problems only. Each accuracy, F1 and reward with a 95% interval of
that seed is compared with the committed results.json; two numbers agree where
their intervals meet. The same command resumes what an earlier one left.
Experiments run side by side, each on a core of its own; those that share runs
run one after another. Writes WORKDIR/again.json; the exit code is 1 where a
number does not agree. `--budget quickest` repeats a part of one experiment;
`--record` keeps again.json and the table of AGAIN.md beside this file.
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# As a script this file would not find the package `experiments`.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from experiments import command_line
from experiments.compare import agreement, compare, disagreements, is_good
from experiments.tables import table
from prm_jax.data.datasets import DATA_VARIABLE
from prm_jax.report import readme_table
from prm_jax.runtime import manifest
from prm_jax.runtime.workdir import write_json

HERE = pathlib.Path(__file__).resolve().parent


class Repetition(NamedTuple):
  """How an experiment is repeated.

  Attributes:
    arguments: arguments of its run.py, after --workdir and --output.
    folder: folder of its runs, below the workdir; '' for one of its own.
    data: whether it reads the data files of PRM_JAX_DATA.
  """

  arguments: tuple[str, ...]
  folder: str = ''
  data: bool = False


FIRST = ('--seeds', str(command_line.SEEDS[0]))
# Those that share a folder of runs are one lane; lanes begin in this order, the
# longest first, so that all cores are done at about the same time.
QUICK = {
  'after_first_error': Repetition(
    (*FIRST, '--arms', 'mask', 'bad'), 'ablations'
  ),
  'labelled_chains': Repetition((*FIRST, '--arms', '82', '410'), 'ablations'),
  'prm_and_orm': Repetition(FIRST, 'ablations'),
  'chain_length': Repetition(
    (*FIRST, '--arms', '2 steps', '5 steps'), 'ablations'
  ),
  'lm_loss': Repetition(
    (
      *FIRST,
      '--arms',
      'from scratch, weight 0',
      'from scratch, weight 1',
      'from the policy, weight 1',
    ),
    'ablations',
  ),
  'out_of_distribution': Repetition(FIRST, 'ablations'),
  'model_sizes': Repetition(FIRST, 'ablations'),
  'test_time_compute': Repetition((*FIRST, '--operations', '3')),
  'prm_vs_orm': Repetition(FIRST),
  'reward_hacking': Repetition(
    (*FIRST, '--forms', 'mean', 'the same, and outcome')
  ),
  'human_labels': Repetition(('--problems', '60'), data=True),
  'label_sources': Repetition((*FIRST, '--labels', 'verifier', 'corruption')),
}
NOT_REPEATED = {
  'accelerator': 'its numbers hold for the chip that measured them',
  'rl_process_vs_outcome': 'one length of one seed takes an hour',
  'evaluation_traps': 'most of it is exact, or committed numbers of others',
  'neutral_labels': 'it takes an hour on human labels',
  'smollm2_prm': 'it takes hours and weights of 98 MB',
  'thinking_verifiers': 'it takes hours',
  'real_policy': 'it takes hours and weights of 98 MB',
  'rl_words': 'it takes hours and weights of 98 MB',
  'published': 'it needs weights of seven models of up to 8B parameters',
  'scaling': 'it compiles for TPUs, and its numbers have no intervals',
  'speed': 'its numbers hold for the machine that measured them',
  'serving': 'its numbers hold for the machine that measured them',
  'answer_equality': 'tests/data/verify/test_answer_pairs.py repeats it',
}
QUICKEST = {
  'after_first_error': Repetition((*FIRST, '--arms', 'mask'), 'ablations')
}
COMMAND = (
  'PRM_JAX_DATA=DIR python experiments/run_all.py --budget quick '
  '--workdir DIR --record'
)
BUDGETS = {'quick': QUICK, 'quickest': QUICKEST}


def repeat(
  name: str, repetition: Repetition, workdir: pathlib.Path
) -> dict[str, Any]:
  """Runs one experiment and compares what it finds with what is committed."""
  output = workdir / 'results' / name
  begun = output.exists()
  output.mkdir(parents=True, exist_ok=True)
  began = time.monotonic()
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      f'experiments.{name}.run',
      f'--workdir={workdir / (repetition.folder or name)}',
      f'--output={output}',
      *repetition.arguments,
    ],
    cwd=HERE.parent,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
  )
  # How long an earlier command ran before this one is not known.
  minutes = None if begun else (time.monotonic() - began) / 60
  result = {'arguments': list(repetition.arguments), 'minutes': minutes}
  if done.returncode:
    return result | {'failed': done.stdout.strip()[-2000:]}
  known, found = (
    json.loads((folder / 'results.json').read_text())
    for folder in (HERE / name, output)
  )
  return result | {'numbers': compare(known, found)}


def side_by_side(
  wanted: Mapping[str, Repetition],
  function: Callable[[str, Repetition], None],
) -> None:
  """Calls a function for each experiment, on a thread for each core.

  What a thread starts has that core, or its share of the cores, for itself.
  Experiments that share a folder run one after another, so that each finds what
  those before it made.
  """
  lanes: dict[str, list[str]] = {}
  for name, repetition in wanted.items():
    lanes.setdefault(repetition.folder or name, []).append(name)
  affinity = getattr(os, 'sched_getaffinity', lambda _: range(os.cpu_count()))
  cores = sorted(affinity(0))
  workers = min(len(lanes), len(cores))
  shares: queue.Queue[list[int]] = queue.Queue()
  for worker in range(workers):
    shares.put(cores[worker::workers])

  def take_cores() -> None:
    share = shares.get()
    if hasattr(os, 'sched_setaffinity'):
      # The affinity of this thread, which child processes inherit.
      os.sched_setaffinity(0, share)

  def run(names: Sequence[str]) -> None:
    for name in names:
      function(name, wanted[name])

  with concurrent.futures.ThreadPoolExecutor(
    workers, initializer=take_cores
  ) as pool:
    list(pool.map(run, lanes.values()))


def summary(name: str, result: Mapping[str, Any]) -> str:
  """Says how an experiment ended, with a line for each disagreement."""
  minutes = result['minutes']
  took = 'begun earlier' if minutes is None else f'{minutes:.1f} minutes'
  if 'failed' in result:
    return f'{name}: FAILED, {took}:\n{result["failed"]}'
  rows = result['numbers']
  line = f'{name}: {agreement(rows)} agree, {took}'
  return '\n  '.join([line, *disagreements(rows)])


def render(
  record: Mapping[str, Any], not_repeated: Mapping[str, str] = NOT_REPEATED
) -> str:
  """Makes the table of AGAIN.md, and the disagreements below it.

  Args:
    not_repeated: why some experiments are not repeated, by name.
  """
  rows, lines = [], []
  for name, result in record['experiments'].items():
    numbers = result['numbers']
    arguments = f'`{shlex.join(result["arguments"])}`'
    minutes = f'{result["minutes"]:.1f}'
    rows.append([f'[{name}]({name})', arguments, agreement(numbers), minutes])
    lines += [f'- {name}, {line}' for line in disagreements(numbers)]
  rows.append(['all of them', '', '', f'{record["minutes"]:.0f}'])
  for name, why in not_repeated.items():
    rows.append([f'[{name}]({name})', f'no: {why}', '', ''])
  heads = [
    'experiment',
    'repeated',
    'numbers that agree',
    f'minutes, 1 of {record["cores"]} cores',
  ]
  return '\n'.join([table(heads, rows), '', *(lines or ['All numbers agree.'])])


def keep(record: Mapping[str, Any]) -> None:
  """Writes the record and its table beside this file.

  Raises:
    SystemExit: an experiment gave no numbers, or not all were repeated by one
      command.
  """
  known = record['experiments']
  found = {name: known[name] for name in QUICK if name in known}
  for name in QUICK:
    if not found.get(name, {}).get('numbers'):
      sys.exit(f'error: not recorded: {name} gave no numbers')
  if record['minutes'] is None:
    sys.exit(
      'error: not recorded: not repeated by one command; use a new --workdir'
    )
  record = record | {'experiments': found}  # in the order of QUICK
  record = {'command': COMMAND, **record}
  write_json(HERE / 'again.json', record)
  readme_table.fill(HERE / 'AGAIN.md', render(record))


def earlier(path: pathlib.Path) -> dict[str, Any]:
  """Reads what earlier commands found in this workdir.

  Raises:
    SystemExit: they ran another commit.
  """
  new = {
    'git_commit': manifest.git_commit(),
    'cores': os.cpu_count(),
    'minutes': None,  # of all experiments; None where a command resumes
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
  wanted: Mapping[str, Repetition], workdir: pathlib.Path
) -> dict[str, Any]:
  """Repeats what earlier commands did not; prints and keeps what it finds."""
  path = workdir / 'again.json'
  record = earlier(path)
  found = record['experiments']
  left = {}
  for name, repetition in wanted.items():
    known = found.get(name, {})
    if 'numbers' in known and known['arguments'] == [*repetition.arguments]:
      print(summary(name, known), flush=True)
    else:
      left[name] = repetition
  if not left:
    return record
  whole, began = not found, time.monotonic()
  record['minutes'] = None
  writing = threading.Lock()

  def repeat_one(name: str, repetition: Repetition) -> None:
    result = repeat(name, repetition, workdir)
    with writing:
      found[name] = result
      write_json(path, record)
    print(summary(name, result), flush=True)

  side_by_side(left, repeat_one)
  if whole and all(row['minutes'] is not None for row in found.values()):
    record['minutes'] = (time.monotonic() - began) / 60
    write_json(path, record)
  return record


def choose(args: argparse.Namespace) -> dict[str, Repetition]:
  """Returns the experiments to repeat, without those whose data is missing."""
  data = os.environ.get(DATA_VARIABLE)
  wanted = {}
  for name, repetition in BUDGETS[args.budget].items():
    if name not in args.only:
      continue
    if repetition.data and not data:
      print(f'{name}: left out, as {DATA_VARIABLE} names no folder', flush=True)
    else:
      wanted[name] = repetition
  return wanted


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--workdir', **command_line.ARGUMENTS['--workdir'])
  parser.add_argument('--budget', choices=BUDGETS, default='quick')
  parser.add_argument('--only', nargs='+', choices=QUICK, default=tuple(QUICK))
  parser.add_argument(
    '--record', action='store_true', help='keep again.json and AGAIN.md'
  )
  args = parser.parse_args()
  if not importlib.util.find_spec('matplotlib'):
    sys.exit("error: matplotlib is missing: pip install -e '.[experiments]'")
  wanted = choose(args)
  if not wanted:
    parser.error(f'--budget {args.budget} has none of these')
  if args.record and wanted != QUICK:
    parser.error(
      f'--record needs the whole quick budget, and {DATA_VARIABLE} set'
    )
  record = repeat_all(wanted, args.workdir.absolute())
  found = record['experiments']
  good = sum(is_good(found[name]) for name in wanted)
  for name, why in NOT_REPEATED.items() if args.budget == 'quick' else ():
    print(f'{name}: not repeated: {why}')
  print(f'{good} of {len(wanted)} experiments agree')
  if args.record:
    keep(record)
  if good < len(wanted) or not good:
    sys.exit(1)


if __name__ == '__main__':
  main()
