"""Tests the driver: rounds of questions, costs and failures of items."""

import random

import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.inference.driver import AskedModels, CannotDo, Cost, drive
from prm_jax.inference.grading import is_right
from prm_jax.inference.protocols import (
  CannotAsk,
  Question,
  Reply,
  Request,
  ScoredSteps,
  Scoring,
)
from prm_jax.labels.labelling import as_work
from prm_jax.runtime.errors import UserError
from tests.shared.counting_policy import PROBLEMS, SOLVER, Counting


class Parrot:
  """Repeats every question."""

  name = 'parrot'

  def ask(self, questions):
    return [[Reply(q.text, 5, 7)] * q.samples for q in questions]


def work(index, rounds=None):
  """Writes a chain step by step, and labels it by three rollouts each."""
  problem = PROBLEMS[index]
  steps, labels = (), []
  while len(steps) < (rounds or 3):
    first, second = yield [
      Request(problem, steps, f'{index}/{len(steps)}/a', 1, max_steps=1),
      Request(problem, steps, f'{index}/{len(steps)}/b', 3),
    ]
    if first[0] is None:
      raise CannotDo('nobody\nanswers')
    wins = sum(is_right(problem, done, '4', steps) for done in second if done)
    labels.append(StepLabel(wins / 3, 'rollout', wins, 3))
    steps += first[0].steps
  return Chain(problem, steps, labels=tuple(labels))


def outcome(count=10, policy=None, concurrent=3, indices=None, **limits):
  ends = drive(
    range(count) if indices is None else indices,
    lambda i: as_work(work(i, 1 + i % 3)),
    AskedModels(policy or Counting()),
    concurrent,
    **limits,
  )
  return {e.index: e._replace(cost=e.cost._replace(seconds=0)) for e in ends}


def test_results_depend_on_neither_order_nor_concurrency():
  expected = outcome(concurrent=1)
  assert len(expected) == 10
  order = list(range(10))
  for concurrent in (2, 3, 7, 100):
    random.Random(concurrent).shuffle(order)
    assert outcome(concurrent=concurrent, indices=order) == expected


def test_items_that_wait_are_asked_in_one_round():
  policy = Counting()
  outcome(9, policy, concurrent=9)
  # Of nine items three need one round, three need two and three need three.
  assert policy.rounds == [18, 12, 6]
  policy = Counting()
  outcome(4, policy, concurrent=2)
  # Items 0 and 1; then 2 instead of 0, then 3 instead of 1, with one round.
  assert policy.rounds == [4, 4, 4, 2]


def test_a_round_has_at_most_as_many_samples_as_allowed():
  """Each item asks for four samples, in two requests."""
  rounds = []

  class Bounded(Counting):
    def complete(self, requests):
      rounds.append(sum(request.samples for request in requests))
      return super().complete(requests)

  looks = []
  ends = drive(
    range(9),
    lambda i: as_work(work(i, 1 + i % 3)),
    AskedModels(Bounded()),
    9,
    lambda: looks.append(len(rounds)),
    samples_per_round=10,
  )
  order = [e.index for e in ends]
  assert max(rounds) == 8 and sum(rounds) == 4 * (3 * 1 + 3 * 2 + 3 * 3)
  # `between` was called before each round.
  assert looks == list(range(len(rounds)))
  # The items that begin first end first.
  assert sorted(order[:4]) == [0, 1, 2, 3]
  assert outcome(concurrent=9) == outcome(concurrent=9, samples_per_round=10)
  # An item that asks for more than a round allows is asked alone.
  rounds.clear()
  list(
    drive(
      [0, 1],
      lambda i: as_work(work(i, 1)),
      AskedModels(Bounded()),
      2,
      samples_per_round=1,
    )
  )
  assert rounds == [4, 4]


def test_an_item_is_charged_its_own_costs():
  ended = outcome(concurrent=4)[1]
  # Two rounds of one step (six tokens) and three whole completions.
  written = sum(
    completion.tokens
    for request in (
      Request(PROBLEMS[1], (), '1/0/a', 1, max_steps=1),
      Request(PROBLEMS[1], (), '1/0/b', 3),
      Request(PROBLEMS[1], ended.chains[0].steps[:1], '1/1/a', 1, max_steps=1),
      Request(PROBLEMS[1], ended.chains[0].steps[:1], '1/1/b', 3),
    )
    for completion in SOLVER.complete([request])[0]
  )
  assert ended.cost.tokens == written > 0
  assert ended.cost.calls == 8
  assert ended.cost.lost == 0


def test_critiques_that_a_prm_could_not_obtain_are_lost():
  class Scores:
    name = 'prm'

    def score(self, requests):
      return [[ScoredSteps((0.5,), 1, lost=2)] for _ in requests]

  def scoring(index):
    yield [Scoring(PROBLEMS[index], ('a',))]
    return []

  (ended,) = drive([0], scoring, AskedModels(prm=Scores()), 1)
  assert ended.cost._replace(seconds=0) == Cost(lost=2, scored_tokens=1)


def test_a_failing_item_fails_alone():
  found = outcome(policy=Counting(loses=5), concurrent=2)
  assert len(found) == 10
  failed = [e for e in found.values() if e.failed]
  assert failed
  for each in failed:
    assert each.failed == 'nobody answers'
    assert each.cost.lost >= 1
    assert each.open and not each.chains
  whole = outcome()
  for i, each in found.items():
    if not each.cost.lost:
      assert each == whole[i]


def test_a_refused_request_fails_its_item_alone():
  class Refusing(Counting):
    def complete(self, requests):
      refused = {r: f'no {r.key}' for r in requests if r.key.endswith('1/b')}
      if refused:
        raise CannotAsk(refused)
      return super().complete(requests)

  # Items with two or three steps ask with a key of /1/b, which is refused.
  found, whole = outcome(policy=Refusing(), concurrent=4), outcome()
  for i, each in found.items():
    if i % 3:
      assert each.failed == f'no {i}/1/b'
      # Trying again would give the same.
      assert not each.open and not each.chains
      assert each.cost.calls == 4
    else:
      assert each == whole[i]


def test_an_item_may_continue_after_a_refused_request():
  class Refusing(Counting):
    def complete(self, requests):
      if refused := {r: 'no' for r in requests if r.key == 'k'}:
        raise CannotAsk(refused)
      return super().complete(requests)

  def patient(index):
    try:
      yield [Request(PROBLEMS[index], (), 'k', 1)]
    except CannotDo:
      ((done,),) = yield [Request(PROBLEMS[index], (), 'other', 1)]
    return [Chain(PROBLEMS[index], done.steps)]

  (ended,) = drive([0], patient, AskedModels(Refusing()), 1)
  assert len(ended.chains) == 1 and not ended.failed


def test_items_in_flight_end_before_a_model_failure_is_raised():
  found = []

  def keeping(index):
    """Returns its steps so far; but item 1 fails and item 2 asks again."""
    steps = ()
    for n in range(3):
      try:
        ((done,),) = yield [
          Request(PROBLEMS[index], steps, f'{index}/{n}', 1, max_steps=1)
        ]
      except CannotDo:
        if index == 1 or not steps:
          raise
        if index == 2:
          yield [Request(PROBLEMS[index], (), 'again', 1)]
        break
      steps += done.steps
    return [Chain(PROBLEMS[index], steps)]

  ended = drive(
    range(9), keeping, AskedModels(Counting(gives_up=2)), 4, samples_per_round=3
  )
  with pytest.raises(UserError, match='the server\nis gone'):
    for each in ended:
      found.append(each)
  # Two rounds of three items; the fourth waited for its first.
  assert [each.index for each in found] == [0, 1, 3]
  assert [len(c.steps) for each in found for c in each.chains] == [2]
  assert [each.failed for each in found] == ['', *['the server is gone'] * 2]
  assert all(each.interrupted and each.open for each in found)
  assert [each.cost.calls for each in found] == [2, 2, 0]


def test_a_defect_is_raised_with_its_item():
  def broken(index):
    yield [Request(PROBLEMS[index], (), 'k', 1)]
    raise ZeroDivisionError(index)

  with pytest.raises(ZeroDivisionError) as raised:
    list(drive([3], broken, AskedModels(SOLVER), 4))
  assert raised.value.__notes__ == ['while working on item 3 of the job']


def test_work_that_asks_nothing_ends_without_a_policy():
  def given(index):
    yield from ()
    return [Chain(PROBLEMS[index], ('a',))] * index

  ends = list(drive(range(3), given, AskedModels(), 2))
  assert [len(e.chains) for e in ends] == [0, 1, 2]
  assert {e.cost._replace(seconds=0) for e in ends} == {Cost()}


def test_questions_and_requests_in_one_round():
  def asks(index):
    if index:
      ((reply, _),) = yield [Question(f'q{index}', f'{index}', 2)]
      return [Chain(reply.text, ('a',))]
    ((done,), (reply,)) = yield [
      Request(PROBLEMS[0], (), 'k', 1),
      Question('mixed', 'k', 1),
    ]
    return [Chain(reply.text, done.steps)]

  ends = list(drive(range(3), asks, AskedModels(SOLVER, Parrot()), 8))
  assert [e.chains[0].problem for e in ends] == ['mixed', 'q1', 'q2']
  assert [e.cost.calls for e in ends] == [2, 2, 2]
  assert (ends[1].cost.tokens, ends[1].cost.prompt_tokens) == (10, 14)
  with pytest.raises(
    UserError, match=r'none; set --config\.policy\.kind=endpoint'
  ):
    list(drive([1], asks, AskedModels(SOLVER), 8))
  with pytest.raises(UserError, match='asks a policy and there is none'):
    list(drive([0], asks, AskedModels(None, Parrot()), 8))
