"""What a policy writes, in numbers, by hand."""

import json

import numpy as np
import pytest

from prm_jax.data.chains import from_dict
from prm_jax.data.tokenizer import PROBLEM_END, STEP_END
from prm_jax.rl import diagnostics, hacking_watch
from tests.rl.test_episodes import STEP, WHOLE, Says, rate, sample_of


def test_repeats():
  steps = ['a', 'b', ' a', 'b', 'c']
  assert diagnostics.repeats(steps) == [False, False, True, True, False]


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
def found():
  twice = [*STEP, STEP_END, *STEP, STEP_END, PROBLEM_END]
  samples = [sample_of(x) for x in (WHOLE, twice, [*STEP], twice)]
  found = rate(samples, Says(**{'1': 0.4, '3': 0.8})).found
  return [*found[:3], found[3]._replace(scores=np.array([0.1, 0.9]))]


def test_of_chains_by_hand(found):
  told = diagnostics.of_chains(found)
  assert told['accuracy'] == 1 / 4
  assert told['prm_score'] == pytest.approx((0.4 + 0.8 + 0.8 + 1.0) / 6)
  assert told['chain_score'] == pytest.approx((0.4 + 0.4 + 0.1) / 3)
  assert told['steps'] == 6 / 4
  assert told['step_tokens'] == (13 * 3 + 5) / 6
  assert told['repeated'] == told['trivial'] == 2 / 6
  # Only in the last is the repeated step worth more than the first.
  assert told['paid_by_trivial'] == 1 / 3
  assert told['unfinished'] == told['without_steps'] == 1 / 4
  assert told['unscored'] == 0


def test_broken_scores_are_counted(found):
  broken = found[0]._replace(scores=np.array([np.nan, 0.5]))
  told = diagnostics.of_chains([broken, *found[1:]])
  assert told['unscored'] == 1 and np.isfinite(list(told.values())).all()


def test_what_a_report_cannot_draw_is_not_shown(found):
  broken = found[0]._replace(scores=np.array([np.nan, 0.5]))
  shown = hacking_watch.shown([broken, *found[1:]], 'update 3')
  assert len(shown) == 2  # one more has no step
  assert all(np.isfinite(record['scores']).all() for record in shown)


def test_nothing_is_no_error():
  assert diagnostics.of_chains([])['accuracy'] == 0


def test_chains_are_written_with_their_scores(found, tmp_path):
  path = tmp_path / 'chains.jsonl'
  diagnostics.write_episodes(path, found, 'update 3')
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert len(records) == 3  # one has no step
  for record in records:
    scores = record.pop('scores')
    chain = from_dict(record)
    assert len(scores) == len(chain.steps)
    assert chain.meta['when'] == 'update 3'
  assert records[0]['outcome'] is True
