import pytest

from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.runtime.errors import UserError

CONFIG = arithmetic.ArithmeticConfig(modulus=12, operations=6)


def test_text_says_what_the_domain_says():
  problems = arithmetic.sample_problems(CONFIG, 200, seed=0)
  solver = arithmetic.make_solver(CONFIG)
  results = arithmetic.sample_results(solver, problems, 4, seed=1)
  for chain in arithmetic.to_chains(CONFIG, problems, results):
    said = arithmetic_text.check_steps(chain.problem, chain.steps)
    assert said == [label.value == 1 for label in chain.labels]
    truth = arithmetic_text.true_answer(chain.problem)
    assert chain.outcome == (truth == chain.answer)


@pytest.mark.parametrize(
  ('steps', 'right'),
  [
    (['7 * 3 = 1', '1 + 4 = 5'], [True, True]),
    (['7 * 3 = 1', '1 + 4 = 5', '5 + 0 = 5'], [True, True, False]),
    (['7 * 3 = 2', '2 + 4 = 6'], [False, True]),  # carried on
    (['7 * 3 = 1', '2 + 4 = 6'], [True, False]),  # takes up what is not there
    (['7 * 3 = 1', '1 - 4 = 7'], [True, False]),
    (['7 + 4 = 1', '1 + 4 = 5'], [False, True]),
    (['1 + 4 = 5'], [False]),  # a step is left out
    (['7 * 3', '1 + 4 = 5'], [False, False]),
    (['7 * 3 = 1 = 1'], [False]),
    (['7 * 3 = 11'], [False]),  # not below the modulus
  ],
)
def test_steps_that_no_solver_writes(steps, right):
  assert arithmetic_text.check_steps('mod 10 : 7 * 3 + 4', steps) == right


def test_the_results_of_a_chain_are_read_back():
  problems = arithmetic.sample_problems(CONFIG, 50, seed=0)
  solver = arithmetic.make_solver(CONFIG)
  results = arithmetic.sample_results(solver, problems, 1, seed=1)
  chains = arithmetic.to_chains(CONFIG, problems, results)
  for chain, written in zip(chains, results[:, 0].tolist(), strict=True):
    assert arithmetic_text.read_results(chain.problem, chain.steps) == written


@pytest.mark.parametrize(
  'steps',
  [
    [],
    ['7 * 3 = 2'],  # one is missing
    ['7 * 3 = 2', '2 + 4 = 6', '6 + 0 = 6'],
    ['7 * 3 = 2', '3 + 4 = 7'],  # takes up what is not there
    ['7 * 3 = 2', '2 + 5 = 7'],
    ['7 * 3 = 2', '2 + 4 = 10'],  # not below the modulus
    ['7 * 3 = 2', 'so 2 + 4 = 6'],
  ],
)
def test_a_chain_that_is_not_rightly_formed_has_no_results(steps):
  assert arithmetic_text.read_results('mod 10 : 7 * 3 + 4', steps) is None


@pytest.mark.parametrize(
  'text', ['7 * 3', 'mod 10 : 7', 'mod 10 : 7 * 3 +', 'mod 10 : 7 / 3', '٣']
)
def test_what_is_no_problem(text):
  assert not arithmetic_text.is_problem(text)
  with pytest.raises(UserError, match='no problem of the arithmetic domain'):
    arithmetic_text.read_problem(text)
