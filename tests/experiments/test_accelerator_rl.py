"""The accelerator's RL part: our side at tiny size, the task, the race."""

import json
import re
import subprocess
import sys

import pytest

from experiments.accelerator import rl_task
from experiments.speed.race import AIM, Race
from tests.shared.command_line import ROOT

UPDATES, PROBLEMS, SAMPLES, HELD_OUT = 4, 4, 4, 8  # of configs/rl_math.py:tiny


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """The folder of the part, after our side has had its turn."""
  folder = tmp_path_factory.mktemp('part') / 'rl'
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'experiments.accelerator.rl'),
      *(f'--folder={folder}', '--side=ours', '--tiny'),
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return folder


def read(folder, case):
  return json.loads((folder / f'{case}.ours.0.json').read_text())


def result(problem):
  """Computes the answer of 'mod 10 : 7 * 3 + 4' from left to right."""
  modulus, expression = re.fullmatch(r'mod (\d+) : (.*)', problem).groups()
  value, *rest = expression.split()
  value = int(value)
  for sign, number in zip(rest[::2], map(int, rest[1::2]), strict=True):
    value = {'+': value + number, '-': value - number, '*': value * number}[
      sign
    ] % int(modulus)
  return str(value)


@pytest.mark.slow
def test_the_task_has_every_problem_in_order_with_its_answer(folder):
  task = json.loads(rl_task.path(folder).read_text())
  assert len(task['prompts']) == UPDATES * PROBLEMS
  assert [*map(result, task['prompts'])] == task['truths']
  held_out = task['held_out']
  assert len(held_out) == HELD_OUT
  for problem in held_out:
    assert result(problem['prompt']) == problem['truth']
    assert problem['prompt'] not in task['prompts']
  policy = rl_task.path(folder).parent / 'policy' / 'config.json'
  assert json.loads(policy.read_text())['hidden_size'] == 32
  assert task['config']['policy']['workdir'] == str(folder / 'policy')


@pytest.mark.slow
def test_our_side_measures_the_loop(folder):
  found = read(folder, 'grpo')
  # One of three updates is not measured.
  assert found['updates'] == 2
  chains = found['updates'] * PROBLEMS * SAMPLES
  assert found['chains_per_second'] * found['seconds'] == pytest.approx(chains)
  tokens = found['tokens_per_second'] * found['seconds']
  assert chains <= round(tokens) <= 31 * chains
  assert sum(found['shares'].values()) == pytest.approx(1)
  assert found['compile_seconds'] > 0


@pytest.mark.slow
def test_a_policy_that_does_not_learn_is_not_there(folder):
  found = read(folder, 'to_90')
  assert [look['update'] for look in found['curve']] == [0, 2, 4]
  assert not found['reached'] and found['accuracy'] < AIM
  assert found['seconds'] == found['curve'][-1]['seconds']
  assert found['accuracy'] == found['curve'][-1]['accuracy']


@pytest.fixture
def clock(monkeypatch):
  """A clock that a test sets."""
  now = [100.0]
  monkeypatch.setattr('experiments.speed.race.time.monotonic', lambda: now[0])
  return now


def look(race, clock, update, until, accuracy, counted=0.0):
  with race.look(update) as looked:
    clock[0], looked.accuracy, looked.counted = until, accuracy, counted


def test_looks_at_the_policy_do_not_count(clock):
  race = Race(ends=1000.0)
  clock[0] = 103.0
  look(race, clock, 0, until=110.0, accuracy=0.5, counted=2.0)
  clock[0] = 120.0
  assert not race.ended
  look(race, clock, 20, until=125.0, accuracy=0.91)
  found = race.found()
  # 3 s, and 2 s of the first look; then 10 s.
  assert [x['seconds'] for x in found['curve']] == [5.0, 15.0]
  assert found['evaluation_seconds'] == 5.0 + 5.0
  assert race.ended and found['reached'] and found['updates'] == 20


def test_a_race_ends_with_its_time(clock):
  race = Race(ends=130.0)
  clock[0] = 131.0
  look(race, clock, 20, until=132.0, accuracy=0.89)
  assert race.ended and not race.found()['reached']


def test_a_rate_is_of_what_was_measured():
  task = {
    'warmup': 10,
    'measured': 20,
    'config': {'train': {'updates': 400, 'problems': 8, 'samples': 8}},
  }
  task = rl_task.measured(task)
  assert task['config']['train']['updates'] == 30
  found = rl_task.rate(
    task,
    {
      'tokens': 500,
      'wall': 10.0,
      'parts': {'sampling': 2.0, 'scoring': 1.0},
      'right': 0.5,
    },
  )
  assert found['tokens_per_second'] == 50
  assert found['chains_per_second'] == 20 * 64 / 10
  assert found['shares'] == pytest.approx(
    {'sampling': 0.2, 'scoring': 0.1, 'training': 0.7}
  )
