"""Tests that text of the code domain is read and, in a sandbox, judged."""

import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

from prm_jax.data.domains import code, code_operations, code_text
from prm_jax.data.domains.code import CodeConfig
from prm_jax.data.verify import sandbox
from prm_jax.data.verify.sandbox import Limits
from prm_jax.runtime.errors import UserError
from tests.data.verify.isolation import needs_sandbox

ROOT = pathlib.Path(__file__).resolve().parents[3]
FACTS = code_operations.FACTS

# The order does not change the sum, so a statement that does nothing is right.
SORTED = 'sort ascending ; sort ascending ; sort ascending ; return the sum'


def right_steps(problem):
  return [
    fact.variants[0].statement for fact in code_text.read_problem(problem)
  ]


def variants():
  return [variant for fact in FACTS.values() for variant in fact.variants]


@needs_sandbox
def test_statements_and_their_functions_mean_the_same():
  rng = random.Random(0)
  inputs = [None, [], [0], [-3], [5, 5], [2, -2, 2, -2], list(range(-9, 10))]
  for _ in range(60):
    size, largest = rng.randrange(1, 13), rng.choice([2, 9, 10**9])
    inputs.append([rng.randint(-largest, largest) for _ in range(size)])
  statements = sorted({variant.statement for variant in variants()})
  program = f"""
import json
found = {{}}
for statement in {statements!r}:
  space = {{}}
  exec(f'def f ( xs ) :\\n  {{statement}}\\n  return xs', space)
  found[statement] = []
  for xs in {inputs!r}:
    try:
      found[statement].append(space['f'](xs if xs is None else list(xs)))
    except Exception as error:
      found[statement].append('error')
print(json.dumps(found))
"""
  result = sandbox.run(program, limits=Limits(output_bytes=10 << 20))
  assert result.passed
  found = json.loads(result.output)
  failures = 0
  for variant in variants():
    state = tuple(None if xs is None else tuple(xs) for xs in inputs)
    state = code_operations.advance(variant, state)
    expected = [list(x) if isinstance(x, tuple) else x for x in state]
    assert found[variant.statement] == expected, variant.statement
    failures += expected.count('error')
    # All others are lists of integers or, where it returns, integers.
    returns = variant.statement.startswith('return ')
    for value in expected:
      assert value in (None, 'error') or isinstance(value, int) == returns
  assert failures > 100


def test_words_and_forms_of_the_table():
  for fact in FACTS.values():
    statements = [variant.statement for variant in fact.variants]
    assert len(set(statements)) == len(statements) in (3, 4)
    for text in (fact.phrase, *statements):
      assert text.split(' ') == text.split()
      assert set(text.split()) <= set(code_text.WORDS)
  assert {*'0123456789', ';'} <= set(code_text.WORDS)
  assert len(set(code_text.WORDS)) == len(code_text.WORDS)


def test_problems_are_read_back_from_text():
  problems = code.sample_problems(CodeConfig(operations=5), 100, seed=0)
  for problem in problems:
    facts = code_text.read_problem(problem)
    assert ' ; '.join(fact.phrase for fact in facts) == problem
    inputs = code_text.draw_inputs(problem)
    assert len(inputs) == 6
    assert {len(xs) for xs in inputs} <= {5, 6, 7, 8}
    assert all(-9 <= x <= 9 for xs in inputs for x in xs)
    assert inputs == code_text.draw_inputs(problem)
  assert len(set(map(code_text.draw_inputs, problems))) == 100


def test_the_true_answer_of_a_problem():
  problem = 'add 3 to each ; drop the first 2 ; return the largest or 0'
  expected = [
    max(x + 3 for x in xs[2:]) for xs in code_text.draw_inputs(problem)
  ]
  assert code_text.true_answer(problem) == ' '.join(map(str, expected))


@pytest.mark.parametrize(
  'text',
  [
    '',
    'return the sum',
    'double each',
    'double each ; double each',
    'double each ;return the sum',
    'double  each ; return the sum',
    'add 9 to each ; return the sum',
    'return the sum ; double each',
    'return the sum ; return the sum',
    'double each ; return the sum ; return the sum',
    'double each ; return the sum\n',
    'double each ; ' * 6 + 'return the sum',
    'mod 10 : 7 * 3 + 4',
  ],
)
def test_other_texts_are_not_problems(text):
  assert not code_text.is_problem(text)
  for reads in (code_text.read_problem, code_text.true_answer):
    with pytest.raises(UserError, match='no problem of the code domain'):
      reads(text)
  with pytest.raises(UserError, match='no problem of the code domain'):
    code_text.check_steps(text, ['return 0'], Limits())


@pytest.mark.parametrize(
  ('steps', 'formed'),
  [
    (['xs = xs + 1', 'return sum ( xs )'], True),
    (['xs = [', 'return +'], True),  # no Python, but of the right form
    (['xs = 2 * xs'], False),
    ([], False),
    (['xs = xs', 'xs = xs', 'return 0'], False),
    (['return 0', 'xs = xs'], False),
    (['xs = xs', 'xs = xs'], False),
    (['ys = xs', 'return 0'], False),
    (['xs = xs ; xs = xs', 'return 0'], False),
    (['xs = xs\n  xs = xs', 'return 0'], False),
    (['xs = xs', 'return'], False),
    (['xs = xs', 'return 0\n'], False),
  ],
)
def test_a_formed_chain_has_one_line_per_operation(steps, formed):
  assert code_text.is_formed('double each ; return the sum', steps) is formed


def chains_of_all_kinds():
  """Returns a chain for each number of right steps, and some that fail."""
  chosen = {}
  for operations in (2, 4, 5):
    config = CodeConfig(operations, slip=0.2)
    problems = code.sample_problems(config, 100, seed=0)
    for chain in code.make_chains(config, problems, 1, seed=1):
      right = sum(label.value for label in chain.labels)
      fails = operations == 4 and right < 2 and 'error' in chain.answer
      chosen.setdefault((operations, right, fails), chain)
  return list(chosen.values())


@needs_sandbox
def test_the_sandbox_gives_the_labels_and_answers_of_the_domain():
  chains = chains_of_all_kinds()
  assert len(chains) == 3 + 5 + 6 + 2
  for i, chain in enumerate(chains):
    problem, steps = chain.problem, chain.steps
    assert code_text.is_formed(problem, steps)
    assert code_text.true_answer(problem) == chain.meta['truth']
    found = code_text.check_steps(problem, steps, Limits())
    assert found == [label.value == 1 for label in chain.labels]
    if i % 4 == 0:
      assert code_text.answer_of(problem, steps, Limits()) == chain.answer


@needs_sandbox
@pytest.mark.parametrize(
  ('steps', 'right'),
  [
    # Text that the solver never writes is judged by what it does.
    (['xs = xs', 'xs = xs [ : ]', 'ys = 3', 'return sum ( xs )'], [1, 1, 1, 1]),
    # A program may repair an error or return early.
    (['xs = [ - x for x in xs ]', 'xs = [ - x for x in xs ]'], [0, 1]),
    (['pass', 'return sum ( xs )', 'return 0', 'return 0'], [1, 1, 1, 1]),
    # Harmless statements, which a checker may stumble over.
    (['import os', 'print ( xs )', 'def f ( xs ) : return 0'], [1, 1, 1]),
    (['global f', 'f = len', 'str = all = any = None'], [1, 1, 1]),
    ([' pass', 'pass  '], [1, 1]),
    # The second statement would make a check of all tests one of any test.
    (
      ['import builtins', 'builtins . all = any', 'xs = xs [ xs [ 0 ] > 0 : ]'],
      [1, 1, 0],
    ),
    (['sum = len', 'return sum ( xs )'], [0, 0]),
    # There are only as many steps as operations.
    (['pass', 'pass', 'pass', 'return sum ( xs )', 'pass'], [1, 1, 1, 1, 0]),
    # Each step is one statement on one line.
    (['pass', 'pass ; pass', 'pass'], [1, 0, 0]),
    (['pass', 'pass\n  pass', 'pass'], [1, 0, 0]),
    (['pass', 'pass\r  pass', 'pass'], [1, 0, 0]),
    (['pass', 'return sum ( xs )\ndef f ( xs ) : return 0'], [1, 0]),
    (['pass', 'xs = (', 'xs )', 'return sum ( xs )'], [1, 0, 0, 0]),
    (['pass', 'xs = \\', 'xs'], [1, 0, 0]),
    (['pass', '# nothing'], [1, 0]),
    (['pass', 'global xs'], [1, 0]),
    (['pass', 'xs = "\ud800"', 'pass'], [1, 0, 0]),
    (['pass', 'x' * 20_000, 'pass'], [1, 0, 0]),
    (['pass', '(' * 5000 + ')' * 5000, 'pass'], [1, 0, 0]),
    # Whatever ends the function fails there, whatever ends the process ends it.
    (['pass', 'exit ( )', 'pass'], [1, 0, 0]),
    (['import os', 'os . _exit ( 0 )', 'pass'], [1, 0, 0]),
    (['import os', 'os . closerange ( 0 , 99 )', 'pass'], [1, 0, 0]),
    (['import os', 'os . fork ( )'], [1, 0]),
    (['pass', 'f ( xs )', 'pass'], [1, 0, 0]),  # without an end
    (['pass', 'xs = [ 0 ] * 10 ** 12', 'pass'], [1, 0, 0]),
  ],
)
def test_steps_of_any_text_are_judged_by_running_them(steps, right):
  limits = Limits(wall_seconds=20)
  assert code_text.check_steps(SORTED, steps, limits) == list(map(bool, right))


@needs_sandbox
def test_a_program_without_an_end_is_wrong_from_there_on():
  steps = [
    'pass',
    'print ( 1 )',
    'while True : print ( 1 )',
    'return sum ( xs )',
  ]
  start = time.monotonic()
  found = code_text.check_steps(SORTED, steps, Limits(cpu_seconds=1))
  assert found == [True, True, False, False]
  assert code_text.answer_of(SORTED, steps, Limits(wall_seconds=0.5)) is None
  assert time.monotonic() - start < 60
  # What it prints does not count against the limits.
  steps[2] = 'print ( "x" * 10 ** 6 )'
  assert code_text.answer_of(SORTED, steps, Limits()) == code_text.true_answer(
    SORTED
  )


@needs_sandbox
def test_what_is_no_integer_is_an_error():
  outputs = ['None', 'True', '0.5', '[ 3 ]', '10 ** 5000', '- 7']
  inputs = code_text.draw_inputs(SORTED)
  table = ' , '.join(
    f'{xs} : {y}' for xs, y in zip(inputs, outputs, strict=True)
  )
  steps = ['pass', f'return {{ {table} }} [ tuple ( xs ) ]']
  found = code_text.answer_of(SORTED, steps, Limits())
  assert found == 'error error error error error -7'


@needs_sandbox
@pytest.mark.parametrize(
  ('steps', 'answer'),
  [
    (['exit ( )'], ' '.join(['error'] * 6)),
    (['pass'], ' '.join(['error'] * 6)),
    (['import os', 'os . _exit ( 0 )'], None),
    (['import os', 'os . fork ( )', 'return 3'], None),
    (['return sum ( xs'], None),
    (['pass', 'pass ; return 3'], None),
    (['pass\n  return 3'], None),
    ([], None),
  ],
)
def test_the_answer_of_a_program_that_is_not_right(steps, answer):
  assert code_text.answer_of(SORTED, steps, Limits()) == answer


def test_a_machine_without_a_sandbox_is_refused():
  if os.getuid() != 0:
    pytest.skip('not root')
  source = f"""
from prm_jax.data.domains import code_text
from prm_jax.data.verify.sandbox import Limits
from prm_jax.runtime.errors import UserError
for judge in (code_text.check_steps, code_text.answer_of):
  try:
    print(judge({SORTED!r}, ['pass'], Limits()))
  except UserError as error:
    print(error)
"""
  spoil = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
  command = ['unshare', '--user', '--map-root-user', 'sh', '-c', spoil, 'sh']
  done = subprocess.run(
    [*command, sys.executable, '-c', source],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  lines = done.stdout.splitlines()
  assert len(lines) == 2, done
  assert all(line.startswith('no sandbox on this machine') for line in lines)
