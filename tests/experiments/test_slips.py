"""Beams and best of n on a solver whose errors are known, by closed forms."""

import numpy as np
import pytest

from experiments.test_time_compute import slips
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.solver_policy import SolverPolicy

SETTING = slips.Setting(operations=4, slip=0.3)


def test_closed_forms_by_hand():
  half = slips.Setting(operations=2, slip=0.5)
  # One chain of two steps is right in 1 of 4 cases: 1 - (3/4)^2.
  assert slips.whole_chains(half, 2) == pytest.approx(0.4375)
  # A step is wrong in both samples in 1 of 4 cases: (3/4)^2.
  assert slips.whole_beam(half, 2) == pytest.approx(0.5625)


@pytest.mark.parametrize(
  ('method', 'options', 'expected'),
  [
    ('beam', {'samples': 4, 'width': 4}, slips.whole_beam(SETTING, 4)),
    ('best_of_n', {'samples': 4}, slips.whole_chains(SETTING, 4)),
  ],
  ids=['beam', 'best of n'],
)
def test_searches_meet_their_closed_forms(method, options, expected):
  tasks = slips.read_tasks(SETTING, 0, 400)
  domain = SETTING.domain(0)
  models = SolverPolicy(domain, 0), ExactScorer(domain, 'steps')
  found = slips.run_search(tasks, models, 0, method, **options)
  right = [it.chosen.meta['search']['chain_score'] == 1 for it in found]
  error = (expected * (1 - expected) / len(tasks)) ** 0.5
  assert np.mean(right) == pytest.approx(expected, abs=4 * error)


def test_the_lead_is_that_of_the_measures():
  judge = ExactScorer(SETTING.domain(0), 'steps')
  found = slips.measure(SETTING, 0, judge, 50)
  lead = found['beam with 4']['value'] - found['best of 16']['value']
  assert found[slips.LEAD]['value'] == pytest.approx(lead)
  low, high = found[slips.LEAD]['ci95']
  assert low <= lead <= high
  # A chain takes four steps of six tokens and its end.
  assert found['tokens']['best of 16'] == 16 * 25
  assert found['tokens']['beam with 4'] == 4 * 25


def test_settings_have_names_of_their_own():
  settings = {*slips.EXACT, *slips.LEARNED}
  assert len({it.name for it in settings}) == len(settings)
