"""What experiments.speed.rl keeps: no measured round or race is lost."""

import json
import shutil
import sys

import pytest

from experiments.findings import MISSING
from experiments.speed import rl, sides
from experiments.speed.claims import races_are_short

pytestmark = pytest.mark.once

HERE = sides.HERE
# No process of their side is started, so no packages are needed.
FLAGS = ('--parity-python', 'true', '--policy', '/p', '--prm', '/m')


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The folder of the results; no process is started of either side."""
  shutil.copy(HERE / 'RL.md', tmp_path)
  monkeypatch.setattr(sides, 'HERE', tmp_path)
  monkeypatch.setattr(rl, 'make_task', lambda *_: {'max_tokens': 31})
  return tmp_path


@pytest.fixture
def turns(monkeypatch):
  """How both sides end; those of the committed row, one after another."""
  row = rows(HERE)['verifier']
  rounds = {'ours': row['ours'], 'theirs': row['theirs']}
  ended = []

  def in_turn(task, args, turn, minutes):
    del task, args
    found = row['races'] if minutes else rounds
    ended.append(minutes)
    versions = {} if minutes else {'versions': {'jax': '0'}}
    return {side: found[side][turn] | versions for side in found}

  monkeypatch.setattr(rl, 'in_turn', in_turn)
  return ended


def rows(folder):
  document = json.loads((folder / 'rl.json').read_text())
  return {row['rewards']: row for row in document['rows']}


def call(monkeypatch, *flags):
  monkeypatch.setattr(sys, 'argv', ['rl.py', *FLAGS, *flags])
  rl.main()


def test_rounds_measured_anew_keep_the_races(folder, turns, monkeypatch):
  shutil.copy(HERE / 'rl.json', folder)
  before = rows(folder)
  call(monkeypatch, '--races', '0', '--rounds', '2')
  assert turns == [0.0] * 4
  call(monkeypatch, '--rewards', 'verifier', '--rounds', '1')
  assert turns == [0.0] * 5  # five races are no fewer than three
  for rewards, row in rows(folder).items():
    assert row['races'] == before[rewards]['races']
    assert row['race_minutes'] == before[rewards]['race_minutes']
    assert len(row['ours']) == 1 + (rewards != 'verifier')
    assert row['versions'] == {'jax': '0'}


def test_a_row_without_races_is_shown(folder, turns, monkeypatch):
  call(monkeypatch, '--races', '0', '--rewards', 'verifier')
  assert len(turns) == 3
  assert '| verifier | none | none |  |  |' in (folder / 'RL.md').read_text()
  document = json.loads((folder / 'rl.json').read_text())
  assert races_are_short(document).effect == MISSING
  # A race is added later, and the rounds stay.
  before = rows(folder)['verifier']
  call(
    monkeypatch, '--rounds=0', '--races=1', '--rewards=verifier', '--minutes=7'
  )
  after = rows(folder)['verifier']
  assert len(after['races']['ours']) == len(after['races']['theirs']) == 1
  assert after['race_minutes'] == 7
  assert after['ours'] == before['ours']


def test_a_race_that_fails_loses_no_other(folder, turns, monkeypatch):
  whole = rl.in_turn

  def failing(task, args, turn, minutes):
    if minutes and turn == 2:
      raise SystemExit('error: theirs failed')
    return whole(task, args, turn, minutes)

  monkeypatch.setattr(rl, 'in_turn', failing)
  with pytest.raises(SystemExit):
    call(monkeypatch, '--rewards', 'verifier')
  assert len(turns) == 3 + 2
  row = rows(folder)['verifier']
  assert len(row['ours']) == 3 and len(row['races']['ours']) == 2


def test_races_of_a_row_that_is_not_there_are_refused_at_once(
  folder, turns, monkeypatch, capsys
):
  with pytest.raises(SystemExit):
    call(monkeypatch, '--rounds', '0')
  said = capsys.readouterr().err
  assert "adds races to a row, and rl.json has none of 'verifier'" in said
  assert not turns and not (folder / 'rl.json').exists()
