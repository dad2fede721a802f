"""Verdicts follow from the intervals of effects."""

import math

import numpy as np
import pytest

from experiments import findings
from experiments.findings import (
  ABOVE,
  BELOW,
  FAILS,
  HOLDS,
  MISSING,
  OPEN,
  Case,
  Effect,
)
from experiments.rl_process_vs_outcome import claims as rl_claims
from experiments.rl_process_vs_outcome import tables as rl_tables
from experiments.rl_runs import Curve
from experiments.tables import points, ratio_between

WITHIN_2 = (-0.02, 0.02)
ATMOST_2 = (-math.inf, 0.02)
FIVE_TIMES = (5.0, math.inf)


@pytest.mark.parametrize(
  ('ci95', 'open_ends', 'region', 'verdict'),
  [
    ((0.01, 0.05), (False, False), ABOVE, HOLDS),
    ((-0.05, -0.01), (False, False), ABOVE, FAILS),
    ((-0.01, 0.05), (False, False), ABOVE, OPEN),
    ((-0.05, -0.01), (False, False), BELOW, HOLDS),
    # Equal seeds have an interval that ends where it begins.
    ((0.0, 0.0), (False, False), ABOVE, OPEN),
    ((0.01, 0.01), (False, False), ABOVE, OPEN),
    ((0.0, 0.0), (False, False), WITHIN_2, OPEN),
    # An equivalence needs the whole interval, not a lack of significance.
    ((-0.01, 0.01), (False, False), WITHIN_2, HOLDS),
    ((-0.01, 0.05), (False, False), WITHIN_2, OPEN),
    ((0.03, 0.05), (False, False), WITHIN_2, FAILS),
    ((-0.5, 0.01), (False, False), ATMOST_2, HOLDS),
    # An open end may be anywhere beyond the number that it shows.
    ((6.0, 7.0), (False, True), FIVE_TIMES, HOLDS),
    ((6.0, 7.0), (True, True), FIVE_TIMES, OPEN),
    ((1.0, 4.0), (True, False), FIVE_TIMES, FAILS),
    ((1.0, 4.0), (False, True), FIVE_TIMES, OPEN),
  ],
)
def test_a_verdict_needs_the_whole_interval(ci95, open_ends, region, verdict):
  assert Case(Effect(0.0, ci95, open_ends)).verdict(region) == verdict


@pytest.mark.parametrize('effect', [None, Effect(0.5, None)])
def test_without_an_interval_a_case_is_open(effect):
  case = Case(effect, 'math')
  assert case.verdict(ABOVE) == OPEN
  found = findings.judge([case], 'noise 20.0')
  assert found.interval == MISSING
  assert found.effect == ('+50.0 points (math)' if effect else MISSING)


def test_a_difference_that_rounds_to_nothing_has_no_sign():
  shown = [points(value) for value in (-0.0004, 0.0, 0.0004, -0.0006, 0.0006)]
  assert shown == ['0.0', '0.0', '0.0', '-0.1', '+0.1']


@pytest.mark.parametrize(
  ('verdicts', 'row'),
  [
    ([HOLDS, HOLDS], HOLDS),
    ([HOLDS, OPEN, FAILS], 'holds in 1, fails in 1 of 3'),
    ([OPEN, FAILS], 'fails in 1 of 2'),
    ([FAILS], FAILS),
    ([OPEN, OPEN], OPEN),
  ],
)
def test_a_row_counts_its_cases(verdicts, row):
  assert findings.row_verdict(verdicts) == row


def test_a_lead_is_paired_by_seed():
  # Differences 0.1, 0.2, 0.3: 0.2 -+ 4.3027 * 0.1 / sqrt(3) = 0.2 -+ 0.248.
  case = findings.lead([0.5, 0.3, 0.9], [0.4, 0.1, 0.6], '5 steps')
  assert case.effect.value == pytest.approx(0.2)
  assert case.effect.ci95 == pytest.approx([-0.0484, 0.4484], abs=1e-4)
  found = findings.judge([case], 'noise 20.0')
  assert found == (
    '+20.0 points (56.7 to 36.7; 5 steps)',
    'noise 20.0',
    '-4.8 to +44.8, 3 seeds',
    OPEN,
  )
  assert findings.lead(None, [0.1]).effect is None
  # Unpaired, the same numbers would say far less.
  assert findings.over([0.5, 0.3, 0.9]).ci95[1] - 0.567 > 0.4


def test_no_share_is_beyond_0_and_1():
  effect = findings.over([0.0, 0.768, 0.0])
  assert effect.value == pytest.approx(0.256) and effect.ci95[1] == 1.0
  assert findings.over([0.4]).ci95 is None


def test_a_claim_without_cases_is_open():
  found = findings.judge([], 'noise 20.0')
  assert found == (MISSING, 'noise 20.0', MISSING, OPEN)


def test_open_ends_are_shown():
  assert ratio_between((2.1, 4.0), (False, True)) == '2.1 to > 4.0'
  assert ratio_between((1.0, 1.5), (True, False)) == '< 1.0 to 1.5'
  assert ratio_between((1.5, 1.5), (False, True)) == '> 1.5'
  assert ratio_between((1.0, 1.0), (True, False)) == '< 1.0'
  assert ratio_between((1.0, 1.0), (True, True)) == '< 1.0 to > 1.0'


def curve(seed, slope, begin=0.5):
  """Accuracy that grows by `slope` with each factor 2 of chains; no noise."""
  chains = np.array([0, 640, 1280, 2560, 5120, 10_240])
  right = begin + slope * np.arange(-1, 5) + 0.01 * seed
  right[0] = right[1]
  problems = np.tile(right, (50, 1)) + np.linspace(-0.1, 0.1, 50)[:, None]
  nothing = np.zeros_like(problems)
  return Curve(chains, problems, nothing, nothing, np.zeros(6), hacked=False)


def rl_results():
  """Four arms, three seeds: one fast, one like the reference, one falls."""
  seeds = (1, 2, 3)
  arms = {
    'outcome': [curve(seed, 0.05) for seed in seeds],
    'outcome + exact labels': [
      curve(seed, 0.1 + 0.001 * seed) for seed in seeds
    ],
    'outcome + PRM': [curve(seed, 0.02 + 0.001 * seed) for seed in seeds],
    'PRM, sum': [curve(seed, -0.1 - 0.001 * seed) for seed in seeds],
  }
  rates = dict.fromkeys(arms, 1e-4)
  found = rl_tables.summarise(arms, {arm: {} for arm in arms}, rates, seeds)
  return {'5': {'title': '5 operations', 'shares': ''} | found}


def test_rl_needs_fewer_chains_or_never_comes_so_far():
  document = {'results': rl_results()}
  arms = document['results']['5']['arms']
  fast = arms['outcome + exact labels']['to_reach'][rl_tables.ENDS]
  # What theirs has at the end, averaged with its neighbour, is 0.175 above the
  # start; twice as steep, ours has it at about a quarter of the chains.
  assert 3 < fast['ci95'][0] <= fast['times_less'] <= fast['ci95'][1] < 6
  assert fast['open'] == [False, False]
  slow = arms['outcome + PRM']['to_reach'][rl_tables.ENDS]
  assert slow['times_less'] is None and slow['open'] == [True, False]
  assert slow['ci95'] == [1.0, 1.0]
  found = rl_claims.fewer_chains('outcome + exact labels')(document)
  assert found.verdict == HOLDS
  found = rl_claims.fewer_chains('outcome + PRM')(document)
  assert found[0] == 'never (5 operations)' and found.verdict == FAILS
  higher = rl_claims.ends_higher('outcome + exact labels')(document)
  assert higher.verdict == HOLDS and '3 seeds' in higher.interval
  assert rl_claims.ends_higher('outcome + PRM')(document).verdict == FAILS
  # With the same models once more, the arms that ran before count once.
  again = {'title': 'again', 'shares': '5'}
  again['arms'] = arms | {'new': arms['outcome + PRM']}
  twice = {
    'results': document['results']
    | {'5_again': document['results']['5'] | again}
  }
  assert rl_claims.ends_higher('outcome + exact labels')(twice) == higher
  assert '(again)' in rl_claims.fewer_chains('new')(twice).effect
  # Four times fewer are three times fewer, and not five.
  for arm_times, verdict in ((3.0, HOLDS), (6.0, FAILS)):
    find = rl_claims.fewer_chains('outcome + exact labels', arm_times)
    assert find(document).verdict == verdict
  text = rl_tables.render(document['results'])
  assert 'never (never, never, never); never (< 1.0)' in text
  assert 'learning rate' not in text  # there was one only


def test_rl_of_one_seed_has_no_interval_over_seeds():
  arms = {'outcome': [curve(1, 0.05)], 'PRM, sum': [curve(1, -0.1)]}
  found = rl_tables.summarise(
    arms, {arm: {} for arm in arms}, dict.fromkeys(arms, 1e-4), (1,)
  )
  assert found['arms']['PRM, sum']['ends']['1']['value'] < 0.4
  assert 'never' in rl_tables.render({'5': {'title': '5 operations'} | found})
