"""The section on accuracy and cost of a search, by hand."""

import dataclasses

import pytest

from prm_jax.evals import search
from prm_jax.runtime.errors import UserError
from tests.evals.search_chains import chosen


def test_the_section_by_hand():
  chains = [
    chosen('a', True, tokens=100, dead={'cut off': 2}),
    chosen(
      'b',
      False,
      tokens=300,
      saved_tokens=70,
      dead={'cut off': 1, 'repeats itself': 4},
    ),
    chosen('c', False, ended=False, tokens=200, lost=3, stopped='tokens'),
  ]
  got = search.search_section(chains, ['no step'], resamples=200)
  assert got['problems'] == 4 and got['failed'] == 1
  # The failed problem counts as wrong and not ended; its cost is unknown.
  assert got['accuracy']['mean'] == 1 / 4
  assert got['answers_known'] == 4
  assert got['ended'] == 2 / 4
  assert got['cost']['tokens']['mean'] == 200
  assert got['cost']['flops']['mean'] == 4e6
  low, high = got['cost']['tokens']['ci95']
  assert 100 <= low < 200 < high <= 300
  assert list(got['dead'].items()) == [('repeats itself', 4), ('cut off', 3)]
  assert got['lost'] == 3 and got['stopped'] == {'tokens': 1}
  assert got['saved_tokens'] == 70
  assert got['failures'] == {'no step': 1}


def test_cost_has_no_seconds_if_a_chain_has_none():
  quiet = [chosen('a'), chosen('b')]
  del quiet[1].meta['search']['ledger']['seconds']
  got = search.search_section(quiet)
  assert tuple(got['cost']) == search.COSTS[:-1]


def test_total_flops_need_the_flops_of_every_model():
  def cost(scores=(0.9,), **ledgers):
    each = [
      chosen(str(i), True, scores, policy_flops=policy, prm_flops=prm)
      for i, (policy, prm) in enumerate(ledgers['flops'])
    ]
    return search.search_section(each)['cost']

  assert 'flops' not in cost(flops=[(3e6, 0), (2e6, 0)])
  assert 'flops' not in cost(flops=[(0, 1e6), (0, 1e6)])
  # The PRM had the second chain in its cache.
  assert cost(flops=[(3e6, 1e6), (2e6, 0)])['flops']['mean'] == 3e6
  # No PRM was asked.
  assert cost((None,), flops=[(3e6, 0), (1e6, 0)])['flops']['mean'] == 2e6


def test_unknown_answers_are_not_errors():
  got = search.search_section([chosen('a', None)], ['no step'])
  assert got['accuracy'] is None and got['answers_known'] == 0
  mixed = search.search_section([chosen('a', None), chosen('b', True)])
  assert mixed['accuracy']['mean'] == 1 and mixed['answers_known'] == 1
  # The truth is known, but the comparison took too long: that is not right.
  undecided = dataclasses.replace(chosen('a', True), outcome=None)
  assert search.correctness(undecided) == 0


def test_a_search_whose_problems_all_failed():
  got = search.search_section([], ['a', 'b', 'b'])
  assert got['failures'] == {'b': 2, 'a': 1}
  assert got['cost'] == {} and got['ended'] == 0


def test_chains_of_other_jobs_are_rejected():
  with pytest.raises(UserError, match='no problems'):
    search.search_section([])
  other = chosen('a')
  del other.meta['search']['ledger']
  with pytest.raises(UserError, match="chain 'a # 0' has no ledger"):
    search.search_section([other])
  del other.meta['search']
  with pytest.raises(UserError, match=r"no meta\['search'\]"):
    search.search_section([other])
