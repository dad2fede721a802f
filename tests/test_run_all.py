"""Experiments that are repeated are compared with what is committed."""

import copy
import json

import pytest

from experiments import run_all
from tests.command_line import ROOT


def test_every_experiment_is_repeated_or_says_why_not():
  folders = {path.parent.name for path in ROOT.glob('experiments/*/run.py')}
  assert folders == set(run_all.QUICK) | set(run_all.NOT_REPEATED)
  assert sum(again.minutes for again in run_all.QUICK.values()) <= 60


@pytest.mark.parametrize('name', run_all.QUICK)
def test_what_is_committed_has_intervals(name):
  path = ROOT / 'experiments' / name / 'results.json'
  if not path.exists():
    pytest.skip(f'{path.parent.name}: results.json is still to be made')
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
  }
  found = copy.deepcopy(known)
  found['runs']['0'] = {'f1': 0.65, 'ci95': [0.59, 0.7]}
  found['curve']['mean'][1], found['curve']['ci95'][1] = 0.5, [0.41, 0.6]
  # One seed beside four: its own interval is twice as wide.
  found['arm'] = {
    'accuracy': {'mean': [0.1, 0.9], 'low': [0.0, 0.85], 'high': [0.2, 0.95]},
    'seeds_end': [0.9],
  }
  found['new'] = {'f1': 0.5, 'ci95': [0.4, 0.6]}
  agrees = {
    row['where']: row['agrees'] for row in run_all.compare(known, found)
  }
  assert agrees == {
    'runs / 0': True,
    'curve / 0': True,
    'curve / 1': False,
    'arm / first seed': False,
  }
  good = {'numbers': [{'agrees': True}]}
  assert run_all.is_good(good)
  for bad in (
    {'failed': 'no'},
    {'numbers': []},
    {'numbers': [{'agrees': False}]},
  ):
    assert not run_all.is_good(bad)
