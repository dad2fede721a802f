"""The rows of smollm2_prm that need no model."""

import jax
import numpy as np
import pytest

from experiments.smollm2_prm import rows
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.evals import scorers
from prm_jax.inference.scorer import StepFeatures
from prm_jax.models import HeadConfig, init_head
from prm_jax.runtime.errors import UserError

pytestmark = pytest.mark.once

CHAIN = Chain('q', ('a 12', 'b', '345'), labels=(StepLabel(1.0),) * 3)
PARTS = {'dev': scorers.make_part([CHAIN])}


def test_texts_and_nulls_score_every_step():
  found = rows.text_scores(PARTS, {'dev': [3]}, [0, 1])
  assert found['digit_count'][0]['dev'][0].tolist() == [-2, 0, -3]
  cut = rows.text_scores(PARTS, {'dev': [2]}, [0])
  assert cut['digit_count'][0]['dev'][0].tolist() == [-2, 0]
  first, second = (scores['dev'][0] for scores in found['noise'])
  assert first.shape == second.shape == (3,)
  assert (first != second).all()


def test_scores_of_a_training_run_are_those_of_its_chains(tmp_path):
  lines = [
    '{"set": "dev", "chain": 4, "scores": [0.5]}',
    '{"set": "dev", "chain": 7, "scores": [0.25, 1.0]}',
  ]
  (tmp_path / 'step_scores.jsonl').write_text('\n'.join(lines) + '\n')
  found = rows.trained_scores(tmp_path, {'dev': [7, 4]})
  assert [x.tolist() for x in found['dev']] == [[0.25, 1.0], [0.5]]
  with pytest.raises(UserError, match='no scores of chain 9 of dev'):
    rows.trained_scores(tmp_path, {'dev': [4, 9]})
  assert isinstance(found['dev'][0], np.ndarray)


def test_readings_are_put_together_by_the_rule_of_an_untrained_head():
  def reading(sums):
    features = Features(sums)
    return rows.Reading(None, None, features, {})

  class Features:
    def __init__(self, sums):
      self.sums = np.array(sums, np.float32)

    def of(self, problem, steps):
      found = np.zeros((len(self.sums), 4)), self.sums
      return StepFeatures(*found)

  first = reading([[-1.0, -2.0], [-3.0, 0.0]])
  second = reading([[-2.0, 0.0], [0.0, -7.0]])
  found = rows.sums_together([first, second], PARTS)
  assert found['dev'][0].tolist() == [-30.0 - 2.0, -30.0 - 7.0]
  rule = init_head(jax.random.key(0), 4, HeadConfig('logit', likelihood=True))
  weights = rule['likelihood_kernel'].ravel()
  np.testing.assert_allclose(rows.RULE / rows.RULE[1], weights / weights[1])
