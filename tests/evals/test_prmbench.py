"""PRMBench's numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.evals import steps
from prm_jax.evals.prmbench import prmbench
from prm_jax.runtime.errors import UserError


def example():
  scores, mask = steps.pad(
    [
      [0.9, 0.2, 0.4],  # a: hit right, hit wrong, right step judged wrong
      [0.5, 0.6, 0.7],  # a: 0.5 is judged wrong: hit; missed; hit right
      [0.9, 0.1, 0.8, 0.3],  # b: hit, judged wrong, missed, hit wrong
      [0.9, 0.9],  # c: no wrong step
      [0.1],  # unmodified, judged wrong
    ]
  )
  labels, _ = steps.pad([[1, 0, 1], [0, 0, 1], [1, 1, 0, 0], [1, 1], [1]])
  return scores, labels, mask, ['a', 'a', 'b', 'c', 'correct']


def test_by_hand():
  got = prmbench(*example())
  # a: right steps 3, judged right 3, both 2; wrong 3, judged 3, both 2.
  assert got['by_class']['a'] == {
    'f1': pytest.approx(4 / 6),
    'negative_f1': pytest.approx(4 / 6),
    'prm_score': pytest.approx(4 / 6),
    'first_error_accuracy': 1,
    'count_right': 3,
    'count_wrong': 3,
    'count_chains': 2,
  }
  # b: right 2, judged 2, both 1; wrong 2, judged 2, both 1. Its first wrong
  # step scores 0.8 and is missed.
  assert got['by_class']['b']['f1'] == 0.5
  assert got['by_class']['b']['negative_f1'] == 0.5
  assert got['by_class']['b']['first_error_accuracy'] == 0
  # Over a, b, c: right 7, judged 7, both 5; wrong 5, judged 5, both 3.
  assert got['overall']['f1'] == pytest.approx(10 / 14)
  assert got['overall']['negative_f1'] == pytest.approx(6 / 10)
  assert got['overall']['prm_score'] == pytest.approx((10 / 14 + 6 / 10) / 2)
  assert got['overall']['first_error_accuracy'] == pytest.approx(2 / 3)
  assert got['overall']['count_chains'] == 4


def test_f1_and_negative_f1_are_not_the_same_thing():
  scores, mask = steps.pad([[0.9, 0.9, 0.9, 0.1]])
  labels, _ = steps.pad([[1, 1, 0, 0]])
  got = prmbench(scores, labels, mask, ['a'])['overall']
  assert got['f1'] == pytest.approx(2 * 2 / (3 + 2))
  assert got['negative_f1'] == pytest.approx(2 * 1 / (1 + 2))


def test_without_a_wrong_step_the_negative_side_is_none():
  got = prmbench(*example())['by_class']
  assert got['c']['f1'] == 1
  assert got['c']['negative_f1'] is None
  assert got['c']['prm_score'] is None
  assert got['c']['first_error_accuracy'] is None
  # Judged wrong throughout: an F1 without a hit is 0.
  assert got['correct']['f1'] == 0


def test_first_error_may_follow_a_false_alarm():
  scores, mask = steps.pad([[0.1, 0.1]])
  labels, _ = steps.pad([[1, 0]])
  got = prmbench(scores, labels, mask, ['a'])['overall']
  assert got['first_error_accuracy'] == 1


@given(
  st.lists(
    st.tuples(
      st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1),
      st.sampled_from('ab'),
    ),
    min_size=1,
    max_size=6,
  )
)
def test_bounds_and_padding(chains):
  scores, mask = steps.pad([[s for s, _ in chain] for chain, _ in chains])
  labels, _ = steps.pad([[y for _, y in chain] for chain, _ in chains])
  classes = [c for _, c in chains]
  got = prmbench(scores, labels, mask, classes)
  for result in (got['overall'], *got['by_class'].values()):
    for key in ('f1', 'negative_f1', 'prm_score', 'first_error_accuracy'):
      assert result[key] is None or 0 <= result[key] <= 1
  wider = [np.pad(x, ((0, 0), (0, 2))) for x in (scores, labels, mask)]
  wider[0][:, -2:] = np.nan
  wider[1][:, -2:] = -100
  assert prmbench(*wider, classes) == got


def test_one_class_per_chain():
  scores, labels, mask, _ = example()
  with pytest.raises(UserError, match='1 classifications for 5 chains'):
    prmbench(scores, labels, mask, ['a'])
