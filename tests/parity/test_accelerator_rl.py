"""TRL's side of the accelerator's RL part, on the task of our side."""

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

REASON = "needs the extra parity: pip install -e '.[parity]'"
for package in ('torch', 'transformers', 'trl', 'datasets'):
  pytest.importorskip(package, reason=REASON)

ROOT = pathlib.Path(__file__).parents[2]


def run(module, folder, side):
  return subprocess.run(
    [
      *(sys.executable, '-m', f'experiments.accelerator.{module}'),
      *(f'--folder={folder}', f'--side={side}', '--tiny'),
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def read(folder, name):
  return json.loads((folder / name).read_text())


def test_both_sides_do_the_same_work(tmp_path):
  folder = tmp_path / 'rl'
  done = run('rl', folder, 'ours')
  assert done.returncode == 0, done.stderr
  done = run('their_rl', folder, 'theirs')
  assert done.returncode == 0, done.stderr
  ours, theirs = (
    read(folder, f'grpo.{side}.0.json') for side in ('ours', 'theirs')
  )
  chains = [x['chains_per_second'] * x['seconds'] for x in (ours, theirs)]
  assert chains[0] == pytest.approx(chains[1])
  assert ours['updates'] == theirs['updates']
  ours, theirs = (
    read(folder, f'to_90.{side}.0.json') for side in ('ours', 'theirs')
  )
  assert [x['update'] for x in ours['curve']] == [
    x['update'] for x in theirs['curve']
  ]


def test_without_a_task_their_side_says_what_is_missing(tmp_path):
  done = run('their_rl', tmp_path, 'theirs')
  assert done.returncode == 1
  said = (tmp_path / 'grpo.theirs.0.failed').read_text()
  assert 'task.json is not there' in said and '\n' not in said


def test_a_chain_is_right_if_it_ends_after_the_answer():
  their_rl = importlib.import_module('experiments.speed.their_rl')
  end, other = their_rl.END, 7
  found = their_rl.grade(
    ['1 + 2 = 3 \n', '1 + 2 = 3 \n', '1 + 2 = 13 \n', '1 + 2 = 4 \n'],
    [[other, end], [other], [end], [end]],
    ['3'] * 4,
  )
  assert found == [1.0, 0.0, 0.0, 0.0]
