"""The right answer of a chain's problem: given, computed, or its own."""

import pytest

from prm_jax.data.chains import Chain
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.grading import truth_of

DRAWN = 'mod 10 : 3 + 4'


@pytest.mark.parametrize(
  ('given', 'expected'), [('5', '5'), (5, '5'), (0, '0'), (' 5 ', '5')]
)
def test_a_given_answer_comes_first(given, expected):
  chain = Chain(DRAWN, ('3 + 4 = 7',), '7', True, meta={'truth': given})
  assert truth_of(chain) == expected


@pytest.mark.parametrize('meta', [{}, {'truth': None}, {'truth': ' '}])
def test_without_one_it_is_computed_or_that_of_a_right_chain(meta):
  assert truth_of(Chain(DRAWN, ('3 + 4 = 1',), '1', False, meta=meta)) == '7'
  right = Chain('3 apples?', ('There are 3.',), '3', True, meta=meta)
  assert truth_of(right) == '3'
  wrong = Chain('3 apples?', ('There are 4.',), '4', False, meta=meta)
  with pytest.raises(CannotDo, match='the right answer is not known'):
    truth_of(wrong)
