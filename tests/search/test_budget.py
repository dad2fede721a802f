"""Budgets end searches, and ledgers count what was spent."""

import dataclasses
import json
import math

import pytest

from prm_jax.data.chains import StepLabel, was_cut_off
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.labels import omega, rollouts
from prm_jax.runtime.errors import UserError
from prm_jax.search import RunConfig, run
from prm_jax.search.budget import Budget, Ledger
from prm_jax.search.method import Task
from prm_jax.search.methods import METHODS
from tests.labels.run_labellings import run as run_labellings
from tests.search.scripted import Scripted, Table, noise, search

DOMAIN = ArithmeticConfig()
TASKS = [Task('0', 'mod 10 : 3 + 4 * 7', truth='1')]


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize(
  ('limit', 'most'),
  [('samples', 7), ('tokens', 55), ('flops', 5e3), ('seconds', 1e-9)],
)
def test_a_budget_ends_a_search_with_the_best_so_far(method, limit, most):
  policy, budget = Scripted(3, 6), Budget(**{limit: most})
  options = {'samples': 16} if method == 'refine' else {}
  found = search(method, policy, noise(0), options, budget=budget)
  spent = found.ledger
  assert not found.failed and found.chosen.steps
  # Each method wants more than the limit.
  assert spent['stopped'] == limit
  if limit == 'samples':
    assert spent['samples'] <= most
    return
  # The round that reached the limit was the last, with few whole chains.
  each = [
    sum(c.tokens for several in Scripted(3, 6).complete(asked) for c in several)
    for asked in policy.asked
  ]
  scale = {'tokens': 1, 'flops': 1e2, 'seconds': 1}[limit]
  assert scale * sum(each[:-1]) < most or len(each) == 1
  for asked in policy.asked:
    assert sum(r.samples for r in asked if not r.max_steps) <= 4


@pytest.mark.parametrize('method', ['best_of_n', 'majority', 'weighted_vote'])
def test_how_many_chains_are_begun_between_two_checks_of_the_budget(method):
  def ledger(round_size=0, samples=16, **limits):
    options = {'samples': samples, 'round_size': round_size}
    budget = Budget(**limits)
    return search(
      method, Scripted(3, 6), noise(0), options, budget=budget
    ).ledger

  def counts(*args, **limits):
    found = ledger(*args, **limits)
    return [found[name] for name in ('samples', 'rounds', 'stopped')]

  # A chain is sixty tokens.
  assert counts(tokens=10) == [4, 1, 'tokens']
  assert counts(tokens=241) == [8, 2, 'tokens']
  assert counts(1, tokens=10) == [1, 1, 'tokens']
  assert counts(8, tokens=10) == [8, 1, 'tokens']
  assert counts(8, tokens=5000) == [16, 2, '']
  # All four are written: for more than the limit, and for exactly that.
  assert counts(samples=4, tokens=239) == [4, 1, 'tokens']
  assert counts(samples=4, tokens=240) == [4, 1, '']
  # Without a limit on their cost, all are asked for in one round.
  assert counts() == [16, 1, '']


@pytest.mark.parametrize('method', METHODS)
def test_a_budget_that_is_not_reached_changes_nothing(method):
  options = {'rollouts': 3, 'simulations': 8} if method == 'mcts' else {}
  found, whole = (
    search(method, Scripted(3, 6), noise(0), options, budget=budget)
    for budget in (Budget(tokens=1e9), Budget())
  )
  assert found.tree.to_dict() == whole.tree.to_dict()
  assert found.chosen.steps == whole.chosen.steps
  assert found.ledger['stopped'] == whole.ledger['stopped'] == ''


def test_a_search_that_is_cut_short_prefers_a_chain_that_ended():
  budget = Budget(samples=8)
  found = search(
    'beam', Scripted(2, 9), noise(0), {'samples': 4}, budget=budget
  )
  assert not found.chosen.meta['search']['ended'] and not found.tree.ended()
  assert found.chosen.answer is None and found.chosen.outcome is False
  assert was_cut_off(found.chosen)
  # The longest there is, and of these the best.
  assert len(found.chosen.steps) == 2
  ends = search('best_of_n', Scripted(2, 9), noise(0), budget=budget)
  assert ends.chosen.meta['search']['ended'] and ends.ledger['samples'] == 8
  assert not any(map(was_cut_off, ends.chains))


@pytest.mark.parametrize(
  ('label', 'config'),
  [
    (rollouts.label, rollouts.RolloutConfig()),
    (omega.label, omega.OmegaConfig()),
  ],
)
def test_the_right_last_step_of_a_chain_without_an_end_is_labelled_right(
  label, config
):
  """A solver that never errs wrote it, and ends right from there."""
  solver = dataclasses.replace(DOMAIN, wrong_facts=0.0, slip=0.0)
  models = SolverPolicy(solver), ExactScorer(solver)
  how = RunConfig(budget=Budget(samples=4))
  tasks = [Task('0', 'mod 10 : 3 + 4 * 7', truth='9')]
  [found] = run(tasks, *models, 'beam', {'samples': 4}, how=how)
  assert found.chosen.steps == ('3 + 4 = 7',)
  [labelled], _ = run_labellings([label(found.chosen, config)], models[0])
  assert labelled.labels == (StepLabel(1.0, 'rollout', 8, 8),)


@pytest.mark.parametrize('most', [5, 6, 7, 9])
def test_the_last_round_is_cut_to_the_samples_that_are_left(most):
  budget, options = Budget(samples=most), {'samples': 4, 'width': 2}
  policy = Scripted(2, 9)
  found = search('beam', policy, noise(0), options, budget=budget)
  asked = [r for each in policy.asked for r in each]
  assert found.ledger['samples'] == sum(r.samples for r in asked) == most


def test_an_end_found_by_looking_ahead_is_better_than_none():
  options = {'samples': 4, 'width': 2, 'steps': 2}
  found = search(
    'lookahead', Scripted(2, 3), noise(0), options, budget=Budget(samples=8)
  )
  assert not found.tree.ended() and found.ledger['stopped'] == 'samples'
  assert found.chosen.answer == '0' and len(found.chosen.steps) == 3


@pytest.mark.parametrize('field', ['samples', 'tokens', 'flops', 'seconds'])
@pytest.mark.parametrize('value', [0, -1, math.nan])
def test_an_empty_budget_is_rejected(field, value):
  with pytest.raises(UserError, match=rf'^{field}={value}: expected'):
    Budget(**{field: value})


def test_budgets_in_flops_need_models_that_count_them():
  with pytest.raises(UserError, match=r'^samples=0\.5: expected >= 1'):
    Budget(samples=0.5)
  exact, known = ExactScorer(DOMAIN), Scripted(2, 3)
  how = RunConfig(budget=Budget(flops=1e6))
  for models in ((SolverPolicy(DOMAIN), exact), (known, exact)):
    with pytest.raises(UserError, match=r'flops=1e\+06: .* does not say its'):
      list(run(TASKS, *models, 'beam', how=how))
  assert not known.asked
  # The PRM does not matter to a method that never asks it.
  list(run(TASKS, known, exact, 'majority', how=how))


def test_what_the_prm_computes_counts_towards_a_budget_in_flops():
  class Costly(Table):
    def score(self, requests):
      return [[s._replace(flops=1e6)] for (s,) in super().score(requests)]

  policy, prm = Scripted(3, 6), Costly(lambda steps: 0.5)
  options = {'samples': 3, 'width': 3}
  found = search('beam', policy, prm, options, budget=Budget(flops=2e6))
  assert found.ledger['stopped'] == 'flops'
  # The three first steps were scored, and there was no second round.
  assert found.ledger['prm_flops'] == 3e6


def test_cached_computation_does_not_count_towards_a_budget_in_flops():

  class Cached(Scripted):
    def one(self, request, number):
      return super().one(request, number)._replace(flops=0.0)

  options = {'samples': 4, 'width': 2}
  found = search(
    'beam', Cached(2, 4), noise(0), options, budget=Budget(flops=1.0)
  )
  assert found.chosen and not found.ledger['stopped']


def test_the_ledger_adds_up():
  policy = Scripted(3, 4)
  found = search('beam', policy, noise(0), {'samples': 6, 'width': 3})
  asked = [r for each in policy.asked for r in each]
  assert found.ledger['samples'] == sum(r.samples for r in asked)
  assert found.ledger['rounds'] == len(policy.asked) == 4
  nodes = found.tree.nodes
  assert found.ledger['tokens'] == sum(node.tokens for node in nodes)
  assert found.ledger['policy_flops'] == 100 * found.ledger['tokens']
  json.dumps(found.ledger, allow_nan=False)
  assert 0 < found.ledger['seconds'] < 60
  ledger = Ledger(tokens=5)
  assert ledger.reached_limit(Budget(tokens=5)) == 'tokens'
  assert ledger.reached_limit(Budget(tokens=5), exceeded=True) == ''
  assert ledger.reached_limit(Budget(tokens=6)) == ''
  assert ledger.reached_limit(Budget(seconds=1e-9)) == 'seconds'
