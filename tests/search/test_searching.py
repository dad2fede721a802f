"""What holds for all methods: company, budgets, and models that misbehave."""

import json
import math

import pytest

from prm_jax.domains.arithmetic import ArithmeticConfig
from prm_jax.domains.exact_scorer import ExactScorer
from prm_jax.domains.solver_policy import SolverPolicy
from prm_jax.errors import UserError
from prm_jax.policy import CannotAsk, Completion
from prm_jax.search import run
from prm_jax.search.budget import Budget, Ledger
from prm_jax.search.method import SearchConfig, Task
from prm_jax.search.methods import METHODS
from prm_jax.search.tree import Tree
from tests.search.scripted import Scripted, Table, by_id, live, noise, search

DOMAIN = ArithmeticConfig()
TASKS = [
  # One is far longer than the rest.
  Task(
    str(i), f'mod 10 : {i}' + f' + {i} * 7' * (12 if i == 3 else 2), truth='1'
  )
  for i in range(8)
]


def told(found):
  """All but the time it took."""
  return (
    found.failed,
    [(chain.steps, chain.answer, chain.outcome) for chain in found.chains],
    found.tree and found.tree.to_dict(),
    {k: v for k, v in found.ledger.items() if k != 'seconds'},
  )


@pytest.mark.parametrize('method', METHODS)
def test_company_changes_nothing(method):
  def go(tasks=TASKS, **grouping):
    models = SolverPolicy(DOMAIN), ExactScorer(DOMAIN)
    found = by_id(run(tasks, *models, method, **grouping))
    return {name: told(each) for name, each in found.items()}

  whole = go()
  assert len(whole) == len(TASKS) and not any(
    each[0] for each in whole.values()
  )
  assert go(TASKS[::-1], concurrent=3, at_once=10) == whole
  assert go(concurrent=1) == whole
  for task in TASKS[2:4]:
    assert go([task]) == {task.id: whole[task.id]}
  assert go(key='1') != whole


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize(
  ('limit', 'most'),
  [('samples', 7), ('tokens', 55), ('flops', 5e3), ('seconds', 1e-9)],
)
def test_a_budget_ends_it_with_the_best_so_far(method, limit, most):
  found = search(
    method, Scripted(3, 6), noise(0), budget=Budget(**{limit: most})
  )
  whole = search(method, Scripted(3, 6), noise(0))
  spent = found.ledger
  assert not found.failed and found.chosen.steps
  assert spent['samples'] <= whole.ledger['samples']
  if limit == 'samples':
    assert spent['samples'] <= most
  if spent['rounds'] < whole.ledger['rounds']:
    assert spent['stopped'] == limit
  elif spent['samples'] == whole.ledger['samples']:  # it is one round long
    assert spent['stopped'] == '' and told(found) == told(whole)
  # Not a round more than the one that met it.
  if limit in ('tokens', 'flops'):
    scale = 1 if limit == 'tokens' else 1e2
    policy, rounds = Scripted(3, 6), []
    search(method, policy, noise(0), budget=Budget(**{limit: most}))
    for asked in policy.asked:
      said = Scripted(3, 6).complete(asked)
      rounds.append(scale * sum(c.tokens for each in said for c in each))
    assert sum(rounds[:-1]) < most


def test_a_search_that_is_cut_short_prefers_a_chain_that_ended():
  budget = Budget(samples=8)
  found = search(
    'beam', Scripted(2, 9), noise(0), {'samples': 4}, budget=budget
  )
  assert not found.chosen.meta['search']['ended'] and not found.tree.ended()
  assert found.chosen.answer is None and found.chosen.outcome is False
  # The longest there is, and of these the best.
  assert len(found.chosen.steps) == 2
  ends = search('best_of_n', Scripted(2, 9), noise(0), budget=budget)
  assert ends.chosen.meta['search']['ended'] and ends.ledger['samples'] == 8


@pytest.mark.parametrize('most', [5, 6, 7, 9])
def test_the_last_round_is_cut_to_the_samples_that_are_left(most):
  budget, options = Budget(samples=most), {'samples': 4, 'width': 2}
  policy = Scripted(2, 9)
  found = search('beam', policy, noise(0), options, budget=budget)
  asked = [r for each in policy.asked for r in each]
  assert found.ledger['samples'] == sum(r.samples for r in asked) == most


def test_an_end_that_was_only_looked_at_is_better_than_none():
  options = {'samples': 4, 'width': 2, 'steps': 2}
  found = search(
    'lookahead', Scripted(2, 3), noise(0), options, budget=Budget(samples=8)
  )
  assert not found.tree.ended() and found.ledger['stopped'] == 'samples'
  assert found.chosen.answer == '0' and len(found.chosen.steps) == 3


@pytest.mark.parametrize('field', ['samples', 'tokens', 'flops', 'seconds'])
@pytest.mark.parametrize('value', [0, -1, math.nan])
def test_a_budget_of_nothing(field, value):
  with pytest.raises(UserError, match=rf'budget\.{field}={value}: nothing can'):
    Budget(**{field: value})


def test_budgets_that_cannot_be_kept():
  with pytest.raises(UserError, match=r'budget\.samples=0\.5: expected >= 1'):
    Budget(samples=0.5)
  exact, known = ExactScorer(DOMAIN), Scripted(2, 3)
  for models in ((SolverPolicy(DOMAIN), exact), (known, exact)):
    with pytest.raises(UserError, match=r'flops=1e\+06: .* does not say its'):
      list(run(TASKS, *models, 'beam', budget=Budget(flops=1e6)))
  assert not known.asked
  # Which PRM there is does not matter where none is asked.
  list(run(TASKS, known, exact, 'majority', budget=Budget(flops=1e6)))


def test_a_budget_in_flops_where_all_was_computed_before():
  """Caches hold what is asked: the budget is not met, and nothing fails."""

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
  assert ledger.limit(Budget(tokens=5)) == 'tokens'
  assert ledger.limit(Budget(tokens=6)) == ''
  assert ledger.limit(Budget(seconds=1e-9)) == 'seconds'


def test_what_no_search_can_be():
  with pytest.raises(UserError, match="method='beams': expected one of best_"):
    search('beams', Scripted(), noise(0))
  with pytest.raises(UserError, match=r'options of beam: .*breadth'):
    search('beam', Scripted(), noise(0), {'breadth': 3})
  with pytest.raises(UserError, match='asks a PRM and there is none'):
    search('beam', Scripted(), None)
  with pytest.raises(UserError, match="2 tasks have the id '5'"):
    list(run([*TASKS, TASKS[5]], SolverPolicy(DOMAIN), method='majority'))
  assert list(run([], SolverPolicy(DOMAIN), method='majority')) == []
  for name in ('max_steps', 'max_repeats'):
    with pytest.raises(UserError, match=rf'search\.{name}=0: expected >= 1'):
      SearchConfig(**{name: 0})


class Misbehaving(Scripted):
  """Scripted, but for the problems whose text says otherwise."""

  def one(self, request, number):
    good = super().one(request, number)
    behave = BEHAVIOURS.get(request.problem)
    return behave(request, good) if behave else good


def _cut(request, good):  # no separator ever comes
  return Completion((), False, 50, 0, -9.0)


def _no_room(request, good):
  return Completion((), False, 50, 0, -9.0, no_room=True)


def _blank(request, good):
  return good._replace(steps=(' \n',) * len(good.steps))


def _repeats(request, good):
  # To the limit, or, asked for a whole chain, until the window is full.
  count = request.max_steps or 100
  return Completion(('same = 1',) * count, False, 10 * count, 0, -1.0)


def _same(request, good):
  return good._replace(
    steps=tuple(f'{len(request.steps) + p}' for p in range(len(good.steps)))
  )


def _ends_at_once(request, good):
  return Completion((), True, 1, 0, -0.5)


def _lost(request, good):
  return None


def _lost_later(request, good):
  return None if request.steps else good


def _never_ends(request, good):
  count = request.max_steps or 200
  steps = tuple(f'{len(request.steps) + p}?' for p in range(count))
  return Completion(steps, False, 10 * count, 0, -1.0)


BEHAVIOURS = {
  each.__name__: each
  for each in (
    _cut,
    _no_room,
    _blank,
    _repeats,
    _same,
    _ends_at_once,
    _lost,
    _lost_later,
    _never_ends,
  )
}
REASONS = {
  '_cut': 'without a whole step',
  '_no_room': 'window full',
  '_blank': 'an empty step',
  '_ends_at_once': 'ended without a step',
  '_lost': 'could not be had',
}


@pytest.mark.parametrize('method', METHODS)
def test_a_policy_that_misbehaves_at_some_problems(method):
  names = ['fine', *BEHAVIOURS, 'fine, too']
  tasks = [Task(name, name, truth='0') for name in names]
  config = SearchConfig(max_steps=20)
  prm = noise(0)
  found = by_id(run(tasks, Misbehaving(), prm, method, config=config))
  assert found.keys() == set(names)
  for name, each in found.items():
    if reason := REASONS.get(name):
      assert reason in each.failed and '\n' not in each.failed
      assert each.failed[0] != '0' and not each.chains  # it was tried
      continue
    assert not each.failed
    if name in ('_repeats', '_never_ends'):
      # Bounded, and no answer is made up.
      assert each.chosen.answer is None and each.ledger['samples'] <= 2000
      assert max(len(node.step) for node in each.tree.nodes) < 20
    elif name != '_lost_later':
      assert each.chosen.meta['search']['ended']
  for name in ('fine', 'fine, too'):
    [alone] = run([Task(name, name, truth='0')], Scripted(), prm, method)
    assert live(alone) == live(found[name])


def test_why_chains_were_given_up_is_counted():
  task = [Task('t', '_repeats')]
  config = SearchConfig(max_repeats=2)
  options = {'samples': 4, 'width': 1}
  [found] = run(task, Misbehaving(), noise(0), 'beam', options, config)
  assert found.ledger['dead'] == {'repeats itself': 4}
  assert found.chosen.steps == ('same = 1',) * 2
  config = SearchConfig(max_steps=3)
  task = [Task('t', '_never_ends')]
  [found] = run(task, Misbehaving(), noise(0), 'beam', options, config)
  assert found.ledger['dead'] == {'too many steps': 4}
  assert found.chosen.steps == ('0?', '1?', '2?')
  [found] = run(task, Misbehaving(), noise(0), 'best_of_n', {'samples': 5})
  assert found.ledger['dead'] == {'cut off': 5}
  task = [Task('t', '_cut')]
  [found] = run(task, Misbehaving(), noise(0), 'best_of_n', {'samples': 5})
  assert found.failed == (
    '5 completions and no step to go on from: 5 without a whole step'
  )


@pytest.mark.parametrize('method', METHODS)
def test_a_request_that_is_refused(method):
  class Refusing(Scripted):
    def complete(self, requests):
      refused = {
        r: f'no\nmore of {r.problem}'
        for r in requests
        if r.problem == 'all' or (r.problem == 'later' and r.steps)
      }
      if refused:
        raise CannotAsk(refused)
      return super().complete(requests)

  tasks = [Task(name, name) for name in ('all', 'fine', 'later')]
  found = by_id(run(tasks, Refusing(), noise(0), method))
  assert found['all'].failed == 'no more of all'
  [alone] = run([tasks[1]], Scripted(), noise(0), method)
  assert live(alone) == live(found['fine'])
  later = found['later']
  assert not later.failed and later.chosen.steps
  if later.ledger['samples'] < found['fine'].ledger['samples']:
    assert later.ledger['stopped'] == 'no more of later'


@pytest.mark.parametrize('method', [m for m in METHODS if METHODS[m].scores])
def test_a_prm_that_fails_at_some_problems(method):
  class Faulty(Table):
    def score(self, requests):
      return [
        [self._spoilt(r, scored)]
        for r, (scored,) in zip(requests, super().score(requests), strict=True)
      ]

    def _spoilt(self, request, scored):
      if request.problem == 'short window' or (
        request.problem == 'window of 2' and len(request.steps) > 2
      ):
        return scored._replace(scores=())
      if request.problem == 'NaN' or (
        # Of one branch of the first step.
        request.problem == 'some NaN' and request.steps[0][-1] == '1'
      ):
        return scored._replace(scores=(*scored.scores[:-1], math.nan))
      return scored

  names = ['fine', 'NaN', 'some NaN', 'short window', 'window of 2']
  prm = Faulty(noise(0)._score)
  tasks = [Task(name, name) for name in names]
  found = by_id(run(tasks, Scripted(3, 4), prm, method))
  assert 'scored NaN' in found['NaN'].failed
  assert "longer than the PRM's window" in found['short window'].failed
  some = found['some NaN']
  assert some.chosen.meta['search']['ended']
  assert some.chosen.steps[0] != '0: x = 1'
  assert some.ledger['dead']['scored NaN']
  assert all(chain.steps[0] != '0: x = 1' for chain in some.chains)
  cut = found['window of 2']
  assert cut.failed or not cut.chosen.meta['search']['ended']
  [alone] = run([tasks[0]], Scripted(3, 4), noise(0), method)
  assert live(alone) == live(found['fine'])
  for each in found.values():
    if each.tree:
      text = json.dumps(each.tree.to_dict(), allow_nan=False)
      again = Tree.from_dict(json.loads(text))
      assert again.to_dict() == each.tree.to_dict()
