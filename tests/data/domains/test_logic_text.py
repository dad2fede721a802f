"""Tests reading and checking of deductions by truth tables over all atoms."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from prm_jax.data.domains import logic, logic_text
from prm_jax.runtime.errors import UserError

PROBLEM = 'if not p then q ; q or r ; s ; not both r and s ; what of r'
LONG = 'not p ; p or q ; r iff q ; p or z ; if not r then s ; what of s'


def value(literal, values):
  """Evaluates `p` or `not p`."""
  return values[literal[-1]] == (not literal.startswith('not '))


def holds(clause, values):
  """Evaluates a fact or premise without the code under test."""
  if clause.startswith('if '):
    a, b = clause.removeprefix('if ').split(' then ')
    return not value(a, values) or value(b, values)
  if clause.startswith('not both '):
    a, b = clause.removeprefix('not both ').split(' and ')
    return not (value(a, values) and value(b, values))
  for word in (' or ', ' iff '):
    if word in clause:
      a, b = (value(side, values) for side in clause.split(word))
      return a or b if word == ' or ' else a == b
  return value(clause, values)


def possible(clauses, atom):
  """Returns the values of an atom in all assignments that agree."""
  atoms = sorted(
    {w for c in clauses for w in c.split() if len(w) == 1} | {atom}
  )
  every = itertools.product((False, True), repeat=len(atoms))
  models = (dict(zip(atoms, row, strict=True)) for row in every)
  return {m[atom] for m in models if all(holds(c, m) for c in clauses)}


def opposite(literal):
  return literal[-1] if literal.startswith('not ') else f'not {literal}'


def schemas(premise):
  """Yields literal, conclusion and rule of every valid rule, by the books."""
  if premise.startswith('if '):
    a, b = premise.removeprefix('if ').split(' then ')
    yield a, b, 'modus ponens'
    yield opposite(b), opposite(a), 'modus tollens'
  elif premise.startswith('not both '):
    a, b = premise.removeprefix('not both ').split(' and ')
    yield a, opposite(b), 'conjunctive syllogism'
    yield b, opposite(a), 'conjunctive syllogism'
  elif ' or ' in premise:
    a, b = premise.split(' or ')
    yield opposite(a), b, 'disjunctive syllogism'
    yield opposite(b), a, 'disjunctive syllogism'
  else:
    a, b = premise.split(' iff ')
    for x, y in ((a, b), (b, a)):
      yield x, y, 'equivalence'
      yield opposite(x), opposite(y), 'equivalence'


def fallacies(premise):
  """Yields literal, conclusion and the valid rule that it is confused with."""
  if premise.startswith('if '):
    a, b = premise.removeprefix('if ').split(' then ')
    yield b, a, 'modus ponens'  # affirming the consequent
    yield opposite(a), opposite(b), 'modus tollens'  # denying the antecedent
  elif premise.startswith('not both '):  # denying a conjunct
    a, b = premise.removeprefix('not both ').split(' and ')
    yield opposite(a), b, 'conjunctive syllogism'
    yield opposite(b), a, 'conjunctive syllogism'
  elif ' or ' in premise:  # affirming a disjunct
    a, b = premise.split(' or ')
    yield a, opposite(b), 'disjunctive syllogism'
    yield b, opposite(a), 'disjunctive syllogism'


def on_the_way(premises, start, end):
  """Returns the atoms from one to another by premises; there is one way."""
  pairs = [[w for w in text.split() if len(w) == 1] for text in premises]
  paths = [[start]]
  while paths:
    path = paths.pop()
    if path[-1] == end:
      return path
    paths += [
      [*path, other]
      for pair in pairs
      for at, other in (pair, pair[::-1])
      if at == path[-1] and other not in path
    ]
  raise AssertionError(f'no way from {start} to {end}')


def brute_force_labels(problem, steps):
  """Checks steps by schemas of rules and by assignments of all atoms."""
  *clauses, question = problem.split(' ; ')
  (fact,) = [c for c in clauses if len(c.split()) == 1 + c.startswith('not ')]
  premises = [c for c in clauses if c != fact]
  asked, last, stated, labels = question[-1], fact, [fact], []
  way = on_the_way(premises, fact[-1], asked)
  for step in steps:
    claim = step.removeprefix('the answer is ')
    if claim == 'unknown' and claim != step:
      labels.append(len(possible([*premises, last], asked)) == 2)
    elif claim in ('true', 'false') and claim != step:
      labels.append({'true': asked, 'false': f'not {asked}'}[claim] in stated)
    else:
      literal, premise, end = step.split(' ; ')
      conclusion, _, rule = end.removeprefix('so ').partition(' by ')
      known = literal in stated and premise in premises
      if conclusion != 'nothing':
        rules = list(schemas(premise))
        labels.append(known and (literal, conclusion, rule) in rules)
        if conclusion[-1] in way:
          last = conclusion
        stated.append(conclusion)
      else:
        atoms = {w for w in premise.split() if len(w) == 1}
        others = atoms - {literal[-1]}
        labels.append(
          known
          and len(others) == 1
          and len(possible([premise, literal], others.pop())) == 2
        )
  return labels


def all_premises():
  literals = itertools.product(('p', 'not p'), ('q', 'not q'))
  for p, q in literals:
    for a, b in ((p, q), (q, p)):
      yield from (f'if {a} then {b}', f'{a} or {b}')
      yield from (f'{a} iff {b}', f'not both {a} and {b}')


def deduce(premise, literal):
  """Returns conclusion and rule by the code under test, as texts."""
  read = logic_text.read_step(f'{literal} ; {premise} ; so nothing')
  conclusion = logic_text.follows(read.premise, read.literal)
  rule = logic_text.rule_of(read.premise, read.literal)
  return conclusion and str(conclusion), rule


def test_valid_rules_are_valid_and_fallacies_are_not():
  premises = list(all_premises())
  assert len(set(premises)) == 32
  facts = 0
  for premise in premises:
    valid, invalid = list(schemas(premise)), list(fallacies(premise))
    for literal, conclusion, rule in valid:
      assert len(possible([premise, literal], conclusion[-1])) == 1
      assert not possible([premise, literal, opposite(conclusion)], 'p')
      assert deduce(premise, literal) == (conclusion, rule)
    for literal, conclusion, rule in invalid:
      assert len(possible([premise, literal], conclusion[-1])) == 2
      assert deduce(premise, literal) == (None, rule)
    known = {literal for literal, _, _ in valid + invalid}
    assert known == {'p', 'not p', 'q', 'not q'}
    facts += len(valid + invalid)
    # Every premise leaves both values of either atom possible.
    assert len(possible([premise], 'p')) == len(possible([premise], 'q')) == 2
  assert facts == 32 * 4


def test_true_answers_match_all_assignments():
  names = {(True,): 'true', (False,): 'false', (False, True): 'unknown'}
  seen = set()
  for steps, distractors in ((1, 0), (2, 3), (4, 1), (5, 2)):
    config = logic.LogicConfig(steps, distractors)
    for problem in logic.sample_problems(config, 60, seed=0):
      *clauses, question = problem.split(' ; ')
      values = possible(clauses, question[-1])
      truth = names[tuple(sorted(values))]
      assert logic_text.true_answer(problem) == truth
      seen.add(truth)
  assert seen == {'true', 'false', 'unknown'}


def test_labels_match_brute_force():
  config = logic.LogicConfig(wrong_facts=0.4, slip=0.15)
  problems = logic.sample_problems(config, 60, seed=1)
  chains = logic.make_chains(config, problems, 6, seed=2)
  wrong = 0
  for chain in chains:
    right = logic_text.check_steps(chain.problem, chain.steps)
    assert right == brute_force_labels(chain.problem, chain.steps)
    assert right == [label.value == 1 for label in chain.labels]
    assert logic_text.is_formed(chain.problem, chain.steps)
    wrong += not all(right)
  assert wrong > 100
  # Steps of several chains in any order, some with another word.
  rng = np.random.default_rng(0)
  words = [*'pqrs', 'if', 'iff', 'or', 'tollens', 'ponens', 'true', 'unknown']
  kinds = {True: 0, False: 0}
  for n in range(0, len(chains), 6):
    steps = [step for chain in chains[n : n + 6] for step in chain.steps]
    for i in rng.permutation(len(steps))[::3]:
      text = steps[i].split(' ')
      text[rng.integers(len(text))] = words[rng.integers(len(words))]
      if logic_text.read_step(' '.join(text)):
        steps[i] = ' '.join(text)
    steps = [steps[i] for i in rng.permutation(len(steps))]
    right = logic_text.check_steps(chains[n].problem, steps)
    assert right == brute_force_labels(chains[n].problem, steps)
    for ok in right:
      kinds[ok] += 1
  assert min(kinds.values()) > 100


@pytest.mark.parametrize(
  ('steps', 'right'),
  [
    (
      [
        'not p ; p or q ; so q by disjunctive syllogism',
        'q ; r iff q ; so r by equivalence',
        'r ; if not r then s ; so nothing',
        'the answer is unknown',
      ],
      [True] * 4,
    ),
    # A fallacy is carried on to a right deduction and a right answer from it.
    (
      [
        'not p ; p or q ; so not q by disjunctive syllogism',
        'not q ; r iff q ; so not r by equivalence',
        'not r ; if not r then s ; so s by modus ponens',
        'the answer is true',
      ],
      [False, True, True, True],
    ),
    # Right conclusions by wrong rules, or from what nobody has stated.
    (['not p ; p or q ; so q by modus tollens'], [False]),
    (['q ; r iff q ; so r by equivalence'], [False]),
    # Steps from any earlier literal, and on to a distractor.
    (
      [
        'not p ; p or q ; so q by disjunctive syllogism',
        'not p ; p or z ; so z by disjunctive syllogism',
        'q ; r iff q ; so r by equivalence',
      ],
      [True] * 3,
    ),
    # A premise of another problem, or turned around, or of other atoms.
    (['not p ; p or r ; so r by disjunctive syllogism'], [False]),
    (['not p ; q or p ; so q by disjunctive syllogism'], [False]),
    (['not p ; r iff q ; so nothing'], [False]),
    (['not p ; p or q ; so not p by disjunctive syllogism'], [False]),
    (['not p ; p or q ; so nothing'], [False]),
    # s is unknown from the fact; an error leaves it determined or not.
    (['the answer is unknown'], [True]),
    (['the answer is true'], [False]),
    (
      [
        'not p ; p or q ; so not q by disjunctive syllogism',
        'the answer is unknown',
      ],
      [False, False],
    ),
    # Text of no form states nothing.
    (['', 'q', 'so q', 'the answer is', 'the answer is s'], [False] * 5),
    (['not p ; p or q ; so q', 'q ; r iff q ; so r by equivalence'], [0, 0]),
    (['not not p ; p or q ; so nothing'], [False]),
    (['not p ; p or q ; so nothing by equivalence'], [False]),
    (['Not p ; p or q ; so q by disjunctive syllogism'], [False]),
  ],
)
def test_steps_of_any_text_are_checked(steps, right):
  assert logic_text.check_steps(LONG, steps) == right


TEXTS = st.one_of(
  st.text(),
  st.lists(st.sampled_from(logic_text.WORDS)).map(' '.join),
  st.tuples(
    st.sampled_from(['s', 'not s', 'q', 'not p', 'p or']),
    st.sampled_from(['not both r and s', 'q or r', 'p or p', 'r', 'a iff b']),
    st.sampled_from(
      ['so nothing', 'so r', 'so not r by conjunctive syllogism']
    ),
  ).map(' ; '.join),
)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(steps=st.lists(TEXTS, max_size=5))
def test_any_text_is_checked_and_only_the_form_is_read(steps):
  right = logic_text.check_steps(PROBLEM, steps)
  assert [type(ok) for ok in right] == [bool] * len(steps)
  assert logic_text.is_formed(PROBLEM, steps) in (True, False)
  for step, ok in zip(steps, right, strict=True):
    read, answer = logic_text.read_step(step), logic_text.read_answer(step)
    assert read is None or str(read) == step
    assert answer is None or f'the answer is {answer}' == step
    assert not ok or (read is None) != (answer is None)


FORMED = (
  'not p ; p or q ; so not q by modus ponens',
  'not q ; r iff q ; so r by equivalence',
  'r ; if not r then s ; so not s by modus tollens',
  'the answer is false',
)


@pytest.mark.parametrize(
  ('steps', 'formed'),
  [
    (FORMED, True),  # though all of its deductions are wrong
    (
      (FORMED[0], 'not q ; r iff q ; so nothing', 'the answer is unknown'),
      True,
    ),
    (('not p ; p or z ; so nothing', 'the answer is unknown'), True),
    ((), False),
    (FORMED[:3], False),  # no answer
    (FORMED[3:], False),  # no deduction
    ((*FORMED, FORMED[3]), False),
    ((*FORMED[:3], 'the answer is true'), False),  # not what was concluded
    ((*FORMED[:3], 'the answer is unknown'), False),
    ((*FORMED[:2], 'the answer is true'), False),  # r is not the asked atom
    ((FORMED[0], *FORMED[2:]), False),  # r was not stated
    (('p ; p or q ; so q by modus ponens', *FORMED[1:]), False),
    (('not p ; q or p ; so not q by modus ponens', *FORMED[1:]), False),
    (('not p ; r iff q ; so not q by equivalence', *FORMED[1:]), False),
    (('not p ; p or q ; so s by modus ponens', 'the answer is true'), False),
    (('not p ; p or q ; so nothing', *FORMED[1:]), False),
    (('so nothing', 'the answer is unknown'), False),
  ],
)
def test_only_chains_of_the_domain_are_well_formed(steps, formed):
  assert logic_text.is_formed(LONG, steps) is formed


def test_a_problem_is_read():
  parsed = logic_text.read_problem(PROBLEM)
  assert str(parsed.fact) == 's' and parsed.asked == 'r'
  assert [str(premise) for premise in parsed.premises] == [
    'if not p then q',
    'q or r',
    'not both r and s',
  ]
  assert parsed.path == parsed.premises[2:] and parsed.atoms == ('s', 'r')
  assert logic_text.true_answer(PROBLEM) == 'false'
  parsed = logic_text.read_problem(LONG)
  assert [str(premise) for premise in parsed.path] == [
    'p or q',
    'r iff q',
    'if not r then s',
  ]
  assert parsed.atoms == ('p', 'q', 'r', 's')


@pytest.mark.parametrize(
  'text',
  [
    '',
    'what of p',
    'p ; what of p',  # nothing to deduce
    'p or q ; what of q',  # no fact
    'p ; q ; p or q ; what of q',
    'p ; p ; p or q ; what of q',
    'p ; p or q',
    'p ; p or q ; what of r',
    'p ; q or r ; what of r',  # no path
    'p ; p or q ; r or s ; what of q',
    'p ; p or q ; q iff p ; what of q',  # a circle
    'p ; p or q ; p or q ; what of q',
    'p ; p or p ; p or q ; what of q',
    'p ; p and q ; what of q',
    'p ; p or q; what of q',
    'P ; P or q ; what of q',
    'p ; p or q ; what of q\n',
    'mod 10 : 7 * 3',
  ],
)
def test_other_texts_are_not_problems(text):
  assert not logic_text.is_problem(text)
  with pytest.raises(UserError, match='no problem of the logic domain'):
    logic_text.read_problem(text)


def test_the_words_are_those_of_problems_and_chains():
  words = logic_text.WORDS
  assert len(set(words)) == len(words)
  config = logic.LogicConfig(wrong_facts=0.5, slip=0.3)
  problems = logic.sample_problems(config, 200, seed=0)
  assert all(map(logic_text.is_problem, problems))
  chains = logic.make_chains(config, problems, 2, seed=0)
  texts = [text for chain in chains for text in (chain.problem, *chain.steps)]
  assert {word for text in texts for word in text.split(' ')} == set(words)


def test_a_conclusion_beside_the_way_makes_unknown_no_answer():
  """The fact still determines p, and so r; x says nothing of it."""
  problem = 'x or p ; p or r ; not p ; what of r'
  steps = ('not p ; x or p ; so x by disjunctive syllogism',)
  assert logic_text.true_answer(problem) == 'true'
  right = logic_text.check_steps(problem, (*steps, 'the answer is unknown'))
  assert right == [True, False]
