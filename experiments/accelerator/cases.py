"""Runs the cases of one side, and writes each result as soon as it is there.

Both sides of every part use this module, ours and PyTorch's, so it imports
nothing but the standard library.

    DIR/PART/CASE.SIDE.ROUND.json    what was measured
    DIR/PART/CASE.SIDE.ROUND.failed  why it was not
"""

import argparse
import functools
import json
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

LEFT = 3  # exit code of a side whose time was over before its last case
Case = Callable[[], Mapping[str, Any]]


class Setup(NamedTuple):
  """Says how the cases of one side are run.

  Attributes:
    folder: folder of the part.
    side: 'ours' or 'theirs'.
    round: number of the turn; both sides are measured in turn.
    ends: `time.monotonic` after which no case is begun.
    tiny: whether sizes are those of a test.
  """

  folder: pathlib.Path
  side: str
  round: int
  ends: float
  tiny: bool

  def path(self, case: str, ending: str) -> pathlib.Path:
    """Returns the file of a case."""
    return self.folder / f'{case}.{self.side}.{self.round}.{ending}'


def read_arguments() -> Setup:
  """Reads what `run.py` says on the command line of a side."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--folder', type=pathlib.Path, required=True)
  parser.add_argument('--side', required=True)
  parser.add_argument('--round', type=int, default=0)
  parser.add_argument('--seconds', type=float, default=3600.0)
  parser.add_argument('--tiny', action='store_true')
  args = parser.parse_args()
  ends = time.monotonic() + args.seconds
  return Setup(args.folder, args.side, args.round, ends, args.tiny)


def measure_all(
  measure: Callable[[Any], Mapping[str, Any]],
  shapes: Callable[[bool], Mapping[str, Any]],
) -> None:
  """Is the main function of a side: measures each of the shapes.

  Args:
    shapes: takes whether they are tiny, and returns them by name.
  """
  setup = read_arguments()
  run(
    setup,
    {
      name: functools.partial(measure, shape)
      for name, shape in shapes(setup.tiny).items()
    },
  )


def run(setup: Setup, cases: Mapping[str, Case]) -> None:
  """Runs the cases that are not there yet, in order.

  A case that fails is written down, and the next one is run. Exits with code 1
  if any failed, else with LEFT if there was no time for the last ones.
  """
  setup.folder.mkdir(parents=True, exist_ok=True)
  failed = left = False
  for name, case in cases.items():
    if setup.path(name, 'json').exists():
      continue
    if time.monotonic() > setup.ends:
      print(f'{name}: no time left', flush=True)
      left = True
      break
    began = time.monotonic()
    try:
      found = dict(case())
    except Exception as error:
      failed = True
      traceback.print_exc()
      words = ' '.join(str(error).split())[:500]
      setup.path(name, 'failed').write_text(f'{type(error).__name__}: {words}')
      print(f'{name}: failed: {type(error).__name__}: {words}', flush=True)
      continue
    seconds = time.monotonic() - began
    write(setup.path(name, 'json'), {'seconds': seconds, **found})
    setup.path(name, 'failed').unlink(missing_ok=True)
    print(f'{name}: {seconds:.1f} s', flush=True)
  sys.exit(1 if failed else LEFT if left else 0)


def write(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes JSON so that a process that is killed leaves no half file."""
  part = path.with_name(f'{path.name}.part')
  part.write_text(json.dumps(value, indent=1) + '\n')
  part.replace(path)
