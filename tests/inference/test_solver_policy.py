"""Tests the solver as a policy: distribution, randomness and counts."""

import itertools
import math

import numpy as np
import pytest

from prm_jax.data import encoding
from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.inference.protocols import Request, sample_seed
from prm_jax.inference.solver_policy import SolverPolicy, uniforms
from prm_jax.runtime.errors import UserError

PROBLEM = 'mod 3 : 2 * 2 + 1 - 2'
SMALL = arithmetic.ArithmeticConfig(
  modulus=3, operations=3, wrong_facts=0.3, slip=0.1
)
# Standard errors allowed for one number at a fixed seed.
Z = 4.0


def chi_square(observed, expected):
  """Standard errors between a chi-square statistic and its mean."""
  statistic = ((observed - expected) ** 2 / expected).sum()
  freedom = observed.size - 1
  return (statistic - freedom) / math.sqrt(2 * freedom)


def results_of(steps):
  return tuple(arithmetic_text.result_of(step) for step in steps)


def path_probability(transitions, start, parts, results):
  total, state = 1.0, start
  for (op, operand), result in zip(parts, results, strict=True):
    total *= transitions[arithmetic.OPS.index(op), state, operand, result]
    state = result
  return total


@pytest.mark.parametrize('steps', [(), ('2 * 2 = 0',), ('so 7', '1 + 1 = 2')])
def test_samples_follow_the_exact_distribution(steps):
  n = 50_000
  transitions = arithmetic.make_solver(SMALL)
  [completions] = SolverPolicy(SMALL).complete(
    [Request(PROBLEM, steps, 'k', n)]
  )
  problem = arithmetic_text.read_problem(PROBLEM)
  parts = problem.parts[len(steps) :]
  start = results_of(steps)[-1] if steps else problem.start
  paths = list(itertools.product(range(3), repeat=len(parts)))
  expected = n * np.array(
    [path_probability(transitions, start, parts, path) for path in paths]
  )
  counts = dict.fromkeys(paths, 0)
  for each in completions:
    path = results_of(each.steps)
    counts[path] += 1
    probability = path_probability(transitions, start, parts, path)
    assert each.logprob == pytest.approx(math.log(probability), rel=1e-12)
    assert each.finished
  assert expected.min() > 5
  assert abs(chi_square(np.array(list(counts.values())), expected)) < Z


def test_draws_are_uniform_and_independent():
  n, cells = 100_000, 64
  seeds = np.array([sample_seed(0, 'key', i) for i in range(n)], np.uint64)
  # Seeds in a row, too: what a hash that is not one would fail on.
  for these in (seeds, np.arange(n, dtype=np.uint64)):
    draws = np.stack(
      [uniforms(these, np.full(n, k, np.uint64)) for k in range(6)]
    )
    assert draws.min() >= 0 and draws.max() < 1
    binned = (draws * cells).astype(int)
    for row in binned:
      counts = np.bincount(row, minlength=cells)
      assert abs(chi_square(counts, np.full(cells, n / cells))) < Z
    # Draws of one seed, and equal draws of neighbouring seeds.
    pairs = [(binned[i], binned[j]) for i in range(6) for j in range(i)]
    pairs += [(row[:-1], row[1:]) for row in binned]
    for left, right in pairs:
      joint = np.bincount(left // 8 * 8 + right // 8, minlength=64)
      assert abs(chi_square(joint, np.full(64, len(left) / 64))) < Z


def test_splitmix64_gives_its_published_numbers():
  # The first outputs at seed 1234567, of the reference implementation.
  published = (6457827717110365317, 3203168211198807973, 9817491932198370423)
  seeds = np.array([1234567], np.uint64)
  for k, number in enumerate(published):
    assert (
      uniforms(seeds, np.array([k], np.uint64))[0] == (number >> 11) * 2.0**-53
    )


def test_a_continued_sample_equals_one_without_a_stop():
  policy = SolverPolicy(SMALL, seed=3)
  [whole] = policy.complete([Request(PROBLEM, (), 'key', 20)])
  for number, completion in enumerate(whole):
    steps = ()
    while len(steps) < len(completion.steps):
      asked = Request(PROBLEM, steps, 'key', 1, number, 1)
      [[one]] = policy.complete([asked])
      steps += one.steps
    assert steps == completion.steps


def test_a_sample_depends_on_its_own_key_only():
  policy = SolverPolicy(SMALL, seed=3)
  together = [
    Request(PROBLEM, (), 'a', 6),
    Request('mod 3 : 1 + 1', (), 'b', 2),
    Request(PROBLEM, ('2 * 2 = 1',), 'c', 4),
  ]
  answers = policy.complete(together)
  assert [policy.complete([request])[0] for request in together] == answers
  later = policy.complete([Request(PROBLEM, (), 'a', 4, first=2)])[0]
  assert [each.steps for each in later] == [
    each.steps for each in answers[0][2:]
  ]
  texts = {
    tuple(
      each.steps for each in SolverPolicy(SMALL, seed).complete(together)[0]
    )
    for seed in range(5)
  }
  assert len(texts) == 5
  assert SolverPolicy(SMALL, 1).name != SolverPolicy(SMALL, 2).name
  other = arithmetic.ArithmeticConfig(modulus=3, slip=0.2)
  assert SolverPolicy(SMALL).name != SolverPolicy(other).name
  assert policy.complete([]) == []


def test_tokens_are_counted_as_by_the_encoding():
  text = encoding.make_format('arithmetic', 200)
  steps = ('2 * 2 = 1',)
  completions = SolverPolicy(SMALL).complete([Request(PROBLEM, steps, 'k', 3)])
  read = text.encode(PROBLEM, steps)
  assert [each.prompt_tokens for each in completions[0]] == [
    len(read.tokens),
    0,
    0,
  ]
  for each in completions[0]:
    whole = text.encode(PROBLEM, (*steps, *each.steps))
    # One more: the id that ends the chain.
    assert each.tokens == len(whole.tokens) - len(read.tokens) + 1
  [[first]] = SolverPolicy(SMALL).complete([Request(PROBLEM, (), 'k', 1)])
  assert first.prompt_tokens == len(text.encode_prompt(PROBLEM))


@pytest.mark.parametrize(
  ('limit', 'steps', 'finished'), [(1, 1, False), (3, 3, False), (4, 3, True)]
)
def test_max_steps_limits_a_completion(limit, steps, finished):
  policy = SolverPolicy(SMALL)
  request = Request(PROBLEM, (), 'k', 1)
  [[whole]] = policy.complete([request])
  [[cut]] = policy.complete([request._replace(max_steps=limit)])
  assert cut.steps == whole.steps[:steps]
  assert (cut.finished, cut.tokens) == (finished, 6 * steps + finished)


@pytest.mark.parametrize('last', ['2 * 2', 'so it is 4', '2 * 2 = 400'])
def test_a_prefix_without_a_result_is_not_completed(last):
  [[said]] = SolverPolicy(SMALL).complete([Request(PROBLEM, (last,), 'k', 1)])
  assert (said.steps, said.finished, said.tokens) == ((), False, 0)


def test_a_complete_chain_is_ended():
  steps = ('2 * 2 = 1', '1 + 1 = 2', '2 - 2 = 0')
  [[said]] = SolverPolicy(SMALL).complete([Request(PROBLEM, steps, 'k', 1)])
  assert (said.steps, said.finished, said.tokens) == ((), True, 1)
  assert said.logprob == 0


def test_numbers_beyond_the_modulus_are_restated_as_written():
  sure = arithmetic.ArithmeticConfig(modulus=3, wrong_facts=0, slip=0)
  request = Request('mod 3 : 50 * 20 + 7', ('50 * 20 = 71',), 'k', 1)
  assert SolverPolicy(sure).complete([request])[0][0].steps == ('71 + 7 = 0',)


def test_problems_of_another_modulus_are_refused():
  with pytest.raises(UserError, match=r'modulo 10, the solver .* modulo 3'):
    SolverPolicy(SMALL).complete([Request('mod 10 : 1 + 1', (), 'k', 1)])
