"""Tests the arithmetic domain by closed forms, enumeration and its own text."""

import dataclasses
import itertools

import numpy as np
import pytest

from prm_jax.data import chains as chains_lib
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.data.config import DrawConfig
from prm_jax.data.domain_splits import drawn_splits
from prm_jax.data.domains import arithmetic
from prm_jax.runtime.errors import UserError

# Number of standard errors allowed where thousands of cells are compared. One
# of 10,000 exact cells exceeds 5 with probability 0.006.
Z = 5.0


def truth(op, a, b, m):
  """Calculates a result without the code under test; op is an index or sign."""
  op = op if isinstance(op, str) else '+-*'[op]
  return {'+': a + b, '-': a - b, '*': a * b}[op] % m


def facts(m):
  return itertools.product(range(3), range(m), range(m))


def sample(config, count, samples, seed=0):
  transitions = arithmetic.make_solver(config)
  problems = arithmetic.sample_problems(config, count, seed)
  results = arithmetic.sample_results(transitions, problems, samples, seed)
  return transitions, problems, results


def test_transitions_match_the_closed_form():
  # m = 10, use_wrong = .75, slip = .03: worked out by hand.
  #   right fact: .97 right, .03 / 9 each other result
  #   wrong fact: .97 * .75 + .03 * .25 / 9 believed,
  #     .97 * .25 + .03 * .75 / 9 right, .03 / 9 each other result
  other = 1 / 300
  right_row = np.sort([0.97] + [other] * 9)
  wrong_row = np.sort([0.7275 + 1 / 1200, 0.2425 + 0.0025] + [other] * 8)
  transitions = arithmetic.make_solver(arithmetic.ArithmeticConfig())
  assert transitions.shape == (3, 10, 10, 10)
  np.testing.assert_allclose(transitions.sum(-1), 1, rtol=0, atol=1e-15)
  wrong = 0
  for op, a, b in facts(10):
    row = transitions[op, a, b]
    right = truth(op, a, b, 10)
    if row.argmax() == right:
      np.testing.assert_allclose(np.sort(row), right_row, rtol=1e-12)
    else:
      wrong += 1
      np.testing.assert_allclose(np.sort(row), wrong_row, rtol=1e-12)
      np.testing.assert_allclose(row[right], 0.245, rtol=1e-12)
  assert wrong == 54  # .18 of 3 * 10 * 10 facts


@pytest.mark.parametrize('m', [2, 3, 10, 99])
def test_the_share_of_wrong_facts_is_exact(m):
  config = arithmetic.ArithmeticConfig(m, wrong_facts=0.4, slip=0.0)
  believed = arithmetic.make_solver(config).argmax(-1)
  right = np.array([truth(*fact, m) for fact in facts(m)]).reshape(3, m, m)
  assert (believed != right).sum() == round(0.4 * 3 * m * m)


def test_wrong_beliefs_are_uniform_over_the_wrong_results():
  m = 5
  counts = np.zeros(m)
  for solver_seed in range(40):
    config = arithmetic.ArithmeticConfig(
      m, wrong_facts=1.0, use_wrong=1.0, slip=0.0, solver_seed=solver_seed
    )
    believed = arithmetic.make_solver(config).argmax(-1)
    for fact in facts(m):
      counts[(believed[fact] - truth(*fact, m)) % m] += 1
  n, p = 40 * 75, 1 / 4
  assert counts[0] == 0
  error = np.sqrt(n * p * (1 - p))
  assert np.abs(counts[1:] - n * p).max() < Z * error


def test_solver_seed_chooses_the_misconceptions():
  config = arithmetic.ArithmeticConfig()
  base = arithmetic.make_solver(config)
  np.testing.assert_array_equal(base, arithmetic.make_solver(config))
  other = arithmetic.make_solver(dataclasses.replace(config, solver_seed=1))
  assert (base.argmax(-1) != other.argmax(-1)).any()
  # The misconceptions stay when more are added.
  more = arithmetic.make_solver(dataclasses.replace(config, wrong_facts=0.5))
  right = np.array([truth(*fact, 10) for fact in facts(10)]).reshape(3, 10, 10)
  wrong = base.argmax(-1) != right
  assert wrong.sum() == 54
  np.testing.assert_array_equal(base[wrong], more[wrong])


def test_sampled_frequencies_match_the_transitions():
  m = 5
  config = arithmetic.ArithmeticConfig(m, 3, wrong_facts=0.3, slip=0.1)
  transitions, problems, results = sample(config, 2000, 64)
  start = np.broadcast_to(problems.start[:, None, None], (2000, 64, 1))
  before = np.concatenate([start, results[..., :-1]], -1)
  ops = np.broadcast_to(problems.ops[:, None], results.shape)
  operands = np.broadcast_to(problems.operands[:, None], results.shape)
  counts = np.zeros((3, m, m, m))
  np.add.at(counts, (ops, before, operands, results), 1)
  n = counts.sum(-1, keepdims=True)
  assert n.min() > 1000  # the normal approximation holds: n p > 25
  error = np.sqrt(n * transitions * (1 - transitions))
  assert np.abs((counts - n * transitions) / error).max() < Z


def test_impossible_results_are_never_written():
  config = arithmetic.ArithmeticConfig(6, 4, wrong_facts=0.5, slip=0.0)
  transitions, problems, results = sample(config, 300, 20)
  state = np.broadcast_to(problems.start[:, None], results.shape[:2])
  for k in range(4):
    op, b = problems.ops[:, k, None], problems.operands[:, k, None]
    assert transitions[op, state, b, results[..., k]].min() > 0
    state = results[..., k]


def test_a_solver_without_faults_is_always_right():
  config = arithmetic.ArithmeticConfig(7, 4, wrong_facts=0.0, slip=0.0)
  transitions, problems, results = sample(config, 50, 3)
  right = arithmetic.true_results(problems, 7)
  np.testing.assert_array_equal(results, np.stack([right] * 3, axis=1))
  assert arithmetic.step_correct(problems, results, 7).all()
  assert arithmetic.outcomes(problems, results, 7).all()
  values = arithmetic.prefix_values(transitions, problems, 7)
  assert (values[np.arange(50), 0, problems.start] == 1).all()


def test_prefix_values_match_brute_force():
  m, k = 3, 3
  config = arithmetic.ArithmeticConfig(m, k, wrong_facts=0.4, slip=0.1)
  transitions = arithmetic.make_solver(config)
  problems = arithmetic.sample_problems(config, 20, 0)
  values = arithmetic.prefix_values(transitions, problems, m)
  assert values.shape == (20, k + 1, m)
  for n, start in enumerate(problems.start):
    todo = list(zip(problems.ops[n], problems.operands[n], strict=True))
    answer = start
    for op, b in todo:
      answer = truth(op, answer, b, m)
    for p, s in itertools.product(range(k + 1), range(m)):
      total = 0.0
      for path in itertools.product(range(m), repeat=k - p):
        probability, state = 1.0, s
        for (op, b), result in zip(todo[p:], path, strict=True):
          probability *= transitions[op, state, b, result]
          state = result
        total += probability * (state == answer)
      np.testing.assert_allclose(values[n, p, s], total, rtol=1e-12)


def test_values_match_mean_outcomes():
  samples = 400
  config = arithmetic.ArithmeticConfig()
  transitions, problems, results = sample(config, 200, samples)
  values = arithmetic.prefix_values(transitions, problems, 10)
  root = values[np.arange(200), 0, problems.start]
  right = arithmetic.outcomes(problems, results, 10)
  variance = root * (1 - root) / samples
  error = np.sqrt(variance.sum()) / 200
  assert abs(right.mean() - root.mean()) < 4 * error
  # Single problems are compared where the normal approximation holds, that is
  # n p q >= 20.
  usual = root * (1 - root) >= 0.05
  assert usual.sum() > 100
  gap = np.abs(right.mean(1) - root)[usual]
  assert (gap / np.sqrt(variance[usual])).max() < Z
  # The value after each step, over all chains: E[outcome - value] = 0.
  after = arithmetic.chain_values(values, results)
  np.testing.assert_array_equal(after[..., -1], right)
  error = np.sqrt((after * (1 - after)).sum((0, 1)))
  gap = np.abs((right[..., None] - after).sum((0, 1)))
  assert (gap[:-1] < 4 * error[:-1]).all()


def test_labels_match_the_text():
  config = arithmetic.ArithmeticConfig(10, 4, slip=0.2)
  _, problems, results = sample(config, 100, 5)
  chains = arithmetic.to_chains(config, problems, results)
  assert len(chains) == 500
  tokenizer = tokenizer_lib.get_tokenizer('arithmetic')
  seen = {True: 0, False: 0}
  for chain in chains:
    mod, m, colon, start, *rest = chain.problem.split(' ')
    assert (mod, m, colon) == ('mod', '10', ':')
    assert len(rest) == 8
    state, answer = int(start), int(start)
    for i, (step, label) in enumerate(
      zip(chain.steps, chain.labels, strict=True)
    ):
      a, op, b, equals, result = step.split(' ')
      assert equals == '='
      assert int(a) == state  # the result before it, right or wrong
      assert [op, b] == rest[2 * i : 2 * i + 2]
      state = int(result)
      right = state == truth(op, int(a), int(b), 10)
      assert label == chains_lib.StepLabel(float(right), 'verifier')
      seen[right] += 1
      answer = truth(op, answer, int(b), 10)
      assert tokenizer.decode(tokenizer.encode(step)) == step
    assert tokenizer.decode(tokenizer.encode(chain.problem)) == chain.problem
    assert chain.answer == str(state)
    assert chain.outcome is (state == answer)
    assert chain.meta['dataset'] == 'arithmetic'
    assert chain.meta['problem_id'] == chain.problem
    assert chains_lib.from_dict(chains_lib.to_dict(chain)) == chain
  assert min(seen.values()) > 100
  assert len({chain.meta['id'] for chain in chains}) == 500
  # The arrays and the labels of the chains have the same first error.
  correct = arithmetic.step_correct(problems, results, 10).reshape(500, 4)
  first = np.where(correct.all(1), -1, correct.argmin(1))
  assert [chains_lib.first_error(c.labels) for c in chains] == first.tolist()


def test_an_error_carried_forward_is_not_a_second_error():
  config = arithmetic.ArithmeticConfig(10, 3)
  # mod 10 : 7 * 3 + 4 - 9, which is 1, 5, 6.
  problems = arithmetic.Problems(
    np.array([7]), np.array([[2, 0, 1]]), np.array([[3, 4, 9]])
  )
  results = np.array([[[1, 5, 6], [2, 6, 7], [2, 5, 6], [1, 5, 5]]])
  assert arithmetic.true_results(problems, 10).tolist() == [[1, 5, 6]]
  assert arithmetic.step_correct(problems, results, 10).tolist() == [
    [
      [True, True, True],
      [False, True, True],  # one error, carried on to a wrong answer
      [False, False, True],  # two errors that cancel
      [True, True, False],
    ]
  ]
  assert arithmetic.outcomes(problems, results, 10).tolist() == [
    [True, False, True, False]
  ]
  chains = arithmetic.to_chains(config, problems, results)
  assert chains[1].problem == 'mod 10 : 7 * 3 + 4 - 9'
  assert chains[1].steps == ('7 * 3 = 2', '2 + 4 = 6', '6 - 9 = 7')
  assert (chains[1].answer, chains[1].outcome) == ('7', False)


def test_the_tokenizer_has_all_numbers_of_the_largest_modulus():
  config = arithmetic.ArithmeticConfig(99, 5, slip=0.5)
  chains = arithmetic.to_chains(config, *sample(config, 200, 2)[1:])
  tokenizer = tokenizer_lib.get_tokenizer('arithmetic')
  for chain in chains:
    for text in (chain.problem, *chain.steps):
      assert tokenizer.decode(tokenizer.encode(text)) == text


def test_problems_are_cut_to_lengths_in_equal_shares():
  config = arithmetic.ArithmeticConfig(operations=5)
  problems = arithmetic.sample_problems(config, 10, 0)
  (all_of_them,) = arithmetic.shorten(problems, 0)
  np.testing.assert_array_equal(all_of_them.ops, problems.ops)
  parts = arithmetic.shorten(problems, 3)
  assert [part.ops.shape for part in parts] == [(4, 3), (3, 4), (3, 5)]
  for first, part in enumerate(parts):
    length = part.ops.shape[1]
    np.testing.assert_array_equal(part.start, problems.start[first::3])
    for cut, whole in ((part.ops, problems.ops), (part[2], problems[2])):
      np.testing.assert_array_equal(cut, whole[first::3, :length])


def test_only_training_problems_are_shorter():
  draw = DrawConfig(train_problems=60, dev_problems=8, test_problems=8)

  def lengths(chains):
    return {len(chain.steps) for chain in chains}

  splits = drawn_splits('arithmetic', draw, (2, 1, 1), seed=0, shortest=3)
  assert lengths(splits.train) == {3, 4, 5} and len(splits.train) == 120
  whole = drawn_splits('arithmetic', draw, (2, 1, 1), seed=0)
  assert lengths(whole.train) == {5}
  assert splits.dev == whole.dev and splits.evaluations == whole.evaluations


def test_chains_do_not_depend_on_how_many_others_there_are():
  config = arithmetic.ArithmeticConfig()
  transitions = arithmetic.make_solver(config)
  many = arithmetic.sample_problems(config, 60, 3)
  few = arithmetic.sample_problems(config, 25, 3)
  for x, y in zip(many, few, strict=True):
    np.testing.assert_array_equal(x[:25], y)
  results = arithmetic.sample_results(transitions, many, 64, 4)
  part = arithmetic.sample_results(transitions, few, 16, 4)
  np.testing.assert_array_equal(results[:25, :16], part)
  # Samples of a problem differ from each other, as do seeds.
  assert (results[:, 0] != results[:, 1]).any()
  other = arithmetic.sample_results(transitions, many, 64, 5)
  assert (results != other).any()
  assert (arithmetic.sample_problems(config, 60, 4).start != many.start).any()


def test_problems_are_distinct_and_uniform():
  config = arithmetic.ArithmeticConfig(3, 2)
  # All 3 * 9 * 9 problems are found; one more is rejected.
  problems = arithmetic.sample_problems(config, 243, 0)
  rows = np.column_stack(problems)
  assert len(np.unique(rows, axis=0)) == 243
  assert rows.min() == 0
  assert problems.ops.max() == problems.operands.max() == 2
  with pytest.raises(UserError, match='only 243 exist'):
    arithmetic.sample_problems(config, 244, 0)
  # The draw is uniform although repetitions are dropped: each of 243 problems
  # is among the first 27 with probability 1 / 9.
  counts = np.zeros(243)
  for seed in range(900):
    p = arithmetic.sample_problems(config, 27, seed)
    digits = np.column_stack(p)
    counts[digits @ 3 ** np.arange(5)] += 1
  error = np.sqrt(900 * 1 / 9 * 8 / 9)
  assert np.abs(counts - 100).max() < Z * error


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'modulus': 1}, 'modulus=1'),
    ({'modulus': 100}, 'modulus=100'),
    ({'modulus': 10.0}, r'modulus=10\.0'),
    ({'operations': 0}, 'operations=0'),
    ({'wrong_facts': -0.1}, r'wrong_facts=-0\.1'),
    ({'use_wrong': 1.5}, r'use_wrong=1\.5'),
    ({'slip': float('nan')}, 'slip=nan'),
    ({'slip': '0.1'}, "slip='0.1'"),
    ({'solver_seed': -1}, 'solver_seed=-1'),
    ({'ops': ''}, "ops=''"),
    ({'ops': '+/'}, r"ops='\+/'"),
  ],
)
def test_bad_configs_are_rejected(fields, message):
  with pytest.raises(UserError, match=message):
    arithmetic.ArithmeticConfig(**fields)


def test_problems_have_only_the_configured_operations():
  config = arithmetic.ArithmeticConfig(modulus=5, operations=2, ops='*+')
  problems = arithmetic.sample_problems(config, 5 * 10**2, seed=0)
  signs = {arithmetic.OPS[op] for op in problems.ops.ravel()}
  assert signs == {'+', '*'}
  with pytest.raises(UserError, match='only 500 exist'):
    arithmetic.sample_problems(config, 501, seed=0)


def test_bad_counts_and_seeds_are_rejected():
  config = arithmetic.ArithmeticConfig()
  problems = arithmetic.sample_problems(config, 2, 0)
  transitions = arithmetic.make_solver(config)
  with pytest.raises(UserError, match='count=0'):
    arithmetic.sample_problems(config, 0, 0)
  with pytest.raises(UserError, match='samples=0'):
    arithmetic.sample_results(transitions, problems, 0, 0)
  with pytest.raises(UserError, match='seed=-1'):
    arithmetic.sample_results(transitions, problems, 1, -1)
