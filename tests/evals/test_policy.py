"""Evaluation of a policy, on completions written by hand."""

import dataclasses
import itertools
import math
import tracemalloc

import numpy as np
import pytest

from prm_jax.data.chains import Chain
from prm_jax.data.domains import arithmetic
from prm_jax.evals import policy
from prm_jax.inference.protocols import Completion
from prm_jax.runtime.errors import UserError

PROBLEM = 'mod 10 : 7 * 3 + 4'  # 1, then 5
OTHER = 'mod 10 : 2 + 2'


def written(*steps, finished=True):
  return Completion(steps, finished, 0, 0, math.nan)


RIGHT = written('7 * 3 = 1', '1 + 4 = 5')
WRONG = written('7 * 3 = 2', '2 + 4 = 6')


@pytest.mark.parametrize(
  ('completion', 'formed'),
  [
    (RIGHT, True),
    (WRONG, True),
    (written('7 * 3 = 1'), False),
    (written(*RIGHT.steps, finished=False), False),
    (written(), False),
    (written('2 + 4 = 6', '6 = 6'), False),
  ],
)
def test_the_form_of_arithmetic_chains(completion, formed):
  assert policy.is_formed(PROBLEM, completion) == formed


def test_the_form_of_other_chains():
  assert policy.is_formed('Why?', written('So.', 'The answer is 3.'))
  assert not policy.is_formed('Why?', written('So.', 'Because.'))
  assert not policy.is_formed('Why?', written('It is 3 = 3', finished=False))


def test_right_is_the_last_result():
  assert policy.is_right(PROBLEM, RIGHT, '5')
  assert not policy.is_right(PROBLEM, WRONG, '5')
  assert not policy.is_right(PROBLEM, written(), '5')
  assert not policy.is_right(PROBLEM, written('1 + 4 = 15'), '5')
  assert policy.is_right('Why?', written('The answer is 5.0.'), '5')
  # An unfinished chain might have continued.
  assert not policy.is_right(PROBLEM, RIGHT._replace(finished=False), '5')


def test_equal_answers_vote_together():
  said = ['18', '$18', None, '17', '18.00', '17.0', '16', 'seventeen']
  right = [True, True, False, False, True, False, False, False]
  ids = policy.answer_ids('How many?', said, right)
  assert ids[0] == ids[1] == ids[4] and ids[3] == ids[5] and ids[2] == -1
  assert len(set(ids)) == 5
  # 50% equals 1/2, but a right and a wrong answer never share an id.
  assert len(set(policy.answer_ids('?', ['50%', '1/2'], [True, False]))) == 2
  cut = RIGHT._replace(finished=False)
  assert policy.stated_answers('2 + 3?', [RIGHT, cut]) == ['5', None]


def test_a_section_by_hand():
  others = [
    written('2 + 2 = 4'),
    written('2 + 2 = 4'),
    written('2 + 2 = 5'),
    written(finished=False),
  ]
  found = policy.sampling_section(
    [PROBLEM, OTHER],
    ['5', '4'],
    [[RIGHT, WRONG, WRONG, written('7 * 3 = 3', '3 + 4 = 7')], others],
    (1, 2, 4),
    seed=0,
    resamples=50,
  )
  assert (found['problems'], found['samples']) == (2, 4)
  assert found['accuracy']['mean'] == pytest.approx((1 / 4 + 2 / 4) / 2)
  low, high = found['accuracy']['ci95']
  assert 0.25 <= low <= high <= 0.5
  # 1 - C(3, 2) / C(4, 2) and 1 - C(2, 2) / C(4, 2)
  passed = [3 / 8, (1 / 2 + 5 / 6) / 2, 1.0]
  assert found['by_n']['pass']['mean'] == pytest.approx(passed)
  # All four: 6 beats 5 and 7; 4 beats 5.
  assert found['by_n']['majority']['mean'][2] == pytest.approx(0.5)
  assert found['majority_wrong'] == pytest.approx(0.5)
  assert found['formed'] == found['finished'] == 7 / 8
  # Of 6, 6, 7 one pair in three; of 5 and nothing none.
  assert found['agreement_in_error'] == pytest.approx(1 / 6)


def test_chains_without_an_answer_do_not_agree():
  none = np.array([[-1, -1]])
  assert policy.agreement_in_error(np.zeros((1, 2)), none) == 0


def test_agreement_is_the_share_of_pairs():
  rng = np.random.default_rng(0)
  correct = rng.random((20, 7)) < 0.4
  answers = rng.integers(-1, 3, (20, 7))
  pairs = [
    list(itertools.combinations(ids[~right], 2))
    for right, ids in zip(correct, answers, strict=True)
  ]
  shares = [np.mean([a == b >= 0 for a, b in some]) for some in pairs if some]
  found = policy.agreement_in_error(correct, answers)
  assert found == np.mean(shares)


def test_agreement_of_many_samples_keeps_no_pairs():
  """Half of 1,000 wrong answers are equal; there are 499,500 pairs."""
  answers = np.arange(1000)[None] % 2
  tracemalloc.start()
  found = policy.agreement_in_error(np.zeros_like(answers), answers)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert found == pytest.approx(499 / 999)
  assert peak < 1e6  # bytes


def test_agreement_is_none_without_two_errors_of_a_problem():
  correct = np.array([[True, False], [True, True]])
  answers = np.array([[0, 1], [0, 0]])
  assert policy.agreement_in_error(correct, answers) is None


def test_recorded_chains_are_used_only_if_there_are_enough():
  chains = [Chain(PROBLEM, RIGHT.steps), Chain(OTHER, ('2 + 2 = 4',))]
  assert policy.recorded_completions(chains, [PROBLEM, OTHER], 2) is None
  ((one,),) = policy.recorded_completions(chains * 2, [OTHER], 1)
  assert one.steps == ('2 + 2 = 4',)
  assert one.finished
  cut = dataclasses.replace(chains[1], meta={'finished': False})
  ((one,),) = policy.recorded_completions([cut], [OTHER], 1)
  assert not one.finished


def test_problems_without_a_known_answer_are_left_out():
  known = Chain('Why?', ('a',), answer='3', outcome=True)
  wrong = Chain('How?', ('a',), answer='3', outcome=False)
  chains = [wrong, known, Chain(OTHER, ('a',)), known]
  assert policy.known_answers('x', chains) == (['Why?', OTHER], ['3', '4'])
  with pytest.raises(UserError, match="'x' has no problem whose right answer"):
    policy.known_answers('x', [wrong])


def test_the_likelihood_of_the_solver_has_a_closed_form():
  """Without misconceptions a step is right with 1 - slip, else one of nine."""
  slip = 0.1
  config = arithmetic.ArithmeticConfig(
    wrong_facts=0.0, use_wrong=0.5, slip=slip, operations=2
  )
  chains = [Chain(PROBLEM, RIGHT.steps), Chain(PROBLEM, WRONG.steps)]
  right, wrong = math.log(1 - slip), math.log(slip / 9)
  found = policy.solver_log_likelihood(config, chains)
  assert found == pytest.approx(3 * right + wrong)


def test_the_likelihood_of_the_solver_is_minus_its_entropy_in_the_mean():
  config = arithmetic.ArithmeticConfig(operations=1)
  solver = arithmetic.make_solver(config)
  problems = arithmetic.sample_problems(config, 300, seed=0)  # all there are
  samples = 50
  results = arithmetic.sample_results(solver, problems, samples, seed=0)
  chains = arithmetic.to_chains(config, problems, results)
  sums = policy.solver_log_likelihood(config, chains) / len(chains)
  logs = np.log(solver)
  means = (solver * logs).sum(-1)
  spread = (solver * logs**2).sum(-1) - means**2
  error = math.sqrt(spread.mean() / len(chains))
  assert abs(sums - means.mean()) < 4 * error
