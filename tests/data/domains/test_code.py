"""Tests the code domain by closed forms and by running programs as text."""

import collections
import dataclasses
import functools
import itertools

import numpy as np
import pytest

from prm_jax.data import chains as chains_lib
from prm_jax.data.domains import code, code_operations, code_text
from prm_jax.data.domains.code import CodeConfig
from prm_jax.runtime.errors import UserError

# Number of standard errors allowed where about 200 cells are compared. One of
# them exceeds 4.5 with probability 0.001.
Z = 4.5

FACTS = code_operations.FACTS


def outputs(problem, statements):
  """Runs statements of the table as text; the independent truth of a test."""
  space = {}
  exec('\n  '.join(['def f ( xs ) :', *statements]), space)
  found = []
  for xs in code_text.draw_inputs(problem):
    try:
      found.append(str(space['f'](list(xs))))
    except (AttributeError, IndexError, TypeError, ValueError):
      found.append('error')
  return ' '.join(found)


def choices(problem, start=0):
  """Returns the statements of all variants of a problem's operations."""
  phrases = problem.split(' ; ')[start:]
  return [[v.statement for v in FACTS[p].variants] for p in phrases]


@functools.cache
def truth(problem):
  return outputs(problem, [variants[0] for variants in choices(problem)])


def test_the_solver_matches_the_closed_form():
  # use_wrong = .75, slip = .03: worked out by hand for 3 and 4 variants.
  #   right fact: .97 right, .015 or .01 each other
  #   wrong fact: .97 * .75 + .03 * .25 / 2 or 3 believed,
  #     .97 * .25 + .03 * .75 / 2 or 3 right, .015 or .01 each other
  rows = {
    3: ([0.97, 0.015, 0.015], [0.73125, 0.25375, 0.015]),
    4: ([0.97, 0.01, 0.01, 0.01], [0.73, 0.25, 0.01, 0.01]),
  }
  solver = code.make_solver(
    CodeConfig(wrong_facts=0.25, use_wrong=0.75, slip=0.03)
  )
  assert list(solver) == list(FACTS)
  wrong = 0
  for phrase, row in solver.items():
    right_row, wrong_row = rows[len(FACTS[phrase].variants)]
    if row[0] == max(row):
      np.testing.assert_allclose(row, right_row, rtol=1e-12)
    else:
      wrong += 1
      np.testing.assert_allclose(sorted(row)[::-1], wrong_row, rtol=1e-12)
      np.testing.assert_allclose(row[0], wrong_row[1], rtol=1e-12)
  assert wrong == round(0.25 * len(FACTS))


def test_more_wrong_facts_add_misconceptions_and_change_none():
  config = CodeConfig(wrong_facts=0.2)
  few = code.make_solver(config)
  many = code.make_solver(dataclasses.replace(config, wrong_facts=0.6))
  other = code.make_solver(dataclasses.replace(config, solver_seed=1))
  wrong = {phrase for phrase, row in few.items() if row[0] < max(row)}
  assert len(wrong) == round(0.2 * len(FACTS))
  assert all(few[phrase] == many[phrase] for phrase in wrong)
  assert sum(row[0] < max(row) for row in many.values()) == round(
    0.6 * len(FACTS)
  )
  assert few != other


def test_wrong_beliefs_are_uniform_over_the_wrong_variants():
  counts = collections.Counter()
  for solver_seed in range(60):
    config = CodeConfig(
      wrong_facts=1.0, use_wrong=1.0, slip=0.0, solver_seed=solver_seed
    )
    for row in code.make_solver(config).values():
      counts[len(row), row.index(1.0)] += 1
  for size in (3, 4):
    found = np.array([counts[size, v] for v in range(size)])
    n, p = found.sum(), 1 / (size - 1)
    assert found[0] == 0
    assert np.abs(found[1:] - n * p).max() < Z * np.sqrt(n * p * (1 - p))


def test_sampled_frequencies_match_the_solver():
  config = CodeConfig(slip=0.2)
  solver = code.make_solver(config)
  returns = sorted(code_operations.RETURNS)
  lists = sorted(set(FACTS) - set(returns))
  problems = [' ; '.join(pair) for pair in itertools.product(lists, returns)]
  counts = {phrase: np.zeros(len(row)) for phrase, row in solver.items()}
  for chain in code.make_chains(config, problems, 20, seed=1):
    for phrase, variants, step in zip(
      chain.problem.split(' ; '),
      choices(chain.problem),
      chain.steps,
      strict=True,
    ):
      counts[phrase][variants.index(step)] += 1
  assert min(count.sum() for count in counts.values()) > 200
  for phrase, count in counts.items():
    n, p = count.sum(), np.array(solver[phrase])
    assert (np.abs(count - n * p) < Z * np.sqrt(n * p * (1 - p))).all()


@pytest.mark.parametrize(('operations', 'count'), [(2, 150), (4, 60), (5, 8)])
def test_labels_match_brute_force_over_all_continuations(operations, count):
  config = CodeConfig(operations, slip=0.2)
  problems = code.sample_problems(config, count, seed=0)
  rights = collections.Counter()
  for chain in code.make_chains(config, problems, 1, seed=1):
    right = truth(chain.problem)
    expected = []
    for p in range(1, operations + 1):
      rests = itertools.product(*choices(chain.problem, p))
      expected.append(
        any(
          outputs(chain.problem, [*chain.steps[:p], *rest]) == right
          for rest in rests
        )
      )
    assert [label.value == 1 for label in chain.labels] == expected
    rights[sum(expected)] += 1
  assert {0, operations} <= set(rights) and len(rights) > 2


def test_chains_are_what_their_programs_do():
  config = CodeConfig(slip=0.2)
  problems = code.sample_problems(config, 60, seed=2)
  chains = code.make_chains(config, problems, 8, seed=3)
  assert [chain.problem for chain in chains] == list(np.repeat(problems, 8))
  outcomes = collections.Counter()
  for chain in chains:
    for variants, step in zip(choices(chain.problem), chain.steps, strict=True):
      assert step in variants
    assert chain.answer == outputs(chain.problem, chain.steps)
    assert chain.outcome is (chain.answer == truth(chain.problem))
    values = [label.value for label in chain.labels]
    assert values == sorted(values, reverse=True)
    assert chain.outcome is (values[-1] == 1)
    assert {label.source for label in chain.labels} == {'verifier'}
    assert chain.meta['dataset'] == 'code'
    assert chain.meta['problem_id'] == chain.problem
    assert chain.meta['truth'] == truth(chain.problem)
    assert chains_lib.from_dict(chains_lib.to_dict(chain)) == chain
    outcomes[chain.outcome, 'error' in chain.answer] += 1
  assert len({chain.meta['id'] for chain in chains}) == len(chains)
  assert min(outcomes[True, False], outcomes[False, False]) > 100
  assert outcomes[False, True] > 20
  assert outcomes[True, True] == 0


def test_a_wrong_statement_that_changes_no_output_is_right():
  problem = 'sort ascending ; reverse the list ; return the sum'
  for steps, expected in (
    (['xs = sorted ( xs )', 'xs = xs [ : : - 1 ]'], [1, 1]),
    # The sum does not depend on the order.
    (['xs = sorted ( xs )', 'xs = sorted ( xs , reverse = True )'], [1, 1]),
    # None has no sum, and no later statement makes a list of it.
    (['xs = xs . sort ( )', 'xs = xs [ : : - 1 ]'], [0, 0]),
    (['xs = sorted ( xs )', 'xs = xs [ : - 1 ]'], [1, 0]),
  ):
    chains = code.make_chains(CodeConfig(slip=0.5), [problem], 400, seed=0)
    labels = [c.labels[:2] for c in chains if [*c.steps[:2]] == steps]
    assert labels
    assert {tuple(x.value for x in two) for two in labels} == {tuple(expected)}


@pytest.mark.parametrize('operations', [2, 3, 4])
def test_outcomes_are_as_likely_as_enumerated(operations):
  config = CodeConfig(operations, wrong_facts=0.4, slip=0.1)
  solver = code.make_solver(config)
  problems = code.sample_problems(config, 20, seed=4)
  gap = variance = 0.0
  for problem in problems:
    right, chance = truth(problem), 0.0
    written = [
      zip(variants, solver[phrase], strict=True)
      for variants, phrase in zip(
        choices(problem), problem.split(' ; '), strict=True
      )
    ]
    for whole in itertools.product(*written):
      steps = [statement for statement, _ in whole]
      if outputs(problem, steps) == right:
        chance += np.prod([q for _, q in whole])
    outcomes = [
      chain.outcome for chain in code.make_chains(config, [problem], 64, seed=5)
    ]
    gap += sum(outcomes) - 64 * chance
    variance += 64 * chance * (1 - chance)
  assert variance > 20
  assert abs(gap) < Z * variance**0.5


def test_a_solver_without_faults_is_always_right():
  config = CodeConfig(wrong_facts=0.0, slip=0.0)
  problems = code.sample_problems(config, 50, seed=0)
  for chain in code.make_chains(config, problems, 2, seed=1):
    assert list(chain.steps) == [v[0] for v in choices(chain.problem)]
    assert chain.outcome
    assert all(label.value == 1 for label in chain.labels)


def test_the_defaults_make_majorities_fail_where_right_chains_exist():
  config = CodeConfig()
  problems = code.sample_problems(config, 250, seed=0)
  chains = code.make_chains(config, problems, 64, seed=1)
  majority = some = 0
  for i in range(0, len(chains), 64):
    group = chains[i : i + 64]
    counts = collections.Counter(chain.answer for chain in group)
    majority += counts.most_common(1)[0][0] == group[0].meta['truth']
    some += any(chain.outcome for chain in group)
  single = sum(chain.outcome for chain in chains) / len(chains)
  assert 0.45 < single < 0.6
  assert majority / len(problems) < single + 0.1
  assert some / len(problems) > 0.95


def test_problems_are_distinct_and_tell_right_from_wrong():
  config = CodeConfig(operations=3)
  problems = code.sample_problems(config, 900, seed=0)
  assert len(set(problems)) == 900
  seen = collections.Counter()
  for problem in problems:
    phrases = problem.split(' ; ')
    seen.update(phrases)
    assert len(set(truth(problem).split())) > 1
    # No list is empty before the last list operation.
    first = choices(problem)[0][0]
    assert '0' not in outputs(problem, [first, 'return len ( xs )']).split()
  assert set(seen) == set(FACTS)
  # Operations are drawn equally often, however many numbers they have, and few
  # draws are left out.
  for operations, draws in (
    (code_operations.LIST_OPERATIONS, 1800),
    (code_operations.RETURN_OPERATIONS, 900),
  ):
    found = [sum(seen[fact.phrase] for fact in facts) for facts in operations]
    assert sum(found) == draws
    mean = draws / len(operations)
    assert max(abs(count - mean) for count in found) < Z * mean**0.5


def test_problems_and_chains_do_not_depend_on_how_many_others_there_are():
  config = CodeConfig()
  many = code.sample_problems(config, 60, seed=3)
  assert code.sample_problems(config, 25, seed=3) == many[:25]
  assert code.sample_problems(config, 60, seed=4) != many
  chains = code.make_chains(config, many, 16, seed=4)
  part = code.make_chains(config, many[:25], 5, seed=4)
  assert part == [chains[16 * n + s] for n in range(25) for s in range(5)]
  # Nor on how long the others are.
  short = code.sample_problems(CodeConfig(operations=2), 1, seed=3)
  mixed = code.make_chains(config, [*short, *many[1:]], 16, seed=4)
  assert mixed[16:] == chains[16:]
  assert {len(chain.steps) for chain in mixed[:16]} == {2}
  # Samples of a problem differ from each other, as do seeds.
  assert len({chain.steps for chain in chains}) > 120
  other = code.make_chains(config, many, 16, seed=5)
  assert [x.steps for x in other] != [x.steps for x in chains]


def test_too_many_problems_are_refused():
  config = CodeConfig(operations=2)
  assert len(set(code.sample_problems(config, 500, seed=0))) == 500
  with pytest.raises(UserError, match=r'700 distinct .* only \d+ found'):
    code.sample_problems(config, 700, seed=0)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'operations': 1}, 'operations=1'),
    ({'operations': 7}, 'operations=7'),
    ({'operations': 4.0}, r'operations=4\.0'),
    ({'wrong_facts': -0.1}, r'wrong_facts=-0\.1'),
    ({'use_wrong': 1.5}, r'use_wrong=1\.5'),
    ({'slip': float('nan')}, 'slip=nan'),
    ({'slip': '0.1'}, "slip='0.1'"),
    ({'solver_seed': -1}, 'solver_seed=-1'),
  ],
)
def test_bad_configs_are_rejected(fields, message):
  with pytest.raises(UserError, match=message):
    CodeConfig(**fields)


def test_bad_counts_seeds_and_problems_are_rejected():
  config = CodeConfig()
  problems = code.sample_problems(config, 2, seed=0)
  with pytest.raises(UserError, match='count=0'):
    code.sample_problems(config, 0, seed=0)
  with pytest.raises(UserError, match='samples=0'):
    code.make_chains(config, problems, 0, seed=0)
  with pytest.raises(UserError, match='seed=-1'):
    code.make_chains(config, problems, 1, seed=-1)
  with pytest.raises(UserError, match='no problem of the code domain'):
    code.make_chains(config, ['double each'], 1, seed=0)
