"""Corrupted chains have one error of a known kind at a known step."""

import collections
import dataclasses
import math

import pytest

from prm_jax.data.chains import Chain, StepLabel, first_error
from prm_jax.data.domains import arithmetic, arithmetic_text
from prm_jax.data.domains.arithmetic_corruptions import right_steps
from prm_jax.data.readers import read_chains
from prm_jax.data.verify.calculator import check_step
from prm_jax.inference.driver import CannotDo
from prm_jax.labels import corruption
from prm_jax.labels.corruption import KINDS, CorruptionConfig
from prm_jax.runtime.errors import UserError
from tests.labels.run_labellings import result
from tests.shared.real_data import shared

BOOKS = Chain(
  'A kid has 13 books. His sister has 10 fewer. Each costs $2. What do all '
  'cost?',
  (
    'His sister has 13 - 10 = 3 books.',
    'Together, they have 13 + 3 = 16 books.',
    'All 16 books cost 16 * $2 = $32.',
  ),
  '32',
  True,
)


def label(chain, **config):
  return result(corruption.label(chain, CorruptionConfig(**config)))


def values(chain):
  return [step.value for step in chain.labels]


def right_arithmetic_chains(count):
  config = arithmetic.ArithmeticConfig()
  problems = arithmetic.sample_problems(config, count, seed=5)
  results = arithmetic.true_results(problems, config.modulus)[:, None]
  return arithmetic.to_chains(config, problems, results)


def test_arithmetic_chains_have_one_error_and_known_labels():
  chains = right_arithmetic_chains(2000)
  kinds = collections.Counter()
  for chain in chains:
    found = label(chain)
    kind = found.meta['kind']
    kinds[kind] += 1
    assert found.meta['id'] == chain.meta['id']
    assert found.meta['truth'] == chain.answer
    check = arithmetic_text.check_steps(found.problem, found.steps)
    if kind == 'right':
      assert found.steps == chain.steps
      assert (found.answer, found.outcome) == (chain.answer, True)
      assert values(found) == [1] * 5
      assert found.meta['error_steps'] == []
      continue
    [error] = found.meta['error_steps']
    assert check.index(False) == error == first_error(found.labels)
    wrong = len(found.steps) - error
    assert values(found) == [1] * error + [0] * wrong
    assert found.outcome is False
    assert found.answer != arithmetic_text.true_answer(found.problem)
  deviation = math.sqrt(2000 * 0.25)
  assert abs(kinds['right'] - 1000) < 4 * deviation
  for kind in KINDS:
    assert abs(kinds[kind] - 200) < 4 * math.sqrt(2000 * 0.1 * 0.9)


def test_the_error_depends_on_the_id_and_the_seed_only():
  chains = right_arithmetic_chains(40)
  found = [label(chain, seed=1) for chain in chains]
  assert [label(chain, seed=1) for chain in reversed(chains)] == found[::-1]
  assert [label(chain, seed=2) for chain in chains] != found
  others = [
    dataclasses.replace(c, meta={**c.meta, 'id': f'{i}'})
    for i, c in enumerate(chains)
  ]
  again = [label(chain, seed=1) for chain in others]
  assert [c.steps for c in again] != [c.steps for c in found]


@pytest.mark.parametrize('kind', KINDS)
def test_one_kind_of_error_in_text(kind):
  found = label(BOOKS, kinds=(kind,), right_share=0)
  assert found.meta['kind'] == kind
  [error] = found.meta['error_steps']
  assert first_error(found.labels) == error
  assert values(found)[:error] == [1] * error
  assert found.steps[:error] == BOOKS.steps[:error]
  assert found.steps[error] not in BOOKS.steps
  assert found.steps[-1] == f'The answer is {found.answer}.'
  assert found.outcome is False
  assert len(found.steps) == (3 if kind == 'skipped_step' else 4)
  # Only a wrong result is false by itself; later steps are recalculated.
  false = [p for p, s in enumerate(found.steps) if check_step(s) is False]
  assert false == ([error] if kind == 'wrong_result' else [])


@pytest.mark.parametrize(
  'end', ['The answer is 32.', '#### 32', 'So it is $\\boxed{32}$.']
)
def test_a_chain_that_states_its_answer_gets_no_second_statement(end):
  chain = dataclasses.replace(BOOKS, steps=(*BOOKS.steps, end))
  kept = label(chain, right_share=1)
  assert kept.steps == chain.steps
  assert values(kept) == [1] * 4
  for kind in sorted(set(KINDS) - {'skipped_step'}):
    found = label(chain, kinds=(kind,), right_share=0)
    assert found.steps[-1] == end.replace('32', found.answer)
    assert len(found.steps) == 4


@pytest.mark.parametrize('end', ['', ' Their price is $32.'])
def test_an_answer_beside_its_equation_is_stated_again(end):
  """Otherwise skipping the last step would remove the answer."""
  steps = (*BOOKS.steps[:2], BOOKS.steps[2] + end)
  chain = dataclasses.replace(BOOKS, steps=steps)
  kept = label(chain, right_share=1)
  assert kept.steps == (*steps, 'The answer is 32.')
  for seed in range(20):
    found = label(chain, kinds=('skipped_step',), right_share=0, seed=seed)
    assert found.steps[-1] == f'The answer is {found.answer}.'
    assert found.answer != '32'


MOD = 'mod 10 : 7 * 0 + 0 * 0'


@pytest.mark.parametrize(
  ('change', 'reason'),
  [
    ({'outcome': None}, 'only right chains'),
    ({'outcome': False}, 'only right chains'),
    ({'labels': (StepLabel(1.0), StepLabel(0.0), StepLabel(1.0))}, 'a step is'),
    ({'answer': None}, 'the right answer is not known'),
    ({'answer': None, 'meta': {'truth': '32'}}, 'not one number'),
    ({'answer': '-32'}, 'not one number'),
    ({'answer': '1/2'}, 'not one number'),
    ({'answer': '33'}, 'do not give its answer'),
    ({'steps': ('Thirty-two.',)}, 'do not give its answer'),
    ({'steps': (*BOOKS.steps, '16 + 16 = 31.')}, 'does not hold'),
    ({'steps': ('1' * 10_000 + ' = 32',)}, 'too long'),
    ({'steps': (*BOOKS.steps, '(' * 700)}, 'too nested'),
    ({'problem': '9' * 9_000}, 'too long'),
    ({'problem': MOD, 'steps': ('7 * 0 = 0',)}, 'not all steps are'),
  ],
)
def test_chains_that_cannot_be_corrupted(change, reason):
  with pytest.raises(CannotDo, match=reason):
    label(dataclasses.replace(BOOKS, **change))


def test_a_problem_without_a_place_for_the_kind():
  chain = Chain(MOD, right_steps(MOD), '0', True)
  # A PRM could tell kept chains by their having no place for an error.
  for share in (0, 1):
    with pytest.raises(CannotDo, match='no place'):
      label(chain, kinds=('skipped_step',), right_share=share)


def test_gsm8k_worked_answers():
  chains = read_chains(shared('gsm8k/test.jsonl'), 'gsm8k')[0][::4]
  kinds = collections.Counter()
  for chain in chains:
    try:
      found = label(chain)
    except CannotDo:
      kinds['not corrupted'] += 1
      continue
    kinds[found.meta['kind']] += 1
    errors = found.meta['error_steps']
    assert first_error(found.labels) == (errors[0] if errors else -1)
    if found.meta['kind'] == 'wrong_result':
      assert check_step(found.steps[errors[0]]) is not True
  assert set(kinds) == {'right', 'not corrupted', *KINDS}
  assert kinds['not corrupted'] < 0.15 * len(chains)


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    ({'kinds': ()}, r'^kinds=\(\): expected one or more of wrong_operand'),
    ({'kinds': ('result',)}, r'^kinds=.*expected one of wrong_operand'),
    ({'right_share': 1.5}, r'^right_share=1.5: expected a number'),
    ({'seed': -1}, r'^seed=-1: expected >= 0'),
  ],
)
def test_configs_check_themselves(config, message):
  with pytest.raises(UserError, match=message):
    CorruptionConfig(**config)
