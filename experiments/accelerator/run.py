"""What must an accelerator prove? All of it, in ten minutes, on one chip.

    python -m experiments.accelerator.run --workdir /tmp/chip --minutes 10
    python -m experiments.accelerator.run --workdir /tmp/tiny --tiny  # on a CPU

Runs the parts below, the most valuable first, each side in a process of its own
and the two sides in turn. Every case is written to WORKDIR when it is done, and
so are compiled programs: the same command goes on where an earlier one ended. A
case that fails is recorded, and the others are run; the exit code is then 1.

    machine    the chip, and what it reaches in a product and in a copy
    right      every program beside the CPU of the same machine
    training   tokens per second and MFU, beside PyTorch
    scoring    candidates per second, beside transformers
    sampling   tokens per second, beside transformers' generate
    rl         the RL loop, beside TRL's GRPOTrainer

Writes WORKDIR/results.json and prints its tables. `keep.py` takes the results
of an accelerator over into the repository.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from experiments import command_line
from experiments.accelerator.cases import LEFT, write
from experiments.accelerator.results import collect, render
from experiments.runner import ROOT
from prm_jax.runtime.determinism import ask_for_same_bits
from prm_jax.runtime.errors import exit_on_user_error

FAST_TO_COMPILE = (
  '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
)
NO_TIME = 'no time for all cases'
GRACE = 20.0  # seconds that a case may take beyond the time of its part


class Part(NamedTuple):
  """Says how a part is run.

  Attributes:
    sides: module of each side; 'theirs' needs PyTorch.
    rounds: times that each side has its turn.
    weight: share of the time, relative to those of the other parts.
    least: seconds in which a turn may end its first case, to compile it
      included; one that would get less is not begun.
  """

  sides: Mapping[str, str]
  rounds: int
  weight: float
  least: float


def _both(name: str, *numbers: float) -> Part:
  return Part({'ours': name, 'theirs': f'their_{name}'}, *numbers)


# By what the parts took on an H200.
PARTS = {
  'machine': _both('machine', 1, 0.4, 5),
  'right': Part({'ours': 'right'}, 1, 3, 20),
  'training': _both('training', 2, 2.6, 10),
  'scoring': _both('scoring', 2, 1, 8),
  'sampling': _both('sampling', 1, 2, 40),
  'rl': _both('rl', 1, 2, 40),
}


class Turn(NamedTuple):
  """Names one process: a side of a part, and the number of its turn."""

  part: str
  side: str
  round: int


def turns(parts: list[str], tiny: bool, torch: bool) -> list[Turn]:
  """Returns the processes of a run, in order; sides take turns."""
  return [
    Turn(name, side, n)
    for name in parts
    for n in range(1 if tiny else PARTS[name].rounds)
    # The order changes, as a chip may grow warm.
    for side in [*PARTS[name].sides][:: -1 if n % 2 else 1]
    if torch or side == 'ours'
  ]


def shares(left: list[Turn]) -> Iterator[tuple[Turn, float]]:
  """Yields each turn with its share of the time that is left at that point."""
  weights = [
    PARTS[turn.part].weight / sum(other.part == turn.part for other in left)
    for turn in left
  ]
  for i, turn in enumerate(left):
    yield turn, weights[i] / sum(weights[i:])


def environment(workdir: pathlib.Path, tiny: bool) -> dict[str, str]:
  """Returns the variables of every process: compiled programs are kept.

  Tiny programs take longer to compile than to run, so LLVM's optimizations are
  left out.
  """
  caches = {
    'JAX_COMPILATION_CACHE_DIR': str(workdir / 'compiled' / 'jax'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.2',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    'TORCHINDUCTOR_CACHE_DIR': str(workdir / 'compiled' / 'torch'),
    'TRITON_CACHE_DIR': str(workdir / 'compiled' / 'triton'),
  }
  fixed = {
    # Nothing is asked of the hub: weights are random, tokenizers our own.
    'HF_HUB_OFFLINE': '1',
    'TOKENIZERS_PARALLELISM': 'false',
    'PYTHONUNBUFFERED': '1',
    'PYTHONPATH': os.pathsep.join(
      filter(None, [str(ROOT), os.environ.get('PYTHONPATH')])
    ),
  }
  if tiny:
    caches['XLA_FLAGS'] = FAST_TO_COMPILE
  variables = caches | os.environ | fixed
  ask_for_same_bits(variables)  # as `prm_jax.main` does
  return variables


def log_of(turn: Turn, workdir: pathlib.Path) -> pathlib.Path:
  """Returns the file of what a turn says."""
  return workdir / 'logs' / f'{".".join(map(str, turn))}.txt'


def start(
  turn: Turn, args: argparse.Namespace, seconds: float
) -> subprocess.Popen:
  """Starts the process of a turn; what it says goes to a log of the workdir."""
  python = args.torch_python if turn.side == 'theirs' else sys.executable
  module = f'experiments.accelerator.{PARTS[turn.part].sides[turn.side]}'
  command = [
    *(python, '-m', module),
    f'--folder={args.workdir / turn.part}',
    f'--side={turn.side}',
    f'--round={turn.round}',
    f'--seconds={seconds:.0f}',
    *(['--tiny'] * args.tiny),
  ]
  with log_of(turn, args.workdir).open('a') as file:
    return subprocess.Popen(
      command,
      cwd=ROOT,
      env=environment(args.workdir, args.tiny),
      stdout=file,
      stderr=subprocess.STDOUT,
      start_new_session=True,  # so that what it started ends with it
    )


def wait(process: subprocess.Popen, seconds: float, log: pathlib.Path) -> str:
  """Waits for a turn and returns how it ended: '', or what went wrong."""
  try:
    code = process.wait(seconds + GRACE)
  except subprocess.TimeoutExpired:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return f'stopped after {seconds + GRACE:.0f} s'
  if code in (0, LEFT):
    return NO_TIME if code else ''
  lines = log.read_text(errors='replace').strip().splitlines()
  return ': '.join([f'exit code {code}', *lines[-1:]])


def run_turn(
  turn: Turn, args: argparse.Namespace, seconds: float
) -> tuple[Turn, str]:
  """Runs the process of a turn; returns the turn, and how it ended."""
  since = time.monotonic()
  process = start(turn, args, seconds)
  fault = wait(process, seconds, log_of(turn, args.workdir))
  print(
    f'{".".join(map(str, turn))}: {time.monotonic() - since:.0f} of '
    f'{seconds:.0f} s{f" ({fault})" if fault else ""}',
    flush=True,
  )
  return turn, fault


def timed(args: argparse.Namespace) -> Iterator[tuple[Turn, str]]:
  """Runs one turn after another, each for its share of the time."""
  ends = time.monotonic() + 60 * args.minutes
  for turn, share in shares(turns(args.parts, args.tiny, args.torch_python)):
    seconds = (ends - time.monotonic()) * share
    if seconds < PARTS[turn.part].least:
      yield turn, NO_TIME  # what it leaves is the others'
    else:
      yield run_turn(turn, args, seconds)


def side_by_side(args: argparse.Namespace) -> Iterator[tuple[Turn, str]]:
  """Runs parts side by side, as tiny sizes say nothing about speed."""
  waiting = turns(args.parts, args.tiny, args.torch_python)

  def run_part(part: str) -> list[tuple[Turn, str]]:
    own = [turn for turn in waiting if turn.part == part]
    return [run_turn(turn, args, 60 * args.minutes) for turn in own]

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    # The longest first.
    for ended in pool.map(run_part, sorted(args.parts, key=weight)):
      yield from ended


def weight(part: str) -> float:
  """Orders parts by the time that they take, the longest first."""
  return -PARTS[part].weight


def check_size(workdir: pathlib.Path, tiny: bool) -> None:
  """Raises SystemExit where a folder has cases of the other size."""
  path = workdir / 'size.json'
  known = json.loads(path.read_text())['tiny'] if path.exists() else tiny
  if known != tiny:
    raise SystemExit(
      f'error: {workdir} has cases {"with" if known else "without"} --tiny; '
      'name another --workdir'
    )
  workdir.mkdir(parents=True, exist_ok=True)
  write(path, {'tiny': tiny})


def run(args: argparse.Namespace) -> dict[str, Any]:
  """Runs all turns; returns the results."""
  check_size(args.workdir, args.tiny)
  ended: dict[str, str] = {}
  left = []
  for turn, fault in side_by_side(args) if args.tiny else timed(args):
    name = '.'.join(map(str, turn))
    if fault == NO_TIME:
      left.append(name)
    elif fault:
      ended[name] = fault
    found = {
      **collect(args.workdir, ended),
      'left': left,
      'minutes': args.minutes,
      'tiny': args.tiny,
    }
    write(args.workdir / 'results.json', found)
  return found


def find_torch(given: str | None) -> str | None:
  """Returns the Python that has PyTorch and transformers, if there is one."""
  python = given or sys.executable
  fault = command_line.fault_of_python(python, 'torch', 'transformers')
  if fault and given:
    raise SystemExit(f'error: --torch-python={given}: {fault}')
  return None if fault else python


@exit_on_user_error()
def main() -> int:
  parser = command_line.make_parser(
    __doc__, __file__, '--workdir', output=False
  )
  parser.add_argument(
    '--minutes', type=float, default=10.0, help='time for all parts together'
  )
  parser.add_argument(
    '--parts', nargs='+', choices=PARTS, default=[*PARTS], metavar='PART'
  )
  parser.add_argument(
    '--tiny', action='store_true', help='sizes of a test, for a CPU'
  )
  parser.add_argument(
    '--torch-python',
    help='Python of an environment with torch, transformers and trl; by '
    'default this one, and without them our side alone is measured',
  )
  args = command_line.parse(parser)
  args.workdir = args.workdir.absolute()
  (args.workdir / 'logs').mkdir(parents=True, exist_ok=True)
  platforms = os.environ.get('JAX_PLATFORMS', '')
  if platforms and 'cpu' not in platforms.split(','):
    parser.error(
      f'JAX_PLATFORMS={platforms}: add ,cpu, as programs are compared with '
      'those of the CPU'
    )
  args.torch_python = find_torch(args.torch_python)
  if not args.torch_python:
    print('no PyTorch here: the other side is left out (--torch-python)')
  found = run(args)
  print(render(found))
  failed = found['failed']
  for name, fault in failed.items():
    print(f'failed: {name}: {fault}')
  if failed:
    print(f'what they said is in {args.workdir / "logs"}')
  if found['left']:
    left = ', '.join(found['left'])
    print(f'{NO_TIME} of {left}; the same command goes on')
  return bool(failed)


if __name__ == '__main__':
  sys.exit(main())
