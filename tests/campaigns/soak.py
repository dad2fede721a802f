"""Trains, scores, searches and serves for as long as is asked; all stays flat.

    python -m tests.campaigns.soak --minutes 120

Each of the four goes on for a quarter of the minutes, one after another, from
when it is warm. From the second quarter of its time to the last, its memory may
grow by 5% and 32 MiB, its open files by 8, the seconds that a piece of work
takes by a half (of runs of ten minutes and more), and the programs of scoring
by 5%. `--record` also keeps what was found in figures.json.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

import prm_jax
from tests.campaigns import campaign
from tests.campaigns.campaign import Campaign
from tests.campaigns.jobs import PATIENCE, POLICY, references
from tests.serve.live_server import LiveServer
from tests.shared import command_line
from tests.shared.command_line import SMALL
from tests.shared.interruptions import count_journal_lines
from tests.shared.saved_runs import logged_step

EVERY = 1.0  # seconds between two looks
PACED = 10  # minutes of a run
MIB = 2**20
DIGITS = [f'{i} + {i} = {2 * i % 10}' for i in range(10)]


class Look(NamedTuple):
  """Holds what was seen at one moment.

  Attributes:
    memory: MiB that the process holds.
    files: its open files and sockets.
    programs: those that it compiled so far; 0 where nobody counts them.
    done: pieces of work so far: steps, chains, lines of a journal, requests.
  """

  seconds: float
  memory: float
  files: int
  programs: int
  done: int


Doing = Iterator[tuple[int, int, int]]  # process, programs, pieces of work


def train(tmp: pathlib.Path, seed: int) -> Doing:
  """Trains a PRM, with evaluations and checkpoints."""
  flags = (
    *SMALL,
    '--config.train.steps=10000000',
    '--config.train.checkpoint_every=100',
    '--config.train.log_every=10',
    f'--config.seed={seed}',
    f'--workdir={tmp / "train"}',
  )
  return run_job(*flags, done=lambda: logged_step(tmp / 'train'))


def search(tmp: pathlib.Path, seed: int) -> Doing:
  """Searches with a trained policy and a trained PRM."""
  flags = (
    '--config=configs/search_math.py:beam',
    POLICY.format(tmp=references()),
    '--config.policy.kind=workdir',
    '--config.policy.sampling.max_tokens=8',
    '--config.prm.kind=workdir',
    f'--config.prm.path={references() / "prm"}',
    '--config.problems.arithmetic.modulus=10',
    '--config.problems.arithmetic.operations=3',
    '--config.problems.train_problems=1',
    '--config.problems.dev_problems=1',
    '--config.problems.test_problems=200000',
    '--config.concurrent=8',
    f'--config.seed={seed}',
    f'--workdir={tmp / "search"}',
  )
  return run_job(*flags, done=lambda: count_journal_lines(tmp / 'search'))


def score(_: pathlib.Path, seed: int) -> Doing:
  """Scores chains of many lengths, in this process."""
  programs, done = [], 0

  def note(name: str, *_: object, **__: object) -> None:
    if name.endswith('backend_compile_duration'):
      programs.append(name)

  jax.monitoring.register_event_duration_secs_listener(note)
  scorer = prm_jax.load(str(references() / 'prm'))
  draw = random.Random(seed)
  while True:
    scorer.score_many([chain(draw) for _ in range(draw.choice((1, 7, 32)))])
    done += 1
    yield os.getpid(), len(programs), done


def serve(_: pathlib.Path, seed: int) -> Doing:
  """Answers requests of one and of several chains, and bad ones."""
  server = LiveServer(references() / 'prm').wait()
  draw, done = random.Random(seed), 0
  try:
    while True:
      asked = [chain(draw) for _ in range(draw.choice((1, 1, 5)))]
      status, _ = server.score(*asked)
      assert status == 200
      status, _ = server.post('/v1/steps', {'chains': draw.random()})
      assert status == 400
      done += 1
      yield server.process.pid, 0, done
  finally:
    code, output = server.stop()
    assert code == 0, output
    assert 'Traceback' not in output


# Each with the pieces of work after which it is warm.
ACTIVITIES: tuple[tuple[Callable[[pathlib.Path, int], Doing], int], ...] = (
  (train, 300),
  (score, 1000),
  (search, 20),
  (serve, 300),
)


def chain(draw: random.Random) -> tuple[str, tuple[str, ...]]:
  """Draws a problem and a chain of up to four steps."""
  return 'mod 10 : 1 + 2', tuple(draw.choices(DIGITS, k=draw.randint(1, 4)))


def run_job(*flags: str, done: Callable[[], int]) -> Doing:
  """Runs a job, which ends in good order when nobody looks any more.

  Args:
    done: counts its pieces of work.
  """
  with tempfile.TemporaryFile('w+') as out:
    process = command_line.start(*flags, file=out)
    try:
      while process.poll() is None:
        time.sleep(EVERY / 10)
        yield process.pid, 0, done()
    finally:
      ended = process.poll()
      process.send_signal(signal.SIGTERM)
      process.wait(timeout=120)
      out.seek(0)
      output = out.read()
      assert ended is None, output
      assert process.returncode == 0, output


def look(process: int, programs: int, done: int, began: float) -> Look:
  """Looks at a process now."""
  pages = pathlib.Path(f'/proc/{process}/statm').read_text().split()[1]
  return Look(
    time.monotonic() - began,
    int(pages) * os.sysconf('SC_PAGE_SIZE') / MIB,
    len(os.listdir(f'/proc/{process}/fd')),
    programs,
    done,
  )


def watch(doing: Doing, warm: int, seconds: float) -> list[Look]:
  """Looks at an activity every second, for some seconds from when it is warm.

  Raises:
    AssertionError: it did not become warm, or ended.
  """
  began, looks = time.monotonic(), []
  with contextlib.closing(doing):
    for process, programs, done in doing:
      now = time.monotonic() - began
      if not looks and done < warm:
        assert now < PATIENCE, done
        continue
      if not looks:
        began, now = time.monotonic(), 0.0
      if not looks or now > looks[-1].seconds + EVERY:
        looks.append(look(process, programs, done, began))
      if now > seconds:
        return looks
  raise AssertionError('it ended by itself')


def quarter(looks: list[Look], number: int) -> Look:
  """Returns the medians of a quarter; its `done` is seconds for a piece."""
  part = looks[len(looks) * number // 4 : len(looks) * (number + 1) // 4]
  middle = {
    name: statistics.median(getattr(each, name) for each in part)
    for name in Look._fields
  }
  pieces = part[-1].done - part[0].done
  pace = (part[-1].seconds - part[0].seconds) / max(pieces, 1)
  return Look(**middle | {'done': pace, 'programs': part[-1].programs})


def judge(looks: list[Look], paced: bool) -> dict[str, list[float]]:
  """Returns what was found in the second and in the last quarter.

  Args:
    paced: whether there was time enough for its pace to say something.

  Raises:
    AssertionError: it was not flat.
  """
  before, after = quarter(looks, 1), quarter(looks, 3)
  found = {
    'MiB': [round(before.memory), round(after.memory)],
    'files': [before.files, after.files],
    'programs': [before.programs, after.programs],
    'milliseconds': [round(1000 * each.done, 1) for each in (before, after)],
    'pieces': [looks[-1].done],
  }
  assert after.memory < 1.05 * before.memory + 32, found
  assert after.files <= before.files + 8, found
  assert after.programs <= 1.05 * before.programs, found
  assert not paced or after.done < 1.5 * before.done, found
  return found


CAMPAIGN = Campaign(
  'soak',
  'minutes of training, scoring, searching and serving',
  480,
)


def main() -> None:
  parser = campaign.make_parser(CAMPAIGN)
  args = parser.parse_args()
  references()
  found, failed, began = {}, 0, time.monotonic()
  for activity, warm in ACTIVITIES:
    with tempfile.TemporaryDirectory() as tmp:
      try:
        looks = watch(
          activity(pathlib.Path(tmp), args.seed), warm, 15 * args.minutes
        )
        found[activity.__name__] = judge(looks, args.minutes >= PACED)
      except (AssertionError, OSError) as error:
        failed += 1
        print(f'{activity.__name__}: {error}', file=sys.stderr)
      else:
        print(f'{activity.__name__}: {json.dumps(found[activity.__name__])}')
  campaign.end(CAMPAIGN, args, round(args.minutes), began, failed, found)


if __name__ == '__main__':
  main()
