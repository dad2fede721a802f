"""Tests the logic domain by closed forms, enumeration and its own text."""

import collections
import dataclasses
import functools
import itertools

import numpy as np
import pytest

from prm_jax.data import chains as chains_lib
from prm_jax.data.domains import logic, logic_text
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.runtime.errors import UserError

# Number of standard errors allowed where many cells are compared. One of 10,000
# exact cells exceeds 5 with probability 0.006.
Z = 5.0

RIGHT = logic.LogicConfig(wrong_facts=0.0, slip=0.0)


def right_outcome(fact):
  """Reads the outcome of a fact off the truth table."""
  form, side, own, other, known = fact
  table = [
    lambda a, b: not a or b,
    lambda a, b: a or b,
    lambda a, b: a == b,
    lambda a, b: not (a and b),
  ][form]
  left = []
  for value in (0, 1):
    sides = known == own, value == other
    if table(*(sides[::-1] if side else sides)):
      left.append(value)
  return left[0] if len(left) == 1 else logic.NOTHING


def all_facts():
  return list(itertools.product(range(4), *[range(2)] * 4))


def steps_of(chain):
  """Yields the index of the fact and the outcome of each deduction."""
  for text in chain.steps[:-1]:
    step = logic_text.read_step(text)
    outcome = (
      logic.NOTHING if step.conclusion is None else step.conclusion.holds
    )
    yield logic.fact_of(step.premise, step.literal), int(outcome)


def test_transitions_match_the_closed_form():
  # use_wrong = .7, slip = .03, worked out by hand.
  #   right fact: .97 right, .015 each other outcome
  #   wrong fact: .97 * .7 + .015 * .3 believed, .97 * .3 + .015 * .7 right
  config = logic.LogicConfig(wrong_facts=0.5)
  transitions = logic.make_solver(config)
  np.testing.assert_allclose(transitions.sum(-1), 1, rtol=0, atol=1e-15)
  wrong, valid = 0, 0
  for fact in all_facts():
    row, right = transitions[fact], right_outcome(fact)
    valid += right != logic.NOTHING
    if row.argmax() == right:
      np.testing.assert_allclose(np.sort(row), [0.015, 0.015, 0.97], rtol=1e-12)
      continue
    wrong += 1
    np.testing.assert_allclose(
      np.sort(row), [0.015, 0.3015, 0.6835], rtol=1e-12
    )
    np.testing.assert_allclose(row[right], 0.3015, rtol=1e-12)
    if right == logic.NOTHING:
      # Of the opposite of what is known, the opposite of the belief follows.
      opposite = right_outcome((*fact[:4], 1 - fact[4]))
      assert row.argmax() == 1 - opposite
  assert (wrong, valid) == (32, 40)


def test_the_solver_believes_fallacies_by_the_name_of_a_rule():
  config = logic.LogicConfig(1, 0, 1.0, 1.0, use_wrong=1.0, slip=0.0)
  problems = logic.sample_problems(config, 300, seed=0)
  named = collections.defaultdict(set)
  for chain in logic.make_chains(config, problems, 1, seed=0):
    step = logic_text.read_step(chain.steps[0])
    form, own = step.premise.form, step.premise.from_atom(step.literal.atom)[0]
    affirmed = form == logic_text.IF and step.literal == own
    named[form, affirmed].add(step.rule)
    assert [label.value for label in chain.labels] == [0.0, 1.0]
    assert chain.answer != chain.meta['truth'] == 'unknown'
  assert named == {
    (logic_text.IF, True): {'modus ponens'},
    (logic_text.IF, False): {'modus tollens'},
    (logic_text.OR, False): {'disjunctive syllogism'},
    (logic_text.NOT_BOTH, False): {'conjunctive syllogism'},
  }


def test_wrong_beliefs_of_valid_facts_are_uniform_over_the_others():
  counts = np.zeros(3)
  for solver_seed in range(40):
    config = logic.LogicConfig(
      wrong_facts=1.0, use_wrong=1.0, slip=0.0, solver_seed=solver_seed
    )
    believed = logic.make_solver(config).argmax(-1)
    for fact in all_facts():
      if (right := right_outcome(fact)) != logic.NOTHING:
        counts[(believed[fact] - right) % 3] += 1
  assert counts[0] == 0 and counts.sum() == 40 * 40
  assert abs(counts[1] - 800) < Z * 20


def test_solver_seed_chooses_the_misconceptions():
  right = np.array([right_outcome(fact) for fact in all_facts()])
  shares = (0.0, 0.18, 0.5, 1.0)
  solvers = [
    logic.make_solver(dataclasses.replace(RIGHT, wrong_facts=share, slip=0.03))
    for share in shares
  ]
  believed = [solver.argmax(-1).ravel() for solver in solvers]
  assert [(b != right).sum() for b in believed] == [0, 12, 32, 64]
  # The misconceptions stay when more are added.
  for few, many in itertools.pairwise(solvers):
    wrong = few.argmax(-1).ravel() != right
    np.testing.assert_array_equal(
      few.reshape(64, 3)[wrong], many.reshape(64, 3)[wrong]
    )
  base = logic.make_solver(logic.LogicConfig())
  np.testing.assert_array_equal(base, logic.make_solver(logic.LogicConfig()))
  other = logic.make_solver(logic.LogicConfig(solver_seed=1))
  assert (base.argmax(-1) != other.argmax(-1)).any()


def test_sampled_frequencies_match_the_transitions():
  config = logic.LogicConfig(3, 1, wrong_facts=0.3, slip=0.1)
  transitions = logic.make_solver(config)
  problems = logic.sample_problems(config, 800, seed=0)
  counts = np.zeros(transitions.shape)
  for chain in logic.make_chains(config, problems, 12, seed=1):
    for fact, outcome in steps_of(chain):
      counts[(*fact, outcome)] += 1
  n = counts.sum(-1, keepdims=True)
  # The normal approximation holds, except for the rarest outcomes, n p > 5.
  assert n.min() > 100
  error = np.sqrt(n * transitions * (1 - transitions))
  assert np.abs((counts - n * transitions) / error).max() < Z


@pytest.mark.parametrize(('steps', 'distractors'), [(1, 0), (3, 4), (5, 2)])
def test_problems_are_paths_with_distractors(steps, distractors):
  config = logic.LogicConfig(steps, distractors)
  attached, order = set(), set()
  for problem in logic.sample_problems(config, 300, seed=0):
    parsed = logic_text.read_problem(problem)
    assert len(parsed.path) == steps
    assert len(problem.split(' ; ')) == steps + distractors + 2
    used = collections.Counter(a for p in parsed.premises for a in p.atoms)
    others = [p for p in parsed.premises if p not in parsed.path]
    assert len(others) == distractors
    for premise in others:
      own, fresh = sorted(premise.atoms, key=used.__getitem__, reverse=True)
      assert own in parsed.atoms and used[fresh] == 1
      assert fresh not in parsed.atoms
      attached.add(parsed.atoms.index(own))
    order.add(problem.split(' ; ').index(str(parsed.fact)))
  assert attached == (set(range(steps + 1)) if distractors else set())
  assert order == set(range(steps + distractors + 1))


def test_nothing_follows_at_a_uniform_place_of_a_third_of_the_problems():
  count = 1500
  problems = logic.sample_problems(RIGHT, count, seed=0)
  places, answers = collections.Counter(), collections.Counter()
  forms = np.zeros(4)
  for chain in logic.make_chains(RIGHT, problems, 1, seed=0):
    answers[chain.answer] += 1
    if chain.answer == 'unknown':
      places[len(chain.steps) - 2] += 1
    else:
      assert len(chain.steps) == 6
      for fact, _ in steps_of(chain):
        forms[fact[0]] += 1
  for n, p, drawn in (
    (count, 1 / 3, answers.values()),
    (answers['unknown'], 1 / 5, places.values()),
    (forms.sum(), 1 / 4, forms),
  ):
    assert len(drawn) == round(1 / p)
    error = np.sqrt(n * p * (1 - p))
    assert all(abs(x - n * p) < Z * error for x in drawn)
  for share, answered in ((0.0, {'true', 'false'}), (1.0, {'unknown'})):
    config = logic.LogicConfig(2, 0, share)
    some = logic.sample_problems(config, 50, seed=0)
    assert set(map(logic_text.true_answer, some)) == answered


def test_a_solver_without_faults_is_always_right():
  problems = logic.sample_problems(RIGHT, 100, seed=0)
  for chain in logic.make_chains(RIGHT, problems, 2, seed=0):
    assert chain.outcome and chain.answer == chain.meta['truth']
    assert {label.value for label in chain.labels} == {1.0}
    # A right chain ends with unknown exactly where nothing follows.
    nothing = chain.steps[-2].endswith('so nothing')
    assert nothing == (chain.answer == 'unknown')


def test_chains_have_labels_answers_and_meta():
  config = logic.LogicConfig(slip=0.1)
  problems = logic.sample_problems(config, 100, seed=3)
  chains = logic.make_chains(config, problems, 5, seed=4)
  assert [c.problem for c in chains[::5]] == problems and len(chains) == 500
  carried, lengths = 0, set()
  for i, chain in enumerate(chains):
    right = logic_text.check_steps(chain.problem, chain.steps)
    assert chain.labels == tuple(
      chains_lib.StepLabel(float(ok), 'verifier') for ok in right
    )
    assert chain.answer == final_answer(chain.steps)
    assert chain.steps[-1] == f'the answer is {chain.answer}'
    truth = logic_text.true_answer(chain.problem)
    assert chain.outcome is (chain.answer == truth)
    assert logic_text.is_formed(chain.problem, chain.steps)
    assert chain.meta == {
      'id': f'{chain.problem} # {i % 5}',
      'dataset': 'logic',
      'problem_id': chain.problem,
      'truth': truth,
    }
    assert chains_lib.from_dict(chains_lib.to_dict(chain)) == chain
    carried += not chain.outcome and right.count(False) == 1
    lengths.add(len(chain.steps))
  assert carried > 100
  assert lengths == {2, 3, 4, 5, 6}


def endings(transitions, parsed, state):
  """Yields probability and answer of every way in which the solver goes on."""
  place = parsed.atoms.index(state[-1])
  rest = parsed.path[place:]
  for outcomes in itertools.product(range(3), repeat=len(rest)):
    probability, known = 1.0, int(not state.startswith('not '))
    for k, outcome in enumerate(outcomes):
      literal = logic_text.Literal(parsed.atoms[place + k], known == logic.TRUE)
      probability *= transitions[(*logic.fact_of(rest[k], literal), outcome)]
      known = outcome
      if outcome == logic.NOTHING:
        # Nothing is written after it, so the rest is counted once.
        probability *= not any(outcomes[k + 1 :])
        break
    yield probability, ('false', 'true', 'unknown')[known]


def test_outcomes_are_as_likely_as_enumerated_after_every_step():
  config = logic.LogicConfig()
  transitions = logic.make_solver(config)
  problems = logic.sample_problems(config, 150, seed=5)

  @functools.cache
  def chance(problem, state):
    truth = logic_text.true_answer(problem)
    parsed = logic_text.read_problem(problem)
    every = list(endings(transitions, parsed, state))
    np.testing.assert_allclose(sum(p for p, _ in every), 1, rtol=1e-12)
    return sum(p for p, answer in every if answer == truth)

  gaps, variances = np.zeros(6), np.zeros(6)
  for chain in logic.make_chains(config, problems, 40, seed=6):
    fact = str(logic_text.read_problem(chain.problem).fact)
    concluded = (
      s.split(' ; so ')[-1].split(' by ')[0] for s in chain.steps[:-1]
    )
    for k, state in enumerate([fact, *concluded]):
      if state != 'nothing':
        value = chance(chain.problem, state)
        gaps[k] += chain.outcome - value
        variances[k] += value * (1 - value)
  assert variances[0] > 100 and variances[4] > 10
  assert (np.abs(gaps[:5]) < 4 * np.sqrt(variances[:5])).all()


def test_chains_do_not_depend_on_how_many_others_there_are():
  config = logic.LogicConfig()
  many = logic.sample_problems(config, 60, seed=3)
  assert logic.sample_problems(config, 25, seed=3) == many[:25]
  assert logic.sample_problems(config, 60, seed=4) != many
  chains = logic.make_chains(config, many, 16, seed=4)
  few = logic.make_chains(config, many[:25], 4, seed=4)
  assert few == [c for n in range(25) for c in chains[16 * n : 16 * n + 4]]
  # Samples of a problem differ from each other, as do seeds.
  assert [c.steps for c in chains[::16]] != [c.steps for c in chains[1::16]]
  assert logic.make_chains(config, many, 16, seed=5) != chains
  # Problems of other lengths change nothing.
  longer = logic.sample_problems(logic.LogicConfig(8), 25, seed=0)
  mixed = logic.make_chains(config, [*many[:25], *longer], 4, seed=4)
  assert mixed[:100] == few


def test_problems_are_distinct():
  config = logic.LogicConfig(1, 0)
  # About 150 of as many draws from 83,200 are repetitions.
  problems = logic.sample_problems(config, 5_000, seed=0)
  assert len(set(problems)) == 5_000


@pytest.mark.parametrize(
  ('share', 'answers'),
  [
    (0.0, {'true', 'false'}),
    (1.0, {'unknown'}),
    (0.5, {'unknown'}),  # with both kinds, the fewer of them
  ],
)
def test_too_few_problems_are_reported(share, answers):
  # All problems of one premise over p and q, and 26 * 25 pairs of letters.
  pairs = ('p', 'not p'), ('q', 'not q')
  premises = [
    form.format(*literals)
    for form in logic_text.FORMS
    for p, q in itertools.product(*pairs)
    for literals in ((p, q), (q, p))
  ]
  problems = [
    f'{" ; ".join(clauses)} ; what of q'
    for premise in premises
    for fact in pairs[0]
    for clauses in ((premise, fact), (fact, premise))
  ]
  found = [p for p in problems if logic_text.true_answer(p) in answers]
  exist = len(found) * 26 * 25
  config = logic.LogicConfig(1, 0, share)
  with pytest.raises(UserError, match=f'only {exist} exist'):
    logic.sample_problems(config, exist + 1, seed=0)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'steps': 0}, 'steps=0'),
    ({'steps': 26}, 'steps=26'),
    ({'distractors': -1}, 'distractors=-1'),
    ({'distractors': 21}, 'distractors=21: expected at most 20'),
    ({'unknown_share': 1.5}, r'unknown_share=1\.5'),
    ({'wrong_facts': -0.1}, r'wrong_facts=-0\.1'),
    ({'use_wrong': float('nan')}, 'use_wrong=nan'),
    ({'slip': '0.1'}, "slip='0.1'"),
    ({'solver_seed': -1}, 'solver_seed=-1'),
  ],
)
def test_bad_configs_are_rejected(fields, message):
  with pytest.raises(UserError, match=message):
    logic.LogicConfig(**fields)


def test_all_letters_can_be_used():
  config = logic.LogicConfig(steps=20, distractors=5)
  (problem,) = logic.sample_problems(config, 1, seed=0)
  assert {word for word in problem.split() if len(word) == 1} >= set(
    'abcdefghijklmnopqrstuvwxyz'
  )


def test_bad_counts_seeds_and_texts_are_rejected():
  config = logic.LogicConfig()
  problems = logic.sample_problems(config, 2, seed=0)
  with pytest.raises(UserError, match='count=0'):
    logic.sample_problems(config, 0, seed=0)
  with pytest.raises(UserError, match='samples=0'):
    logic.make_chains(config, problems, 0, seed=0)
  with pytest.raises(UserError, match='seed=-1'):
    logic.make_chains(config, problems, 1, seed=-1)
  with pytest.raises(UserError, match='no problem of the logic domain'):
    logic.make_chains(config, ['mod 10 : 7 * 3'], 1, seed=0)
