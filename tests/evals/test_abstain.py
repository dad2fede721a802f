"""Abstaining: the section, its decisions and the weakest steps."""

import dataclasses

import pytest

from prm_jax.evals import abstain
from prm_jax.runtime.errors import UserError
from tests.evals.search_chains import chosen


def searched(start, count, wrong_below=0.5, unknown=False):
  """Chains whose second step scores p, and that are right where p is high."""
  found = []
  for i in range(count):
    p = (i % 100 + 0.5) / 100
    right = None if unknown else p > wrong_below
    found.append(chosen(start + i, right, (0.99, p)))
  return found


def test_the_section_and_its_decisions():
  tested = [*searched(1000, 200), chosen('cut', False, (0.99,), ended=False)]
  got = abstain.abstain_section(searched(0, 400), tested, 0.1)
  assert 0.4 < got['threshold'] <= 0.52
  assert got['bound'] <= 0.1
  about = got['tested']
  assert about['problems'] == 201
  decisions = got['problems']
  assert about['answered'] == sum(each['answered'] for each in decisions)
  shown = [each for each in decisions if each['answered']]
  assert about['errors'] == sum(not each['outcome'] for each in shown)
  assert about['error_of_all'] == pytest.approx(101 / 201)
  assert min(each['chain_score'] for each in shown) == got['threshold']
  assert min(each['probability'] for each in shown) == got['probability']
  assert shown[0]['weakest_step'] == {
    'number': 2,
    'text': 'step 1',
    'score': shown[0]['chain_score'],
  }
  cut = decisions[-1]
  assert not cut['answered'] and cut['chain_score'] is None
  assert got['risk_coverage']['coverage'][-1] == pytest.approx(200 / 201)


def test_the_filter_keeps_to_the_confidence_and_the_seed():
  held_out, tested = searched(0, 400), searched(1000, 200)
  got = abstain.abstain_section(held_out, tested, 0.1)
  lax = abstain.abstain_section(held_out, tested, 0.1, confidence=0.5)
  assert lax['threshold'] < got['threshold']
  others = [
    abstain.abstain_section(held_out, tested, 0.1, seed=seed)['threshold']
    for seed in range(1, 5)
  ]
  assert set(others) != {got['threshold']}


def test_a_chain_without_an_answer_is_not_answered():
  silent = dataclasses.replace(chosen('silent', False, (0.99,)), answer=None)
  got = abstain.abstain_section(searched(0, 400), [silent], 0.1)
  assert not got['problems'][0]['answered']


def test_tested_problems_need_no_right_answers():
  got = abstain.abstain_section(
    searched(0, 400), searched(1000, 100, unknown=True), 0.1
  )
  assert got['risk_coverage'] is None
  assert 'error' not in got['tested'] and got['tested']['answered'] > 10


def test_the_weakest_step_is_the_first_of_equals_and_none_without_scores():
  assert abstain.weakest_step(chosen('a', True, (None, None))) is None
  first = abstain.weakest_step(chosen('a', True, (0.5, 0.2, 0.2)))
  assert first['number'] == 2


def test_bad_held_out_problems_are_rejected():
  some = searched(0, 100)
  with pytest.raises(UserError, match='100 problems are held out and tested'):
    abstain.abstain_section(some, some, 0.1)
  with pytest.raises(UserError, match="held-out problem '0' has no right"):
    abstain.abstain_section(searched(0, 9, unknown=True), some, 0.1)


def test_a_problem_that_was_searched_twice_is_no_more_evidence():
  once, tested = searched(0, 100), searched(1000, 100)
  got = abstain.abstain_section(once, tested, 0.2)
  assert got == abstain.abstain_section([*once, *once, *once], tested, 0.2)
