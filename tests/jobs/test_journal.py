"""The journal: unfinished lines, other jobs, damage, two writers."""

import json

import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.inference.driver import Cost, Ended
from prm_jax.jobs import journal
from prm_jax.jobs.journal import Journal
from prm_jax.runtime.errors import UserError

JOB = {'config': 'c1', 'input': 'i1', 'policy': 'p1'}


def ended(index: int, failed: str = '', lost: int = 0) -> Ended:
  chain = Chain(
    f'What is {index}?',
    ('Zoë says', 'ten'),
    labels=(StepLabel(1 / 3, 'rollout', 1, 3), StepLabel(None)),
    meta={'id': index},
  )
  cost = Cost(10 + index, 2, 3, lost, 0.25)
  return Ended(index, () if failed else (chain,), failed, cost)


def write(folder, *items, name='process-0'):
  with Journal(folder / f'{name}.jsonl', JOB) as lines:
    for item in items:
      lines.write(item)


def test_written_items_are_read_back(tmp_path):
  write(tmp_path, ended(3), ended(0, 'no', 1))
  write(tmp_path, ended(1), name='process-1')
  write(tmp_path, ended(2))
  assert list(journal.read(tmp_path, JOB)) == [
    ended(3),
    ended(0, 'no', 1),
    ended(2),
    ended(1),
  ]


def test_a_later_attempt_replaces_an_interrupted_one(tmp_path):
  first = ended(0)._replace(interrupted=True)
  write(tmp_path, first)
  assert list(journal.read(tmp_path, JOB)) == [first]
  assert first.open and not ended(0).open
  for later in (ended(0), ended(0, 'no', 1)):
    assert journal.latest([first, later]) == {0: later}
    assert journal.latest([ended(0), later]) == {0: ended(0)}


@pytest.mark.parametrize('cut', range(1, 60, 7))
def test_an_unfinished_last_line_is_dropped_and_overwritten(tmp_path, cut):
  path = tmp_path / 'process-0.jsonl'
  write(tmp_path, ended(0), ended(1))
  whole = path.read_bytes()
  path.write_bytes(whole[:-cut])
  assert list(journal.read(tmp_path, JOB)) == [ended(0)]
  write(tmp_path, ended(1))
  assert path.read_bytes() == whole


def test_an_unfinished_first_line_is_dropped(tmp_path):
  path = tmp_path / 'process-0.jsonl'
  path.write_text('{"job": {"con')
  assert not list(journal.read(tmp_path, JOB))
  write(tmp_path, ended(0))
  assert list(journal.read(tmp_path, JOB)) == [ended(0)]


@pytest.mark.parametrize('name', JOB)
def test_another_job_is_refused_and_left_alone(tmp_path, name):
  write(tmp_path, ended(0))
  before = (tmp_path / 'process-0.jsonl').read_bytes()
  other = JOB | {name: 'other'}
  said = f'another job: its {name} is .1, not other; bring that back'
  with pytest.raises(UserError, match=said):
    list(journal.read(tmp_path, other))
  with pytest.raises(UserError, match=said):
    Journal(tmp_path / 'process-0.jsonl', other)
  assert (tmp_path / 'process-0.jsonl').read_bytes() == before


def test_damage_in_the_middle_names_the_line(tmp_path):
  path = tmp_path / 'process-0.jsonl'
  write(tmp_path, ended(0), ended(1))
  first, second, third = path.read_text().splitlines()
  path.write_text('\n'.join([first, second[:40], third, '']))
  with pytest.raises(UserError, match=r'process-0.jsonl:2: .*delete the line'):
    list(journal.read(tmp_path, JOB))
  path.write_text('\n'.join([json.dumps([1]), second, '']))
  with pytest.raises(UserError, match=r'process-0.jsonl:1: '):
    list(journal.read(tmp_path, JOB))


def test_a_second_writer_is_refused(tmp_path):
  path = tmp_path / 'process-0.jsonl'
  with Journal(path, JOB) as lines:
    lines.write(ended(0))
    with pytest.raises(UserError, match='written by another process'):
      Journal(path, JOB)
    lines.write(ended(1))
  assert list(journal.read(tmp_path, JOB)) == [ended(0), ended(1)]


def test_the_last_attempt_counts_but_no_failure_replaces_a_success():
  tries = [ended(2), ended(1, 'a', 1), ended(1, 'b', 1), ended(0, 'a', 1)]
  found = journal.latest([*tries, ended(0), ended(2, 'c')])
  assert found == {0: ended(0), 1: ended(1, 'b', 1), 2: ended(2)}
  assert list(found) == [0, 1, 2]


def test_the_order_of_the_files_decides_nothing():
  """An attempt that another process broke off may stand after the last one."""
  broken_off = ended(0)._replace(interrupted=True)
  for last in (ended(0, 'not right'), ended(0)):
    for lines in ([broken_off, last], [last, broken_off]):
      assert journal.latest(lines) == {0: last}
  for lost in (ended(0, 'no answer', 1), broken_off):
    for lines in ([ended(0), lost], [lost, ended(0)]):
      assert journal.latest(lines) == {0: ended(0)}


def test_only_items_that_lacked_answers_are_open():
  assert ended(0, 'no answer', 1).open
  assert not ended(0, 'not right').open
  assert not ended(0, '', 1).open


DAMAGES = {
  'another key': lambda line: line.replace('"chains"', '"chain"'),
  'a chain without steps': lambda line: line.replace('"steps"', '"step"'),
  'a number as text': lambda line: line.replace('"cost": [1', '"cost": ["", 1'),
  'too many costs': lambda line: line.replace('"cost": [', '"cost": [1, 2, '),
  'no number': lambda line: line.replace('"index": 1', '"index": "1"'),
  'no text': lambda line: line.replace('"failed": ""', '"failed": 0'),
  'deep': lambda line: '[' * 100_000 + ']' * 100_000,
}


@pytest.mark.parametrize('name', DAMAGES)
def test_any_damage_names_the_line(tmp_path, name):
  path = tmp_path / 'process-0.jsonl'
  write(tmp_path, ended(0), ended(1))
  *before, last = path.read_text().splitlines()
  damaged = DAMAGES[name](last)
  assert damaged != last
  path.write_text('\n'.join([*before, damaged, '']))
  for read in (
    lambda: list(journal.read(tmp_path, JOB)),
    lambda: write(tmp_path),
  ):
    with pytest.raises(
      UserError, match=r'process-0.jsonl:3: .*delete the line'
    ):
      read()


@pytest.mark.parametrize(
  'job', ['{"job": 3}', '{"job": ["ab"]}', '{"job": {}}']
)
def test_a_first_line_of_no_job_is_refused(tmp_path, job):
  (tmp_path / 'process-0.jsonl').write_text(f'{job}\n')
  with pytest.raises(UserError, match=r'process-0\.jsonl'):
    list(journal.read(tmp_path, JOB))
