"""All methods: independence of other problems, and models that misbehave."""

import json
import math
import re
import sys

import numpy as np
import pytest

import prm_jax
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import CannotAsk, Completion, ScoredSteps
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.runtime.errors import UserError
from prm_jax.search import RunConfig, run
from prm_jax.search.budget import Budget
from prm_jax.search.method import SearchConfig, Task
from prm_jax.search.methods import METHODS
from prm_jax.search.tree import Tree
from tests.search.scripted import (
  TASK,
  CutsOff,
  Scripted,
  Table,
  by_id,
  kept_nodes,
  noise,
  search,
)

DOMAIN = ArithmeticConfig()
TASKS = [
  # One problem is far longer than the others.
  Task(
    str(i), f'mod 10 : {i}' + f' + {i} * 7' * (12 if i == 3 else 2), truth='1'
  )
  for i in range(8)
]


def content(found):
  """A result without the time that it took."""
  return (
    found.failed,
    [(chain.steps, chain.answer, chain.outcome) for chain in found.chains],
    found.tree and found.tree.to_dict(),
    {k: v for k, v in found.ledger.items() if k != 'seconds'},
  )


@pytest.mark.parametrize('method', METHODS)
def test_problems_searched_together_do_not_affect_each_other(method):
  def go(tasks=TASKS, **how):
    models = SolverPolicy(DOMAIN), ExactScorer(DOMAIN)
    found = by_id(run(tasks, *models, method, how=RunConfig(**how)))
    return {name: content(each) for name, each in found.items()}

  whole = go()
  assert len(whole) == len(TASKS) and not any(
    each[0] for each in whole.values()
  )
  assert go(TASKS[::-1], concurrent=3, samples_per_round=10) == whole
  assert go(concurrent=1) == whole
  for task in TASKS[2:4]:
    assert go([task]) == {task.id: whole[task.id]}
  assert go(key='1') != whole


def test_kept_chain_scores_are_aggregated_anew():
  kept = {'task': search('best_of_n', Scripted(), noise(0), None, 'min').tree}
  found = search('best_of_n', Scripted(), noise(0), None, 'mean', trees=kept)
  for chain in found.chains:
    about = chain.meta['search']
    mean = sum(about['scores']) / len(about['scores'])
    assert about['chain_score'] == pytest.approx(mean)
  assert len(found.chains) == 32


@pytest.mark.parametrize('policy', [Scripted(3, 20), CutsOff(3, 20)])
def test_each_kept_chain_is_scored_once(policy):
  """The PRM is asked just as by a search that draws all chains anew."""
  tree = search('majority', policy, None, {'samples': 16}).tree
  prm, anew = noise(0), noise(0)
  for samples in (1, 2):
    kept = {'task': tree}
    found = search('best_of_n', policy, prm, {'samples': samples}, trees=kept)
    tree = found.tree
  whole = search('best_of_n', policy, anew, {'samples': 19})
  assert prm.asked == anew.asked and tree.to_dict() == whole.tree.to_dict()
  assert len(prm.asked) == sum(n.ended for n in tree.nodes) <= 19


def test_the_example_of_the_module():
  about = sys.modules['prm_jax.search.run'].__doc__  # its name is a function's
  (code,) = re.findall('^    (found = .*)$', about, re.MULTILINE)
  names = {'prm_jax': prm_jax, 'tasks': TASKS[:1]}
  names |= {'policy': SolverPolicy(DOMAIN), 'prm': ExactScorer(DOMAIN)}
  exec(code, names)
  [found] = names['found']
  assert found.chosen.steps


def test_impossible_searches_are_rejected():
  with pytest.raises(UserError, match="method='beams': expected one of best_"):
    search('beams', Scripted(), noise(0))
  with pytest.raises(UserError, match=r'options of beam: .*breadth'):
    search('beam', Scripted(), noise(0), {'breadth': 3})
  with pytest.raises(UserError, match=r'beam\.samples=16: .* width=3'):
    search('beam', Scripted(), noise(0), {'width': 3})
  with pytest.raises(UserError, match='asks a PRM and there is none'):
    search('beam', Scripted(), None)
  with pytest.raises(UserError, match="2 tasks have the id '5'"):
    list(run([*TASKS, TASKS[5]], SolverPolicy(DOMAIN), method='majority'))
  assert list(run([], SolverPolicy(DOMAIN), method='majority')) == []
  assert_no_search(
    [*TASKS, Task('b', ' ')], "text of task 'b' is ' ': expected"
  )
  assert_no_search([*TASKS, Task('b', None)], "text of task 'b' is None: ")
  assert_no_search([*TASKS, Task('b', 'x', 5)], "truth of task 'b' is 5: ")
  assert_no_search([*TASKS, Task('b', 'x', None)], "or '' if it is unknown")
  for name in ('max_steps', 'max_repeats'):
    with pytest.raises(UserError, match=rf'^{name}=0: expected >= 1'):
      SearchConfig(**{name: 0})


def assert_no_search(tasks, why):
  policy = Scripted()
  with pytest.raises(UserError, match=why):
    next(run(tasks, policy, noise(0)))
  assert not policy.asked


class Bare:
  """A policy and PRM with no more than a search asks of them."""

  name = 'bare'

  def complete(self, requests):
    # NumPy's numbers, which JSON does not have.
    done = Completion(
      ('x = 1',), np.True_, np.int64(3), np.int64(5), np.float32(-0.5)
    )
    return [[done] * request.samples for request in requests]

  def score(self, requests):
    return [
      [ScoredSteps((np.float32(0.5),) * len(r.steps), 1)] for r in requests
    ]


def test_any_object_can_be_a_policy_or_a_prm():
  [found] = run([TASK], Bare(), Bare(), options={'samples': 2})
  node = {'parent': 0, 'step': 'x = 1', 'stream': ['0/task', 1], 'ended': True}
  scores = {'score': 0.5, 'chain_score': 0.5, 'logprob': -0.5}
  counts = {'tokens': 3, 'depth': 1}
  assert found.tree.to_dict()['nodes'][2] == node | scores | counts
  json.dumps(found.tree.to_dict())
  how = RunConfig(budget=Budget(flops=1e9))
  with pytest.raises(UserError, match='bare does not say its FLOPs; limit'):
    next(run([TASK], Bare(), Bare(), how=how))


class Misbehaving(Scripted):
  """A Scripted policy that misbehaves at the problems named in BEHAVIOURS."""

  def one(self, request, number):
    good = super().one(request, number)
    behave = BEHAVIOURS.get(request.problem)
    return behave(request, good) if behave else good


def _cut(request, good):  # the separator of a step never comes
  return Completion((), False, 50, 0, -9.0)


def _no_room(request, good):
  return Completion((), False, 50, 0, -9.0, no_room=True)


def _blank(request, good):
  return good._replace(steps=(' \n',) * len(good.steps))


def _repeats(request, good):
  # Up to the limit or, in a whole chain, until the window is full.
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
      # The reason starts with a count of completions, which is not 0.
      assert each.failed[0] != '0' and not each.chains
      continue
    assert not each.failed
    if name in ('_repeats', '_never_ends'):
      # The search is bounded, and no answer is made up.
      assert each.chosen.answer is None and each.ledger['samples'] <= 2000
      assert max(len(node.step) for node in each.tree.nodes) < 20
    elif name != '_lost_later':
      assert each.chosen.meta['search']['ended']
  for name in ('fine', 'fine, too'):
    [alone] = run([Task(name, name, truth='0')], Scripted(), prm, method)
    assert kept_nodes(alone) == kept_nodes(found[name])


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
  assert kept_nodes(alone) == kept_nodes(found['fine'])
  later = found['later']
  assert not later.failed and later.chosen.steps
  if later.ledger['samples'] < found['fine'].ledger['samples']:
    assert later.ledger['stopped'] == 'no more of later'


@pytest.mark.parametrize('method', ['beam', 'mcts', 'refine'])
def test_when_the_policy_gives_up_the_best_so_far_is_given(method):
  class GivesUp(Scripted):
    def complete(self, requests):
      if len(self.asked) == 2:
        raise UserError('the server is gone')
      return super().complete(requests)

  tasks = [Task(name, name) for name in 'abcd']
  found = []
  with pytest.raises(UserError, match='the server is gone'):
    how = RunConfig(concurrent=3)
    for each in run(tasks, GivesUp(), noise(0), method, how=how):
      found.append(each)
  assert [each.task.id for each in found] == list('abc')
  for each in found:
    assert each.chosen.steps and each.ledger['stopped'] == 'the server is gone'


@pytest.mark.parametrize('how', ['min', 'prod'])
@pytest.mark.parametrize('method', [m for m in METHODS if METHODS[m].scores])
def test_when_the_prm_gives_up_the_best_so_far_is_given(method, how):
  class GivesUp(Table):
    calls = 0

    def score(self, requests):
      self.calls += 1
      if self.calls == 2:
        raise UserError('the server is gone')
      return super().score(requests)

  tasks = [Task(name, name) for name in 'abcd']
  config, found = SearchConfig(aggregate=how), []
  with pytest.raises(UserError, match='the server is gone'):
    for each in run(
      tasks,
      Scripted(2, 3),
      GivesUp(noise(0)._score),
      method,
      config=config,
      how=RunConfig(concurrent=1),
    ):
      found.append(each)
  # Whole chains of a problem are scored in one call, which problem a has had.
  in_one_call = METHODS[method].needs == 'chains'
  assert [each.task.id for each in found] == list('ab' if in_one_call else 'a')
  for each in found:
    assert each.chosen.steps
  assert found[-1].ledger['stopped'] == 'the server is gone'
  assert found[0].ledger['scored_tokens']
  if not in_one_call:  # not a longer chain, whose last step has no score
    assert None not in found[-1].chosen.meta['search']['scores']


@pytest.mark.parametrize('method', ['best_of_n', 'beam', 'mcts'])
def test_what_a_critic_could_not_judge_is_never_chosen(method):
  """Its scores say nothing, although they may be the highest."""

  class Critic(Table):
    def score(self, requests):
      return [
        [self._judged(r, scored)]
        for r, (scored,) in zip(requests, super().score(requests), strict=True)
      ]

    def _judged(self, request, scored):
      if request.steps[0][-1] == '1':
        high = (0.99,) * len(scored.scores)
        lost = request.problem == 'lost'
        refused = len(scored.scores) if not lost else 0
        return scored._replace(scores=high, lost=int(lost), refused=refused)
      return scored

  tasks = [Task(name, name) for name in ('lost', 'refused')]
  found = by_id(run(tasks, Scripted(3, 4), Critic(noise(0)._score), method))
  for name, why in (
    ('lost', 'critiques could not be had'),
    ('refused', 'the critic has no room or words'),
  ):
    assert found[name].chosen.steps[0] != '0: x = 1'
    assert found[name].ledger['dead'][why]


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
        # Only after branch 1 of the first step.
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
  assert kept_nodes(alone) == kept_nodes(found['fine'])
  for each in found.values():
    if each.tree:
      text = json.dumps(each.tree.to_dict(), allow_nan=False)
      again = Tree.from_dict(json.loads(text))
      assert again.to_dict() == each.tree.to_dict()


@pytest.mark.parametrize('name', ['concurrent', 'samples_per_round'])
def test_a_run_of_nothing_is_refused(name):
  with pytest.raises(UserError, match=rf'^{name}=0: expected >= 1'):
    RunConfig(**{name: 0})
