"""Metrics and records of what a policy writes, by hand."""

import numpy as np
import pytest

from prm_jax.data.chains import from_dict
from prm_jax.data.tokenizer import PROBLEM_END, STEP_END
from prm_jax.rl import diagnostics, hacking_watch
from tests.rl.written_chains import STEP, WHOLE, FixedPrm, rate, sample_of


def test_repeated_steps():
  steps = ['a', 'b', ' a', 'b', 'c']
  assert diagnostics.find_repeats(steps) == [False, False, True, True, False]


@pytest.mark.parametrize(
  ('step', 'empty'),
  [
    ('5 + 0 = 5', True),
    ('5 - 0 = 5', True),
    ('5 * 1 = 5', True),
    ('7 = 7', True),
    ('So we go on', True),
    ('5 + 1 = 6', False),
    ('0 + 5 = 5', False),
    ('5 * 1 = 6', False),
    ('There are 5 apples', False),
    ('', True),
  ],
)
def test_empty_calculations(step, empty):
  assert diagnostics.is_empty_calculation(step) == empty


@pytest.fixture
def episodes():
  twice = [*STEP, STEP_END, *STEP, STEP_END, PROBLEM_END]
  samples = [sample_of(x) for x in (WHOLE, twice, [*STEP], twice)]
  found = rate(samples, FixedPrm(**{'1': 0.4, '3': 0.8})).episodes
  return [*found[:3], found[3]._replace(scores=np.array([0.1, 0.9]))]


def test_chain_metrics_by_hand(episodes):
  metrics = diagnostics.chain_metrics(episodes, has_prm=True)
  assert metrics['accuracy'] == 1 / 4
  assert metrics['prm_score'] == pytest.approx((0.4 + 0.8 + 0.8 + 1.0) / 6)
  assert metrics['chain_score'] == pytest.approx((0.4 + 0.4 + 0.1) / 3)
  assert metrics['steps'] == 6 / 4
  assert metrics['step_tokens'] == (13 * 3 + 5) / 6
  assert metrics['repeated'] == metrics['trivial'] == 2 / 6
  # Only in the last is the repeated step worth more than the first.
  assert metrics['paid_by_trivial'] == 1 / 3
  assert metrics['unfinished'] == metrics['without_steps'] == 1 / 4
  assert metrics['unscored'] == 0


def test_chains_with_broken_scores_are_counted(episodes):
  broken = episodes[0]._replace(scores=np.array([np.nan, 0.5]))
  metrics = diagnostics.chain_metrics([broken, *episodes[1:]], has_prm=True)
  assert metrics['unscored'] == 1 and np.isfinite(list(metrics.values())).all()


def test_no_chains_are_no_error():
  assert diagnostics.chain_metrics([], has_prm=True)['accuracy'] == 0


def test_without_scores_there_is_no_mean_of_them(episodes):
  names = {'prm_score', 'chain_score', 'paid_by_trivial'}
  with_prm, without = (
    diagnostics.chain_metrics(episodes, has_prm) for has_prm in (True, False)
  )
  assert with_prm.keys() - without.keys() == names
  lost = [e._replace(scores=np.nan * e.scores) for e in episodes]
  metrics = diagnostics.chain_metrics(lost, has_prm=True)
  assert metrics.keys() & names == {'paid_by_trivial'}
  assert metrics['unscored'] == 3  # one has no step


def test_broken_scores_are_not_in_the_report(episodes):
  broken = episodes[0]._replace(scores=np.array([np.nan, 0.5]))
  records = hacking_watch.some_records(
    [broken, *episodes[1:]], 'update 3', has_prm=True
  )
  assert len(records) == 2  # one more has no step
  assert all(np.isfinite(record['scores']).all() for record in records)


def test_without_a_prm_no_step_has_a_score(episodes):
  for record in diagnostics.to_records(episodes, 'update 3', has_prm=False):
    assert set(record['scores']) == {None}


def test_records_are_chains_with_scores(episodes):
  records = diagnostics.to_records(episodes, 'update 3', has_prm=True)
  assert len(records) == 3  # one has no step
  for record in records:
    scores = record.pop('scores')
    chain = from_dict(record)
    assert len(scores) == len(chain.steps)
    assert chain.meta['when'] == 'update 3'
  assert records[0]['outcome'] is True
