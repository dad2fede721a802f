"""Experiments that are repeated are compared with what is committed."""

import copy
import json
import os
import re

import pytest

from experiments import run_all
from prm_jax.report import readme_table
from tests.shared.command_line import ROOT


def test_every_experiment_is_repeated_or_says_why_not():
  folders = {path.parent.name for path in ROOT.glob('experiments/*/run.py')}
  assert folders == set(run_all.QUICK) | set(run_all.NOT_REPEATED)


def test_the_quick_budget_takes_as_long_as_it_says():
  record = json.loads((ROOT / 'experiments/again.json').read_text())
  assert set(record['experiments']) == set(run_all.QUICK)
  (told,) = re.findall(
    r'in less than (\d+) minutes', (ROOT / 'experiments/README.md').read_text()
  )
  assert record['minutes'] < int(told)


@pytest.mark.parametrize('name', run_all.QUICK)
def test_what_is_committed_has_intervals(name):
  path = ROOT / 'experiments' / name / 'results.json'
  document = json.loads(path.read_text())
  for where, value, (low, high) in run_all.intervals(document):
    # To rounding: curves are kept with fewer digits than their intervals.
    assert low - 1e-6 <= value <= high + 1e-6, where
  rows = run_all.compare(document, document)
  assert rows and all(row['agrees'] for row in rows)


def test_numbers_agree_where_their_intervals_meet():
  known = {
    'seeds': [0, 1],
    'runs': {'0': {'f1': 0.5, 'ci95': [0.4, 0.6]}, '1': {'f1': 0.9}},
    'curve': {
      'n': [1, 2],
      'mean': [0.2, 0.3],
      'ci95': [[0.1, 0.3], [0.2, 0.4]],
    },
    'arm': {
      'accuracy': {'mean': [0.1, 0.8], 'low': [0.0, 0.7], 'high': [0.2, 0.9]},
      'seeds_end': [0.6, 0.8, 0.9, 0.9],
    },
    'beam': {
      'accuracy': {'mean': 0.5, 'ci95': [0.4, 0.6]},
      'seeds': [0.9, 0.3, 0.3, 0.5],
    },
    'differences': {'mean': 0.5, 'ci95': [0.4, 0.6]},
  }
  found = copy.deepcopy(known)
  found['runs']['0'] = {'f1': 0.65, 'ci95': [0.59, 0.7]}
  found['curve']['mean'][1], found['curve']['ci95'][1] = 0.5, [0.41, 0.6]
  # One seed beside four: its own interval is twice as wide.
  found['arm'] = {
    'accuracy': {'mean': [0.1, 0.9], 'low': [0.0, 0.85], 'high': [0.2, 0.95]},
    'seeds_end': [0.9],
  }
  found['beam'] = {
    'accuracy': {'mean': 0.9, 'ci95': [0.85, 0.95]},
    'seeds': [0.9],
  }
  found['differences'] = {'mean': 0.9, 'ci95': [0.8, 1.0]}
  found['new'] = {'f1': 0.5, 'ci95': [0.4, 0.6]}
  agrees = {
    row['where']: row['agrees'] for row in run_all.compare(known, found)
  }
  assert agrees == {
    'runs / 0': True,
    'curve / 0': True,
    'curve / 1': False,
    'arm / first seed': False,
    'beam / first seed': True,
  }
  good = {'numbers': [{'agrees': True}]}
  assert run_all.is_good(good)
  for bad in (
    {'failed': 'no'},
    {'numbers': []},
    {'numbers': [{'agrees': False}]},
  ):
    assert not run_all.is_good(bad)


ROWS = [
  {'where': 'a', 'agrees': True},
  {
    'where': 'b',
    'committed': [0.5, 0.4, 0.6],
    'again': [0.7, 0.65, 0.8],
    'agrees': False,
  },
]


def test_what_differs_is_told():
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
    'not_repeated': {'scaling': 'no TPU'},
  }
  assert run_all.render(record) == (
    '| experiment | repeated | numbers that agree | minutes, 1 of 2 cores |\n'
    '| --- | --- | --- | --- |\n'
    "| [lm_loss](lm_loss) | `--arms 'weight 0'` | 1 of 2 | 1.2 |\n"
    '| [speed](speed) | `` | 1 of 1 | 2.0 |\n'
    '| all of them | | | 2 |\n'
    '| [scaling](scaling) | no: no TPU | | |\n\n'
    '- lm_loss, b: committed 0.500 [0.400, 0.600], now 0.700 [0.650, 0.800]'
  )


@pytest.fixture
def asked(monkeypatch, tmp_path):
  """A command of two experiments; what is repeated is written down."""
  again = {name: run_all.Again(('--seeds', '0')) for name in ('one', 'two')}
  monkeypatch.setattr(run_all, 'BUDGETS', {'quick': again})
  monkeypatch.setattr(run_all, 'QUICK', again)
  monkeypatch.setattr(run_all, 'HERE', tmp_path / 'kept')
  monkeypatch.setattr(run_all.manifest, 'git_commit', lambda: 'abc')
  monkeypatch.setenv('PRM_JAX_DATA', 'somewhere')
  (tmp_path / 'kept').mkdir()
  table = f'{readme_table.MARK}{readme_table.MARK}'
  (tmp_path / 'kept' / 'AGAIN.md').write_text(table)
  repeated = []

  def ask(*flags, results=()):
    rest = dict(results)
    row = {'arguments': ['--seeds', '0'], 'minutes': 1.0, 'numbers': ROWS[:1]}

    def repeat(name, again, workdir):
      repeated.append(name)
      return row | rest.get(name, {})

    monkeypatch.setattr(run_all, 'repeat', repeat)
    argv = ['run_all.py', '--workdir', str(tmp_path / 'work'), *flags]
    monkeypatch.setattr(run_all.sys, 'argv', argv)
    (tmp_path / 'work').mkdir(exist_ok=True)
    run_all.main()

  ask.repeated, ask.kept = repeated, tmp_path / 'kept'
  return ask


def test_what_an_earlier_command_did_is_not_repeated(asked, capsys):
  with pytest.raises(SystemExit):
    asked(results={'two': {'numbers': ROWS}})
  assert 'one: 1 of 1 agree' in capsys.readouterr().out
  with pytest.raises(SystemExit):
    asked('--only', 'two')
  assert sorted(asked.repeated) == ['one', 'two']


def test_a_record_is_kept_of_the_whole(asked):
  asked('--record')
  record = json.loads((asked.kept / 'again.json').read_text())
  assert list(record['experiments']) == ['one', 'two']
  assert 'All numbers agree.' in (asked.kept / 'AGAIN.md').read_text()


@pytest.mark.parametrize(
  ('two', 'message'),
  [
    ({'minutes': None}, 'not recorded: not repeated in one go'),
    ({'numbers': []}, 'not recorded: two gave no numbers'),
  ],
  ids=['went on', 'nothing'],
)
def test_no_record_is_kept_of_a_part(asked, two, message):
  with pytest.raises(SystemExit, match=message):
    asked('--record', results={'two': two})
  assert not (asked.kept / 'again.json').exists()


def test_a_command_that_goes_on_tells_no_time(asked):
  asked('--only', 'one')
  with pytest.raises(SystemExit, match='not repeated in one go'):
    asked('--record')


def test_what_shares_a_folder_runs_in_order():
  wanted = {
    name: run_all.Again((), folder)
    for name, folder in (('a', 'x'), ('b', ''), ('c', 'x'), ('d', 'x'))
  }
  met = []

  def repeated(name, again):
    assert again is wanted[name]
    assert len(os.sched_getaffinity(0)) - len(before) // workers in (0, 1)
    met.append(name)

  before = os.sched_getaffinity(0)
  workers = min(2, len(before))
  run_all.side_by_side(wanted, repeated)
  assert sorted(met) == ['a', 'b', 'c', 'd']
  assert [name for name in met if name != 'b'] == ['a', 'c', 'd']
  assert os.sched_getaffinity(0) == before


def test_another_commit_wants_a_new_workdir(asked, monkeypatch):
  asked()
  monkeypatch.setattr(run_all.manifest, 'git_commit', lambda: 'def')
  with pytest.raises(SystemExit, match='is of commit abc, not of def'):
    asked()
