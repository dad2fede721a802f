"""What the comparisons of speed share: two sides in turn, rows that are kept.

Each side runs in a process of its own, ours in this Python and theirs in that
of `--parity-python`, and prints one line of JSON at its end.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import command_line
from experiments.runner import ROOT
from prm_jax.runtime.workdir import write_json

HERE = pathlib.Path(__file__).parent
CLOCKS = {'wall': time.perf_counter, 'cpu': time.process_time}
# Names the clock to the processes of both sides.
CLOCK_VARIABLE = 'SPEED_CLOCK'

Row = dict[str, Any]


def cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0))


def ours(module: str, *arguments: str) -> list[str]:
  """Returns the command of our side, a module of this folder."""
  return [sys.executable, '-m', f'experiments.speed.{module}', *arguments]


def theirs(python: str, module: str, *arguments: str) -> list[str]:
  """Returns the command of the other side, a module of this folder."""
  return [python, '-m', f'experiments.speed.{module}', *arguments]


def measure(command: Sequence[str], **variables: str) -> dict[str, Any]:
  """Runs one side and returns what its last line says.

  Args:
    variables: what to add to its environment.

  Raises:
    SystemExit: the side failed.
  """
  done = subprocess.run(
    command,
    cwd=ROOT,
    env=os.environ | variables,
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    name = ' '.join(command[:4])
    sys.exit(f'error: {name} failed:\n{done.stderr[-3000:]}')
  return json.loads(done.stdout.splitlines()[-1])


def spread(values: Sequence[float], digits: int = 2) -> str:
  """Formats the median of some rounds, and their smallest and largest."""
  low, middle, high = min(values), statistics.median(values), max(values)
  return f'{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]'


def keep_row(
  row: Row,
  order: Callable[[Row], Any],
  name: str,
  command: str,
  render: Callable[[Mapping[str, Any]], str],
) -> None:
  """Puts a row among those that earlier commands measured.

  Args:
    order: where a row stands; a new row replaces the one that stands there.
    name: name of the JSON file; the README has the same name in capitals.
    command: the command that measures all rows.
    render: makes the table.
  """
  path = HERE / f'{name}.json'
  rows = json.loads(path.read_text())['rows'] if path.exists() else []
  rows = [other for other in rows if order(other) != order(row)] + [row]
  document = {'command': command, 'rows': sorted(rows, key=order)}
  write_json(path, document)  # before the table: it took minutes to measure
  command_line.write(
    HERE, document, render(document), path.name, f'{name.upper()}.md'
  )
