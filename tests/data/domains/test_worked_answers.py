"""Tests errors planted in worked answers, their labels and what is left out."""

from collections import Counter

import pytest

from prm_jax.data.chains import Chain, StepLabel, first_error
from prm_jax.data.domains import equations
from prm_jax.data.domains.worked_answers import infer_links, plant_errors

RIGHT = StepLabel(1.0)


def worked(problem, *steps, answer):
  return Chain(problem, steps, answer, True, (RIGHT,) * len(steps))


BOOKS = worked(
  'A kid has 13 books. His sister has 10 fewer. Each costs $2. What do all '
  'cost?',
  'His sister has 13 - 10 = 3 books.',
  'Together, they have 13 + 3 = 16 books.',
  'All 16 books cost 16 * $2 = $32.',
  answer='32',
)


def holds(step):
  return equations.consistent(equations.parse((step,)))


def test_links_are_inferred_from_equal_values():
  solution = equations.parse((*BOOKS.steps, 'The answer is 32.'))
  links = infer_links(equations.numbers(BOOKS.problem), solution)
  texts = [solution.text(n) for n in range(len(solution.values))]
  assert ' '.join(texts) == '13 10 3 13 3 16 16 16 2 32 32'
  assert links.source == {4: 2, 6: 5, 7: 5, 10: 9}
  assert links.copied == {0, 1, 3, 4, 6, 7, 8, 10}


@pytest.mark.parametrize('seed', range(3))
def test_planted_errors_carry_on_and_are_labelled(seed):
  chains = plant_errors([BOOKS] * 200, seed)
  assert len(chains) == 200
  kinds = Counter(chain.meta['kind'] for chain in chains)
  assert 80 < kinds['right'] + kinds['repeated_step'] < 120
  assert len(kinds) == 8
  for chain in chains:
    assert chain.meta['dataset'] == 'planted'
    assert chain.problem == BOOKS.problem
    first = first_error(chain.labels)
    assert (first >= 0) == bool(chain.meta['error_steps'])
    if chain.meta['kind'] == 'right':
      assert chain.steps == (*BOOKS.steps, 'The answer is 32.')
      assert chain.outcome
      continue
    if chain.meta['kind'] == 'repeated_step':
      assert len(chain.steps) == 5
      continue
    assert first == min(chain.meta['error_steps'])
    assert chain.steps[:first] == BOOKS.steps[:first]
    assert chain.steps[first] not in BOOKS.steps
    assert chain.steps[-1] == f'The answer is {chain.answer}.'
    assert chain.outcome == (chain.meta['kind'] == 'two_errors')
    # Only a wrong result is a false equation; later steps calculate correctly.
    false = [s for s, step in enumerate(chain.steps) if not holds(step)]
    by_result = chain.meta['kind'] in ('wrong_result', 'two_errors')
    assert false == (chain.meta['error_steps'] if by_result else [])


def test_a_chain_depends_on_its_own_index_only():
  chains = plant_errors([BOOKS] * 9, 1)
  assert plant_errors([BOOKS] * 4, 1) == chains[:4]
  assert plant_errors([BOOKS] * 9, 2) != chains


@pytest.mark.parametrize(
  'chain',
  [
    worked('How many?', 'There are three.', answer='3'),
    worked('2 and 2?', 'That is 2 + 2 = 5.', answer='5'),
    worked('2 and 2?', 'That is 2 + 2 = 4.', answer='9'),
  ],
  ids=['no equation', 'false', 'another answer'],
)
def test_unusable_answers_are_left_out(chain):
  assert plant_errors([chain], 0) == []
