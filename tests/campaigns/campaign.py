"""Runs many seeded cases of one kind, and keeps the figure and what failed.

    python -m tests.campaigns.NAME --minutes 2 --seed 0

A case has a random generator of its own, made of the seed and its number, so a
case that failed is repeated alone with --case NUMBER. It checks one thing or
many, and says how many. Failed cases go to kept/NAME.jsonl, which
test_kept_cases.py repeats for ever; --record writes the figure to figures.json
and the table of README.md.
"""

import argparse
import concurrent.futures
import importlib
import itertools
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from prm_jax.report import readme_table
from prm_jax.runtime.manifest import git_commit
from prm_jax.runtime.metrics import Heartbeat
from prm_jax.runtime.workdir import write_json

HERE = pathlib.Path(__file__).parent
FIGURES, KEPT = HERE / 'figures.json', HERE / 'kept'
SHOWN = 5  # failures that are printed
Case = Callable[[np.random.Generator], int]


class Campaign(NamedTuple):
  """Says what is tried.

  Attributes:
    name: the module's name.
    what: what one case is, for the table.
    aim: how many were asked for.
    case: tries one, or several; returns how many. An exception is a failure.
      None for a campaign that is not made of cases.
    jobs: most cases at the same time; 0: as many as there are cores.
    repeats: whether a number is always the same case, whatever the clock does;
      only then is one that failed kept.
  """

  name: str
  what: str
  aim: int
  case: Case | None = None
  jobs: int = 0
  repeats: bool = True


class Outcome(NamedTuple):
  """Holds what one case gave.

  Attributes:
    tried: how many things it tried; 0 if it failed.
    failed: the traceback; '' if it did not fail.
  """

  number: int
  tried: int
  failed: str


def generator(seed: int, number: int) -> np.random.Generator:
  """Returns the random numbers of one case."""
  return np.random.default_rng(
    np.random.SeedSequence(seed, spawn_key=(number,))
  )


def attempt(name: str, seed: int, number: int) -> Outcome:
  """Tries one case of a campaign, in whatever process."""
  campaign = importlib.import_module(f'tests.campaigns.{name}').CAMPAIGN
  try:
    return Outcome(number, campaign.case(generator(seed, number)), '')
  except Exception:  # whatever it is, it is what the campaign looks for
    return Outcome(number, 0, traceback.format_exc())


def outcomes(
  campaign: Campaign, seed: int, jobs: int, ends: Callable[[int], bool]
) -> Iterator[Outcome]:
  """Yields the outcomes of cases, until `ends` says so of the tried number."""
  numbers = itertools.count()
  tried = 0
  with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
    flying = {
      pool.submit(attempt, campaign.name, seed, next(numbers))
      for _ in range(2 * jobs)
    }
    while flying:
      done, flying = concurrent.futures.wait(
        flying, return_when=concurrent.futures.FIRST_COMPLETED
      )
      for future in done:
        outcome = future.result()
        tried += outcome.tried or 1  # a campaign of failures ends, too
        yield outcome
        if not ends(tried):
          flying.add(pool.submit(attempt, campaign.name, seed, next(numbers)))


def keep(campaign: Campaign, seed: int, outcome: Outcome) -> None:
  """Adds a failed case to those that are repeated for ever."""
  path = KEPT / f'{campaign.name}.jsonl'
  path.parent.mkdir(exist_ok=True)
  line = json.dumps({'seed': seed, 'number': outcome.number})
  if not path.exists() or line not in path.read_text().splitlines():
    with path.open('a') as file:
      file.write(line + '\n')


def make_parser(campaign: Campaign) -> argparse.ArgumentParser:
  """Makes what reads the command line of a campaign."""
  parser = argparse.ArgumentParser(
    prog=f'python -m tests.campaigns.{campaign.name}',
    description=campaign.what,
  )
  parser.add_argument('--minutes', type=float, default=2.0)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument(
    '--record', action='store_true', help='write figures.json and README.md'
  )
  return parser


def run(campaign: Campaign) -> None:
  """Runs a campaign from the command line; exits with 1 if a case failed."""
  parser = make_parser(campaign)
  parser.add_argument(
    '--cases', type=int, help='end after so many, and not by the clock'
  )
  parser.add_argument('--case', type=int, help='try this number alone')
  parser.add_argument('--jobs', type=int, default=campaign.jobs)
  args = parser.parse_args()
  if args.case is not None:
    campaign.case(generator(args.seed, args.case))
    print(f'{campaign.name}: case {args.case} holds')
    return
  began = time.monotonic()

  def ends(tried: int) -> bool:
    if args.cases is not None:
      return tried >= args.cases
    return time.monotonic() - began > 60 * args.minutes

  jobs = args.jobs or len(os.sched_getaffinity(0))
  tried, failed = 0, 0
  progress = Heartbeat(campaign.what, args.cases or 0)
  for outcome in outcomes(campaign, args.seed, jobs, ends):
    tried += outcome.tried
    progress.at(tried)
    if outcome.failed:
      failed += 1
      if campaign.repeats:
        keep(campaign, args.seed, outcome)
      if failed <= SHOWN:
        print(f'case {outcome.number}:\n{outcome.failed}', file=sys.stderr)
  end(campaign, args, tried, began, failed)


def end(
  campaign: Campaign,
  args: argparse.Namespace,
  tried: int,
  began: float,
  failed: int,
  found: Any = None,
) -> NoReturn:
  """Prints what a campaign gave, records it if asked, and exits.

  Args:
    began: by time.monotonic().
    found: more that is worth keeping, as JSON.
  """
  seconds = time.monotonic() - began
  print(
    f'{campaign.name}: {tried:,} {campaign.what} in {seconds:,.0f} s, '
    f'{failed} failed'
  )
  if args.record:
    figure = {
      'what': campaign.what,
      'cases': tried,
      'aim': campaign.aim,
      'seconds': round(seconds),
      'failures': failed,
      'seed': args.seed,
      'git_commit': git_commit(),
    }
    record(campaign.name, figure | ({'found': found} if found else {}))
  sys.exit(bool(failed))


def record(name: str, figure: dict[str, Any]) -> None:
  """Writes a figure, and the table of all of them."""
  figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
  figures[name] = figure
  write_json(FIGURES, dict(sorted(figures.items())))
  readme_table.fill(HERE / 'README.md', render(figures))


def render(figures: dict[str, dict]) -> str:
  """Makes the table of README.md."""
  lines = [
    '| campaign | what | cases | asked for | seconds | failures |',
    '| --- | --- | --- | --- | --- | --- |',
  ]
  lines += [
    f'| `{name}` | {found["what"]} | {found["cases"]:,} | {found["aim"]:,} | '
    f'{found["seconds"]:,} | {found["failures"]} |'
    for name, found in sorted(figures.items())
  ]
  return '\n'.join(lines)
