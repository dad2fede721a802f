"""Scorers of several runs on the same chains, by hand."""

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.evals import scorers


def labelled(steps: int, first_error: int) -> Chain:
  values = [float(i != first_error) for i in range(steps)]
  return Chain('q', ('s',) * steps, labels=tuple(map(StepLabel, values)))


PARTS = {
  'dev': scorers.make_part([labelled(2, 1), labelled(2, -1)] * 3),
  'test': scorers.make_part([labelled(2, 1), labelled(2, -1)] * 5),
}
GOOD, BAD = np.array([0.9, 0.2]), np.array([0.9, 0.8])
SHIFTED = [np.array([0.4, 0.1]), np.array([0.4, 0.3])]


def compare(runs_of, wrong_share=0.0):
  judged = {
    name: [scorers.judge(run, PARTS, wrong_share) for run in runs]
    for name, runs in runs_of.items()
  }
  return scorers.compare(judged, PARTS, 'first', 0, 50)['test']


RUNS = {
  'first': [{'dev': [GOOD, BAD] * 3, 'test': SHIFTED * 5}],
  'other': [{'dev': [GOOD, BAD] * 3, 'test': [GOOD, BAD] * 5}],
}


def test_thresholds_come_from_dev_and_scorers_are_paired():
  two = [*RUNS['other'], {'dev': [BAD, GOOD] * 3, 'test': [BAD, GOOD] * 5}]
  found = compare(RUNS | {'two runs': two})
  # At dev's threshold of 0.5 every first step of the shifted scores is low.
  other, first = found['other'], found['first']
  assert other['runs'][0]['threshold'] == pytest.approx(0.5)
  assert (other['f1'], first['f1']) == (1, 0)
  assert first['runs'][0]['upper_bound']['f1'] == 1
  assert other['lead'] == {'difference': 1, 'ci95': [1, 1], 'seeds': [1]}
  # Of the steps up to the first error only the wrong one scores low.
  assert other['auc']['value'] == 1
  assert other['auc']['lead']['difference'] == 0
  pair = found['two runs']
  assert pair['seeds'][0] == 1
  assert pair['auc']['seeds'] == [1, pytest.approx(2 / 3)]
  assert pair['auc']['value'] == pytest.approx(5 / 6)
  # Two seeds that differ say nothing.
  assert pair['ci95'] == [0, 1]


def test_a_share_of_wrong_chains_needs_no_dev_chains_in_the_same_style():
  found = compare(RUNS, wrong_share=0.5)
  for scorer in found.values():
    assert scorer['f1'] == 1
  assert 0.1 < found['first']['runs'][0]['threshold'] <= 0.3
  dev = found['first']['runs'][0]['dev_threshold']
  assert dev == {'threshold': pytest.approx(0.5), 'f1': 0}
