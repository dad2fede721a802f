"""The section of an RL run on the page, and malformed sections."""

import copy

import pytest

from prm_jax.report import rl_section, write_report
from prm_jax.runtime.errors import UserError
from tests.report.workdir import parse, table, write


def look(update, accuracy, score, hacked=False):
  told = dict.fromkeys(rl_section.COLUMNS, 0.25)
  told |= {'accuracy': accuracy, 'chain_score': score}
  return {
    'update': update,
    'chains': 64 * update,
    'told': told,
    'hacked': hacked,
  }


ALARM = {
  'hacked': True,
  'update': 20,
  'since': 10,
  'by': 'score',
  'accuracy': {'mean': -0.25, 'interval': [-0.3, -0.2]},
  'score': {'mean': 0.125, 'interval': [0.1, 0.2]},
}
RESULTS = {
  'rl': {
    'has_prm': True,
    'tested_after': 640,
    'looks': [look(0, 0.5, 0.4), look(10, 0.75, 0.6), look(20, 0.5, 0.8, True)],
    'alarms': [ALARM],
  },
  'sampling': {
    'before': {'accuracy': {'mean': 0.5, 'ci95': [0.4, 0.6]}},
    'after': {'accuracy': {'mean': 0.75, 'ci95': [0.7, 0.8]}},
  },
}


def test_accuracies_and_alarms_are_shown(tmp_path):
  section = parse(write_report(write(tmp_path, RESULTS))).by_id('rl')
  said, alarm = (p.text for p in section.all('p')[:2])
  assert said == (
    'Of the chains for test problems, 50.0% [40.0, 60.0] were right before '
    'training, and 75.0% [70.0, 80.0] at the checkpoint that was best on '
    'held-out problems, after 640 chains.'
  )
  assert 'the PRM score rose by 0.125' in alarm
  assert 'verified accuracy changed by -25.0 points' in alarm
  _, *rows = table(section.all('table')[0])
  assert [row[1] for row in rows] == ['50.0', '75.0', '50.0']
  assert rows[1][0] == '640' and 'hacked' in rows[2][0]
  assert len(section.all('figure')) == 1


def test_a_run_without_a_prm_shows_no_prm_metrics():
  section = RESULTS['rl'] | {'has_prm': False, 'alarms': []}
  found = rl_section.rl(section, RESULTS['sampling'])
  assert 'lowest step score' not in found['columns']
  assert len(found['columns']) == len(rl_section.COLUMNS) - 2
  assert 'verified accuracy' in found['figure']
  assert 'lowest step score' not in found['figure']


@pytest.mark.parametrize('lost', [{1}, {0, 1, 2}])
def test_looks_whose_chains_have_no_score_say_so(lost):
  looks = copy.deepcopy(RESULTS['rl']['looks'])
  for number in lost:
    del looks[number]['told']['chain_score']
  section = RESULTS['rl'] | {'looks': looks}
  found = rl_section.rl(section, RESULTS['sampling'])
  at = found['columns'].index('lowest step score')
  cells = [row[2][at] for row in found['rows']]
  assert {i for i, cell in enumerate(cells) if cell == 'none'} == lost
  assert ('from 0.4 to 0.8' in found['figure']) == (len(lost) == 1)


def test_a_long_run_shows_some_looks_and_the_last():
  section = RESULTS['rl'] | {'looks': [look(k, 0.5, 0.5) for k in range(100)]}
  rows = rl_section.rl(section, RESULTS['sampling'])['rows']
  # Every ninth of a hundred, so that there are no more than twelve.
  assert [row[0] for row in rows] == [f'{64 * k:,}' for k in range(0, 100, 9)]


@pytest.mark.parametrize(
  ('spoil', 'message'),
  [
    (lambda r: r['rl'].pop('looks'), 'expected a list of looks'),
    (lambda r: r['rl'].pop('tested_after'), 'rl.tested_after: expected'),
    (lambda r: r['rl'].pop('has_prm'), 'rl.has_prm: expected true or false'),
    (lambda r: r['rl']['looks'][0].pop('told'), 'rl.looks: expected objects'),
    (lambda r: r['rl']['looks'][0].pop('chains'), 'expected whole numbers'),
    (
      lambda r: r['rl']['looks'][1]['told'].pop('steps'),
      "rl.looks.told: 'steps' is missing",
    ),
    (lambda r: r['rl']['alarms'][0].pop('since'), "rl.alarms: 'since'"),
    (lambda r: r['rl']['alarms'][0].pop('by'), "rl.alarms: 'by'"),
    (lambda r: r['sampling'].pop('after'), 'expected the policy before and'),
  ],
)
def test_a_malformed_section_is_one_line(tmp_path, spoil, message):
  results = copy.deepcopy(RESULTS)
  spoil(results)
  with pytest.raises(UserError, match=message):
    write_report(write(tmp_path, results))


@pytest.mark.parametrize('ci95', [None, [0.4], [0.4, 'high'], 0.4])
def test_intervals_of_another_form_are_one_line(tmp_path, ci95):
  results = copy.deepcopy(RESULTS)
  results['sampling']['after']['accuracy'] = {'mean': 'half', 'ci95': ci95}
  with pytest.raises(UserError) as caught:
    write_report(write(tmp_path, results))
  assert str(caught.value).startswith(f'{tmp_path / "results.json"}: does not')
  assert '\n' not in str(caught.value)
