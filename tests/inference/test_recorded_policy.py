"""Tests recorded chains as a policy, and searches over them."""

import math

import pytest

from prm_jax.data.chains import Chain
from prm_jax.data.domains import arithmetic_text
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import CannotAsk, Request
from prm_jax.inference.recorded_policy import RecordedPolicy
from prm_jax.inference.solver_policy import SolverPolicy
from prm_jax.runtime.errors import UserError
from prm_jax.search import run
from prm_jax.search.method import Task
from prm_jax.search.methods import METHODS

PROBLEM = 'mod 10 : 7 * 3 + 4'
OTHER = 'mod 10 : 1 + 1 + 1'
DOMAIN = ArithmeticConfig()


def chain(*steps, problem=PROBLEM, tokens=10, finished=True, id='x'):
  meta = {'id': id, 'tokens': tokens, 'finished': finished}
  return Chain(problem, steps, meta=meta)


def complete(policy, steps=(), key='k', samples=1, first=0, max_steps=0):
  request = Request(PROBLEM, steps, key, samples, first, max_steps)
  return policy.complete([request])[0]


def refusal(*asked, **named):
  with pytest.raises(CannotAsk) as refused:
    complete(*asked, **named)
  return str(refused.value)


def test_sample_i_is_the_ith_chain():
  policy = RecordedPolicy(
    [chain('a', 'b'), chain('x', problem=OTHER), chain('c', finished=False)]
  )
  first, second = complete(policy, samples=2)
  assert (first.steps, first.finished, first.tokens) == (('a', 'b'), True, 10)
  assert (second.steps, second.finished) == (('c',), False)
  assert math.isnan(first.logprob)
  assert [done.steps for done in complete(policy, first=1)] == [second.steps]


def test_chains_that_the_job_dropped_are_lost():
  policy = RecordedPolicy(
    [chain(n, id=f'a # b # {n}') for n in ('0', '2', '5')]
    + [chain('c', id='same text # 0'), chain('d', id='same text # 1')]
  )
  told = [it and it.steps for it in complete(policy, samples=8)]
  assert told == [('0',), ('d',), ('2',), None, None, ('5',), ('c',), None]
  (two,) = complete(policy, ('2',), first=2)
  assert two.finished
  assert complete(policy, first=3, samples=2) == [None, None]
  assert '5 chains of this problem are recorded and 8 were' in refusal(
    policy, first=7
  )


def test_no_more_chains_than_were_sampled():
  chains = [chain('a', id='p # 0'), chain('b', id='p # 2')]
  policy = RecordedPolicy(chains, samples=4)
  told = [it and it.steps for it in complete(policy, samples=4)]
  assert told == [('a',), None, ('b',), None]
  assert '2 chains of this problem are recorded and 5 were' in refusal(
    policy, samples=5
  )


def test_step_by_step_is_the_whole_chain():
  policy = RecordedPolicy([chain('a', 'bbb'), chain('a', 'c')])
  one, _ = complete(policy, samples=2, max_steps=1)
  assert (one.steps, one.finished, one.tokens) == (('a',), False, 2)
  # What stops it after the last step stops it before it ends the chain.
  (two,) = complete(policy, ('a',), max_steps=1)
  assert (two.steps, two.finished, two.tokens) == (('bbb',), False, 8)
  (end,) = complete(policy, ('a', 'bbb'), max_steps=1)
  assert (end.steps, end.finished, end.tokens) == ((), True, 0)
  (other,) = complete(policy, ('a',), first=1)
  assert (other.steps, other.finished) == (('c',), True)


def test_requests_beyond_the_recording_are_refused():
  policy = RecordedPolicy([chain('a', 'b'), chain('a', 'c')])
  assert 'no chain of this problem' in refusal(
    RecordedPolicy([chain('a', problem=OTHER)])
  )
  assert '2 chains of this problem are recorded and 4 were asked' in refusal(
    policy, first=2, samples=2
  )
  assert complete(policy, first=1, samples=2, key='other')[1] is None
  # Not begun; begun with another key; not these steps.
  assert 'one way only' in refusal(policy, ('a',))
  complete(policy, samples=2, max_steps=1)
  assert 'one way only' in refusal(policy, ('a',), key='k/0@1', first=1)
  assert 'one way only' in refusal(policy, ('b',))


def test_others_are_answered_when_one_is_refused():
  policy = RecordedPolicy([chain('a')])
  asked = [Request(p, (), 'k', 1) for p in (PROBLEM, OTHER)]
  with pytest.raises(CannotAsk) as refused:
    policy.complete(asked)
  assert list(refused.value.requests) == asked[1:]


def test_chains_must_come_from_a_sampling_job():
  with pytest.raises(UserError, match="chain 'y' does not say its tokens"):
    RecordedPolicy([Chain(PROBLEM, ('a',), meta={'id': 'y'})])


def test_the_name_identifies_the_chains():
  names = {RecordedPolicy([chain(step)]).name for step in ('a', 'a', 'b')}
  assert len(names) == 2


@pytest.fixture(scope='module')
def recorded():
  """A solver, tasks, and what it wrote for them under the search's key."""
  solver = SolverPolicy(DOMAIN, seed=1)
  tasks = [
    Task(text, text, arithmetic_text.true_answer(text))
    for text in ('mod 10 : 7 * 3 + 4 - 9', 'mod 10 : 6 + 8 * 7 + 5')
  ]
  asked = [Request(t.text, (), f'0/{t.id}', 12) for t in tasks]
  chains = [
    Chain(
      task.text,
      done.steps,
      meta={'id': task.id, 'tokens': done.tokens, 'finished': done.finished},
    )
    for task, several in zip(tasks, solver.complete(asked), strict=True)
    for done in several
  ]
  return solver, tasks, RecordedPolicy(chains)


def searched(policy, tasks, method):
  prm = ExactScorer(DOMAIN)
  found = run(tasks, policy, prm, method, {'samples': 12})
  return {each.task: each for each in found}


@pytest.mark.parametrize(
  'method', [name for name in METHODS if METHODS[name].needs != 'branches']
)
def test_a_search_of_the_recording_equals_one_with_the_policy(recorded, method):
  solver, tasks, replayed = recorded
  ours, theirs = (
    searched(policy, tasks, method) for policy in (replayed, solver)
  )
  for task in tasks:
    assert not ours[task].failed
    assert ours[task].chosen.steps == theirs[task].chosen.steps
    assert [c.steps for c in ours[task].chains] == [
      c.steps for c in theirs[task].chains
    ]
  # Whole chains took what they took.
  if METHODS[method].needs == 'chains':
    assert [each.ledger['tokens'] for each in ours.values()] == [
      each.ledger['tokens'] for each in theirs.values()
    ]


@pytest.mark.parametrize(
  'method', [name for name in METHODS if METHODS[name].needs != 'branches']
)
def test_a_search_for_more_chains_uses_the_recorded_ones(recorded, method):
  _, tasks, replayed = recorded
  found = list(run(tasks, replayed, ExactScorer(DOMAIN), method))
  twelve = searched(replayed, tasks, method)
  for each in found:
    assert not each.failed and each.ledger['lost'] == 4
    assert each.chosen.steps == twelve[each.task].chosen.steps


def test_methods_that_branch_are_refused(recorded):
  _, tasks, replayed = recorded
  with pytest.raises(UserError, match="method='beam' goes on with a chain in"):
    next(run(tasks, replayed, ExactScorer(DOMAIN), 'beam'))
