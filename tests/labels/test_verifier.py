"""The verifier on arithmetic, text and code, hostile input included."""

import collections
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prm_jax.data.chains import Chain
from prm_jax.data.domains import arithmetic
from prm_jax.data.readers import read_chains
from prm_jax.data.verify import sandbox
from prm_jax.inference.driver import CannotDo
from prm_jax.labels import verifier
from prm_jax.labels.verifier import VerifierConfig
from prm_jax.runtime import checks
from prm_jax.runtime.errors import UserError
from tests.data.verify.isolation import needs_sandbox
from tests.labels.run_labellings import result
from tests.shared.cpu_time import cpu_seconds
from tests.shared.real_data import shared

BOOKS = (
  'His sister has 13 - 10 = 3 books.',
  'Together, they have 13 + 3 = 17 books.',
  'The answer is 17.',
)


def labelled(chain, **config):
  return result(verifier.label(chain, VerifierConfig(**config)))


def values(chain):
  return [label.value for label in chain.labels]


def test_arithmetic_labels_are_exact():
  config = arithmetic.ArithmeticConfig(operations=6)
  problems = arithmetic.sample_problems(config, 500, seed=0)
  solver = arithmetic.make_solver(config)
  results = arithmetic.sample_results(solver, problems, 8, seed=1)
  chains = arithmetic.to_chains(config, problems, results)
  counts = collections.Counter()
  for chain in chains:
    bare = Chain(chain.problem, chain.steps, chain.answer, chain.outcome)
    found = labelled(bare)
    assert found.labels == chain.labels
    counts.update(found.meta['verifier'])
  assert counts.total() == 4000 * 6
  assert counts['unchecked'] == 0
  assert counts['wrong'] > 1000


def test_text_is_labelled_by_its_equations():
  chain = Chain('How many books?', BOOKS, '17', False, meta={'id': 'a'})
  found = labelled(chain)
  assert values(found) == [1, 0, None]
  assert {label.source for label in found.labels} == {'verifier'}
  counts = {'right': 1, 'wrong': 1, 'unchecked': 1}
  assert found.meta == {'id': 'a', 'verifier': counts}
  assert (found.steps, found.outcome) == (BOOKS, False)
  hopeful = labelled(chain, unchecked='right')
  assert values(hopeful) == [1, 0, 1]
  assert hopeful.meta['verifier'] == counts


@pytest.mark.parametrize('unchecked', ['unknown', 'right'])
def test_text_without_an_equation_gets_no_labels(unchecked):
  chain = Chain('How many books?', ('Three.', 'The answer is 3.'), '3', True)
  with pytest.raises(CannotDo, match='no step states an equation'):
    labelled(chain, unchecked=unchecked)


def test_gsm8k_worked_answers_are_right():
  """The three steps called wrong in the test split are errors of the authors.

  They are '364 / 4 = 273', '$32 - $20 = $300' and '$3/2 = $1.50+$3.00'. In all
  8,792 answers 30 of 24,954 steps with equations are called wrong.
  """
  counts = collections.Counter()
  for chain in read_chains(shared('gsm8k/test.jsonl'), 'gsm8k')[0]:
    try:
      counts.update(labelled(chain).meta['verifier'])
    except CannotDo:
      counts['chains without equations'] += 1
  assert counts['wrong'] <= 3
  assert counts['right'] > 3700
  assert counts['chains without equations'] < 60


HOSTILE = [
  '9' * 10_000 + ' + 1 = 5',
  '9^9^9^9 = 1',
  '2' + '^9' * 5_000 + ' = 5',
  '(' * 5_000 + '1+1' + ')' * 5_000 + ' = 2',
  '\u200b = \u200b',
  '=' * 20_000,
]


@pytest.mark.slow
@given(
  st.lists(st.one_of(st.sampled_from(HOSTILE), st.text('=1 +\n^'))),
  st.sampled_from(['What is it?', 'mod 10 : 7 * 3 + 4']),
)
@settings(max_examples=60)
def test_hostile_steps_take_little_time(steps, problem):
  steps = [step for step in steps if step.strip()]
  # The first step can be checked, so that there is something to label.
  chain = Chain(problem, ('7 * 3 = 21', *steps))
  assert cpu_seconds(lambda: labelled(chain)) < 0.5 * (len(steps) + 1)
  found = labelled(chain)
  assert len(found.labels) == len(steps) + 1
  assert found.labels[0].value == (problem == 'What is it?')
  for step, label in zip(steps, found.labels[1:], strict=True):
    if step in HOSTILE:
      assert label.value == (None if problem == 'What is it?' else 0)


DOUBLE = ('def double(x):', '  y = x + x', '  return y')


def code(steps, tests, **fields):
  return Chain('Double it.', steps, meta={'tests': tests}, **fields)


@needs_sandbox
@pytest.mark.parametrize(
  ('tests', 'labels', 'ended', 'outcome'),
  [
    ('assert double(3) == 6', [1, 1, 1], [None, None, 'passed'], True),
    ('assert double(3) == 7', [None] * 3, [None, None, 'failed'], False),
    ([None, '', 'double(3)'], [1, 1, 1], [None, None, 'passed'], True),
    # "def double(x):" alone is no program.
    (['1', None, '1'], [0, None, None], ['failed', None, None], False),
    ([None, 'double(3)', None], [1, 1, None], [None, 'passed', None], None),
    (
      [None, 'double(3)', 'assert double(3) == 7'],
      [1, 1, 0],
      [None, 'passed', 'failed'],
      False,
    ),
  ],
)
def test_code_is_labelled_by_its_tests(tests, labels, ended, outcome):
  found = labelled(code(DOUBLE, tests), unchecked='right')
  assert values(found) == labels  # `unchecked` matters to text only
  assert found.meta['sandbox'] == ended
  assert found.outcome is outcome
  assert sum(found.meta['verifier'].values()) == 3


@needs_sandbox
def test_one_step_that_fails_is_wrong_and_an_outcome_is_kept():
  found = labelled(code(('x = 1',), 'assert x == 2', outcome=True))
  assert values(found) == [0]
  assert found.outcome is True


@needs_sandbox
def test_hostile_programs_are_stopped_and_later_chains_still_run():
  bomb = 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'
  short, soon = {'wall_seconds': 0.9}, {'cpu_seconds': 1, 'wall_seconds': 60}
  chains = [
    (code(('x = 1', 'while True: pass', 'x = 2'), ['1', '1', '1']), soon),
    (code((bomb,), '1'), short),
    (code(('x = "1" * (1 << 40)',), '1'), soon),
    (code(('print("x" * (1 << 20))',), '1'), soon),
    (code(('x = 1',), 'assert x == 1'), soon),
  ]
  start = time.monotonic()
  found = [
    labelled(chain, limits=sandbox.Limits(**limits)) for chain, limits in chains
  ]
  assert time.monotonic() - start < 60
  assert [chain.meta['sandbox'] for chain in found] == [
    ['passed', 'timed out', None],
    ['timed out'],
    ['out of memory'],
    ['output too long'],
    ['passed'],
  ]
  assert [values(chain) for chain in found] == [
    [1, 0, None],
    [0],
    [0],
    [0],
    [1],
  ]


@pytest.mark.parametrize('tests', [3, '', ['1'], ['1', 2], [None, ''], None])
def test_malformed_tests_are_rejected(tests):
  with pytest.raises(CannotDo, match='is malformed'):
    labelled(code(('x = 1', 'y = 2'), tests))


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    ({'unchecked': 'wrong'}, r"unchecked='wrong': expected one of unknown"),
    (
      {'limits': {'seconds': 1}},
      r'limits.seconds=1: unknown; delete it, or name one of',
    ),
    ({'limits': {'wall_seconds': 0}}, r'limits.wall_seconds=0: expected a num'),
    ({'limits': {'cpu_seconds': 0.5}}, r'cpu_seconds=0.5: expected a whole'),
  ],
)
def test_configs_check_themselves(config, message):
  with pytest.raises(UserError, match=message):
    checks.read(VerifierConfig, config)
