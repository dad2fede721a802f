"""Tests planted errors by the domain's own check and by counting."""

import collections

import numpy as np
import pytest

from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.domains.arithmetic_corruptions import (
  KINDS,
  plant,
  right_steps,
)

PROBLEM = 'mod 10 : 7 * 3 + 4 - 6'


def test_right_steps_are_the_right_chain():
  assert right_steps(PROBLEM) == ('7 * 3 = 1', '1 + 4 = 5', '5 - 6 = 9')


@pytest.mark.parametrize(
  ('kind', 'count', 'one'),
  [
    ('wrong_operand', 3 * 9, ('7 * 3 = 1', '1 + 8 = 9', '9 - 6 = 3')),
    ('wrong_operator', 3 * 2, ('7 * 3 = 1', '1 - 4 = 7', '7 - 6 = 1')),
    ('wrong_result', 3 * 9, ('7 * 3 = 1', '1 + 4 = 6', '6 - 6 = 0')),
    # 3 and 10 have no common factor, so every wrong start ends wrong.
    ('copied_number', 3 * 9, ('7 * 3 = 1', '2 + 4 = 6', '6 - 6 = 0')),
    ('skipped_step', 2, ('7 * 3 = 1', '1 - 6 = 5')),
  ],
)
def test_every_possible_error_is_equally_likely(kind, count, one):
  found = collections.Counter(
    plant(PROBLEM, kind, np.random.default_rng(seed)).steps
    for seed in range(60 * count)
  )
  assert len(found) == count
  assert one in found
  # Of 60 expected draws of each, 31 fewer are four standard deviations.
  assert min(found.values()) > 60 - 31


@pytest.mark.parametrize('modulus', [2, 10, 23])
@pytest.mark.parametrize('kind', KINDS)
def test_the_first_error_is_where_it_was_planted(kind, modulus):
  config = arithmetic.ArithmeticConfig(modulus=modulus, operations=5)
  problems = arithmetic.sample_problems(config, 400, seed=3)
  solver = arithmetic.make_solver(config)
  results = arithmetic.sample_results(solver, problems, 1, seed=0)
  rng = np.random.default_rng(0)
  places = set()
  for chain in arithmetic.to_chains(config, problems, results):
    problem, right = chain.problem, right_steps(chain.problem)
    assert all(arithmetic_text.check_steps(problem, right))
    planted = plant(problem, kind, rng)
    if planted is None:
      continue
    check = arithmetic_text.check_steps(problem, planted.steps)
    assert check.index(False) == planted.error
    assert planted.steps[: planted.error] == right[: planted.error]
    assert planted.answer == planted.steps[-1].rpartition(' ')[2]
    assert planted.answer != arithmetic_text.true_answer(problem)
    skipped = kind == 'skipped_step'
    rest = right[planted.error + skipped :]
    assert len(planted.steps) == planted.error + len(rest)
    # The error is carried on: no later step is the right chain's, but each
    # does what the right one does ("+ 4") with what is written before it.
    for step, meant in zip(planted.steps[planted.error :], rest, strict=True):
      assert step != meant
    after = zip(planted.steps[planted.error + 1 :], rest[1:], strict=True)
    for step, meant in after:
      assert step.split()[1:4] == meant.split()[1:4]
    if not skipped:
      assert check.count(False) == 1
    places.add(planted.error)
  assert places == set(range(4 if kind == 'skipped_step' else 5))


@pytest.mark.parametrize(
  ('problem', 'kind'),
  [
    ('mod 10 : 7 * 0', 'copied_number'),
    ('mod 2 : 1 + 1 * 0', 'wrong_result'),  # only the last result can be wrong
    ('mod 10 : 7 + 3', 'skipped_step'),
    ('mod 10 : 7 + 3 + 3', 'skipped_step'),  # the two steps are alike
    ('mod 10 : 7 + 0 - 4', 'skipped_step'),  # the answer would stay right
  ],
)
def test_no_error_is_planted_that_leaves_the_answer_right(problem, kind):
  found = {plant(problem, kind, np.random.default_rng(s)) for s in range(20)}
  if kind == 'wrong_result':
    assert found == {plant(problem, kind, np.random.default_rng(0))}
    assert found.pop().steps == ('1 + 1 = 0', '0 * 0 = 1')
  else:
    assert found == {None}
