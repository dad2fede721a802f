"""Experiments are repeated and compared with what is committed."""

import copy
import json
import os
import re

import pytest

from experiments import run_all
from experiments.compare import compare, intervals, is_good
from prm_jax.report import readme_table
from tests.shared.command_line import ROOT


def test_every_experiment_is_repeated_or_says_why_not():
  folders = {path.parent.name for path in ROOT.glob('experiments/*/run.py')}
  assert folders == set(run_all.QUICK) | set(run_all.NOT_REPEATED)


def test_the_quick_budget_takes_as_long_as_it_says():
  record = json.loads((ROOT / 'experiments/again.json').read_text())
  assert set(record['experiments']) == set(run_all.QUICK)
  (minutes,) = re.findall(
    r'in less than (\d+) minutes', (ROOT / 'experiments/README.md').read_text()
  )
  assert record['minutes'] < int(minutes)


@pytest.mark.parametrize('name', run_all.QUICK)
def test_what_is_committed_has_intervals(name):
  path = ROOT / 'experiments' / name / 'results.json'
  document = json.loads(path.read_text())
  for where, value, (low, high) in intervals(document):
    # Curves are kept with fewer digits than their intervals.
    assert low - 1e-6 <= value <= high + 1e-6, where
  rows = compare(document, document)
  assert rows and all(row['agrees'] for row in rows)


def test_numbers_agree_where_their_intervals_meet():
  known = {
    'seeds': [1, 2, 3, 4],
    'runs': {'0': {'f1': 0.5, 'ci95': [0.4, 0.6]}, '1': {'f1': 0.9}},
    'curve': {
      'n': [1, 2],
      'mean': [0.2, 0.3],
      'ci95': [[0.1, 0.3], [0.2, 0.4]],
    },
    'arm': {
      'accuracy': {'mean': [0.1, 0.8], 'low': [0.0, 0.7], 'high': [0.2, 0.9]},
      'ends': {'2': {'value': 0.8, 'ci95': [0.6, 1.0]}},
    },
    'beam': {
      'accuracy': {'mean': 0.5, 'ci95': [0.4, 0.6]},
      'seeds': [0.9, 0.3, 0.3, 0.5],
    },
    'one point': {'mean': 0.0, 'ci95': [0.0, 0.0]},
  }
  found = copy.deepcopy(known)
  found['runs']['0'] = {'f1': 0.65, 'ci95': [0.59, 0.7]}
  found['curve']['mean'][1], found['curve']['ci95'][1] = 0.5, [0.41, 0.6]
  # The second seed beside four: its own interval is twice as wide.
  found['seeds'] = [2]
  found['arm'] = {
    'accuracy': {'mean': [0.1, 0.9], 'low': [0.0, 0.85], 'high': [0.2, 0.95]},
    'ends': {'2': {'value': 0.3, 'ci95': [0.2, 0.4]}},
  }
  found['beam'] = {
    'accuracy': {'mean': 0.9, 'ci95': [0.85, 0.95]},
    'seeds': [0.35],
  }
  found['new'] = {'f1': 0.5, 'ci95': [0.4, 0.6]}
  found['one point'] = {'mean': 1e-17, 'ci95': [1e-17, 1e-17]}
  agrees = {row['where']: row['agrees'] for row in compare(known, found)}
  assert agrees == {
    'runs / 0': True,
    'curve / 0': True,
    'curve / 1': False,
    # 0.8 -+ 0.2 and 0.3 -+ 0.1.
    'arm / ends / 2': False,
    'beam / 2': True,
    'one point': True,  # but for rounding
  }
  good = {'numbers': [{'agrees': True}]}
  assert is_good(good)
  for bad in (
    {'failed': 'no'},
    {'numbers': []},
    {'numbers': [{'agrees': False}]},
  ):
    assert not is_good(bad)


ROWS = [
  {'where': 'a', 'agrees': True},
  {
    'where': 'b',
    'committed': [0.5, 0.4, 0.6],
    'again': [0.7, 0.65, 0.8],
    'agrees': False,
  },
]


def test_the_table_names_what_does_not_agree():
  record = {
    'cores': 2,
    'minutes': 1.75,
    'experiments': {
      'lm_loss': {
        'arguments': ['--arms', 'weight 0'],
        'minutes': 1.25,
        'numbers': ROWS,
      },
      'speed': {'arguments': [], 'minutes': 2.0, 'numbers': ROWS[:1]},
    },
  }
  assert run_all.render(record, {'scaling': 'no TPU'}) == (
    '| experiment | repeated | numbers that agree | minutes, 1 of 2 cores |\n'
    '| --- | --- | --- | --- |\n'
    "| [lm_loss](lm_loss) | `--arms 'weight 0'` | 1 of 2 | 1.2 |\n"
    '| [speed](speed) | `` | 1 of 1 | 2.0 |\n'
    '| all of them |  |  | 2 |\n'
    '| [scaling](scaling) | no: no TPU |  |  |\n\n'
    '- lm_loss, b: committed 0.500 [0.400, 0.600], now 0.700 [0.650, 0.800]'
  )


@pytest.fixture
def command(monkeypatch, tmp_path):
  """Returns a command for two experiments that notes what it repeats."""
  repetitions = {
    name: run_all.Repetition(('--seeds', '1')) for name in ('one', 'two')
  }
  monkeypatch.setattr(run_all, 'BUDGETS', {'quick': repetitions})
  monkeypatch.setattr(run_all, 'QUICK', repetitions)
  monkeypatch.setattr(run_all, 'HERE', tmp_path / 'kept')
  monkeypatch.setattr(run_all.manifest, 'git_commit', lambda: 'abc')
  monkeypatch.setenv('PRM_JAX_DATA', 'somewhere')
  (tmp_path / 'kept').mkdir()
  table = f'{readme_table.MARK}{readme_table.MARK}'
  (tmp_path / 'kept' / 'AGAIN.md').write_text(table)
  repeated = []

  def run(*flags, results=()):
    changes = dict(results)
    row = {'arguments': ['--seeds', '1'], 'minutes': 1.0, 'numbers': ROWS[:1]}

    def repeat(name, repetition, workdir):
      repeated.append(name)
      return row | changes.get(name, {})

    monkeypatch.setattr(run_all, 'repeat', repeat)
    argv = ['run_all.py', '--workdir', str(tmp_path / 'work'), *flags]
    monkeypatch.setattr(run_all.sys, 'argv', argv)
    (tmp_path / 'work').mkdir(exist_ok=True)
    run_all.main()

  run.repeated, run.kept = repeated, tmp_path / 'kept'
  return run


def test_a_second_command_does_not_repeat_what_is_done(command, capsys):
  with pytest.raises(SystemExit):
    command(results={'two': {'numbers': ROWS}})
  assert 'one: 1 of 1 agree' in capsys.readouterr().out
  with pytest.raises(SystemExit):
    command('--only', 'two')
  assert sorted(command.repeated) == ['one', 'two']


def test_a_whole_budget_is_recorded(command):
  command('--record')
  record = json.loads((command.kept / 'again.json').read_text())
  assert list(record['experiments']) == ['one', 'two']
  assert 'All numbers agree.' in (command.kept / 'AGAIN.md').read_text()


@pytest.mark.parametrize(
  ('two', 'message'),
  [
    ({'minutes': None}, 'not recorded: not repeated by one command'),
    ({'numbers': []}, 'not recorded: two gave no numbers'),
  ],
  ids=['resumed', 'no numbers'],
)
def test_a_part_is_not_recorded(command, two, message):
  with pytest.raises(SystemExit, match=message):
    command('--record', results={'two': two})
  assert not (command.kept / 'again.json').exists()


def test_a_resumed_budget_is_not_recorded(command):
  command('--only', 'one')
  with pytest.raises(SystemExit, match='not repeated by one command'):
    command('--record')


def test_another_commit_needs_a_new_workdir(command, monkeypatch):
  command()
  monkeypatch.setattr(run_all.manifest, 'git_commit', lambda: 'def')
  with pytest.raises(SystemExit, match='is of commit abc, not of def'):
    command()


def test_experiments_that_share_a_folder_run_in_order():
  wanted = {
    name: run_all.Repetition((), folder)
    for name, folder in (('a', 'x'), ('b', ''), ('c', 'x'), ('d', 'x'))
  }
  called = []

  def function(name, repetition):
    assert repetition is wanted[name]
    assert len(os.sched_getaffinity(0)) - len(before) // workers in (0, 1)
    called.append(name)

  before = os.sched_getaffinity(0)
  workers = min(2, len(before))
  run_all.side_by_side(wanted, function)
  assert sorted(called) == ['a', 'b', 'c', 'd']
  assert [name for name in called if name != 'b'] == ['a', 'c', 'd']
  assert os.sched_getaffinity(0) == before
