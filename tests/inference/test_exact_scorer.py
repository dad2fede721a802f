"""Tests the exact scorer against the domain's own functions."""

import numpy as np
import pytest

from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.domains.arithmetic import ArithmeticConfig
from prm_jax.inference.exact_scorer import ExactScorer
from prm_jax.inference.protocols import Scoring
from prm_jax.runtime.errors import UserError

CONFIG = ArithmeticConfig(modulus=7, operations=4, wrong_facts=0.3, slip=0.1)
PROBLEMS = arithmetic.sample_problems(CONFIG, 20, seed=1)
SOLVER = arithmetic.make_solver(CONFIG)
RESULTS = arithmetic.sample_results(SOLVER, PROBLEMS, 5, seed=2)
CHAINS = arithmetic.to_chains(CONFIG, PROBLEMS, RESULTS)


def scores(kind, requests):
  answers = ExactScorer(CONFIG, kind).score(requests)
  assert all(scored.tokens == 0 for (scored,) in answers)
  return [scored.scores for (scored,) in answers]


def test_values_are_the_exact_prefix_values():
  values = arithmetic.prefix_values(SOLVER, PROBLEMS, CONFIG.modulus)
  expected = arithmetic.chain_values(values, RESULTS).reshape(-1, 4)
  said = scores('value', [Scoring(c.problem, c.steps) for c in CHAINS])
  # The same sums in another order of a batched product.
  np.testing.assert_allclose(said, expected, rtol=1e-12)
  # The last one is the outcome.
  assert [each[-1] for each in said] == [float(c.outcome) for c in CHAINS]


@pytest.mark.parametrize('kind', ['value', 'steps'])
def test_a_score_does_not_depend_on_what_follows(kind):
  for chain in CHAINS[:20]:
    prefixes = [chain.steps[:p] for p in range(1, 5)]
    said = scores(kind, [Scoring(chain.problem, steps) for steps in prefixes])
    for p, each in enumerate(said, 1):
      assert each == said[-1][:p]


def test_steps_are_checked_as_the_verifier_does():
  said = scores('steps', [Scoring(c.problem, c.steps) for c in CHAINS])
  correct = arithmetic.step_correct(PROBLEMS, RESULTS, CONFIG.modulus)
  assert (np.array(said) == correct.reshape(-1, 4)).all()
  odd = ('nonsense', '1 + 1 = 2')
  [each] = scores('steps', [Scoring(CHAINS[0].problem, odd)])
  checked = arithmetic_text.check_steps(CHAINS[0].problem, odd)
  assert each == tuple(map(float, checked)) == (0.0, 0.0)


def test_an_unreadable_step_has_no_value():
  problem = 'mod 7 : 3 + 4 * 2'
  # No result, and an answer beyond the modulus.
  steps = ('so what', '3 + 4 = 7')
  assert scores('value', [Scoring(problem, steps)]) == [(0.0, 0.0)]
  # The solver ends after the last operation, and so what is said after it is
  # the answer, as it is written.
  after = ('3 + 4 = 0', '0 * 2 = 1', '0 * 2 = 0', '0 + 0 = 00')
  assert scores('value', [Scoring(problem, after)])[0][1:] == (0.0, 1.0, 0.0)
  # The solver goes on from a result modulo m.
  [[beyond], [below]] = scores(
    'value',
    [Scoring(problem, (f'3 + 4 = {result}',)) for result in (9, 2)],
  )
  assert beyond == below
  # Its first number may be beyond it, too.
  start = [Scoring(f'mod 7 : {n} + 4', (f'{n} + 4 = 0',)) for n in (3, 10)]
  assert scores('value', start) == [(1.0,), (1.0,)]
  right = ('3 + 4 = 0', '0 * 2 = 0')
  assert scores('value', [Scoring(problem, right)])[0][-1] == 1.0


def test_unknown_kinds_and_other_moduli_are_refused():
  with pytest.raises(UserError, match="exact scorer of 'truth': expected one"):
    ExactScorer(CONFIG, 'truth')
  with pytest.raises(UserError, match=r'modulo 10, but the exact .* 7;'):
    scores('value', [Scoring('mod 10 : 1 + 1', ('1 + 1 = 2',))])
  with pytest.raises(UserError, match='no problem of the arithmetic domain'):
    scores('steps', [Scoring('what?', ('1 + 1 = 2',))])
