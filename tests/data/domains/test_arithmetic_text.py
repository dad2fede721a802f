"""Tests that the arithmetic domain is read back from text exactly."""

import pytest

from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.runtime.errors import UserError


def test_text_gives_the_labels_outcomes_and_results_of_the_domain():
  config = arithmetic.ArithmeticConfig(modulus=12, operations=6)
  problems = arithmetic.sample_problems(config, 200, seed=0)
  solver = arithmetic.make_solver(config)
  results = arithmetic.sample_results(solver, problems, 4, seed=1)
  chains = arithmetic.to_chains(config, problems, results)
  for chain, written in zip(chains, results.reshape(-1, 6), strict=True):
    problem, steps = chain.problem, chain.steps
    right = [label.value == 1 for label in chain.labels]
    assert arithmetic_text.check_steps(problem, steps) == right
    truth = arithmetic_text.true_answer(problem)
    assert chain.outcome == (truth == chain.answer)
    assert arithmetic_text.read_results(problem, steps) == written.tolist()


@pytest.mark.parametrize(
  ('steps', 'right'),
  [
    (['7 * 3 = 1', '1 + 4 = 5'], [True, True]),
    (['7 * 3 = 1', '1 + 4 = 5', '5 + 0 = 5'], [True, True, False]),
    (['7 * 3 = 2', '2 + 4 = 6'], [False, True]),  # the error is carried on
    (['7 * 3 = 1', '2 + 4 = 6'], [True, False]),  # 2 is not the last result
    (['7 * 3 = 1', '1 - 4 = 7'], [True, False]),
    (['7 + 4 = 1', '1 + 4 = 5'], [False, True]),
    (['1 + 4 = 5'], [False]),  # a step is left out
    (['7 * 3', '1 + 4 = 5'], [False, False]),  # no result to start from
    (['7 * 3 = 1 = 1'], [False]),
    (['7 * 3 = 11'], [False]),  # not below the modulus
  ],
)
def test_steps_of_any_text_are_checked(steps, right):
  assert arithmetic_text.check_steps('mod 10 : 7 * 3 + 4', steps) == right


@pytest.mark.parametrize(
  'steps',
  [
    [],
    ['7 * 3 = 2'],  # one is missing
    ['7 * 3 = 2', '2 + 4 = 6', '6 + 0 = 6'],
    ['7 * 3 = 2', '3 + 4 = 7'],  # 3 is not the last result
    ['7 * 3 = 2', '2 + 5 = 7'],
    ['7 * 3 = 2', '2 + 4 = 10'],  # not below the modulus
    ['7 * 3 = 2', 'so 2 + 4 = 6'],
  ],
)
def test_a_chain_that_is_not_well_formed_has_no_results(steps):
  assert arithmetic_text.read_results('mod 10 : 7 * 3 + 4', steps) is None


@pytest.mark.parametrize(
  'text',
  [
    *('7 * 3', 'mod 10 : 7', 'mod 10 : 7 * 3 +', 'mod 10 : 7 / 3', '٣'),
    'mod 0 : 1 + 1',
  ],
)
def test_other_texts_are_not_problems(text):
  assert not arithmetic_text.is_problem(text)
  with pytest.raises(UserError, match='no problem of the arithmetic domain'):
    arithmetic_text.read_problem(text)
