"""Diagnostics against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.evals import diagnostics, steps
from prm_jax.runtime.errors import UserError


def test_minimum_at_last_by_hand():
  scores, mask = steps.pad(
    [
      [0.9, 0.2],  # yes
      [0.2, 0.9, 0.5],  # no
      [0.3, 0.9, 0.3],  # one of two
      [0.1],  # no choice: left out
    ]
  )
  got = diagnostics.minimum_at_last(scores, mask)
  assert got['share'] == pytest.approx(1.5 / 3)
  assert got['chance'] == pytest.approx((1 / 2 + 1 / 3 + 1 / 3) / 3)
  assert got['count'] == 3


def test_padding_is_not_the_last_step():
  scores = np.array([[0.9, 0.2, 0.0, np.nan]])
  mask = np.array([[True, True, False, False]])
  assert diagnostics.minimum_at_last(scores, mask)['share'] == 1


@given(st.lists(st.integers(2, 6), min_size=1, max_size=6))
def test_constant_scores_are_at_chance(lengths):
  scores, mask = steps.pad([[0.4] * n for n in lengths])
  got = diagnostics.minimum_at_last(scores, mask)
  assert got['share'] == pytest.approx(got['chance'])


def test_minimum_at_last_is_none_without_chains_of_two_steps():
  scores, mask = steps.pad([[0.4], [0.6]])
  assert diagnostics.minimum_at_last(scores, mask) == {
    'share': None,
    'chance': None,
    'count': 0,
  }


def test_length_correlation_by_hand():
  _, mask = steps.pad([[1], [1] * 2, [1] * 3])
  # Deviations (-1, 0, 1) with (-2, 1, 1) / 3: 1 / (sqrt 2 * sqrt(2/3)).
  got = diagnostics.length_correlation([0.0, 1.0, 1.0], mask)
  assert got == pytest.approx(np.sqrt(3) / 2)
  got = diagnostics.length_correlation([3.0, 2.0, 1.0], mask)
  assert got == pytest.approx(-1)


@given(st.floats(-1e6, 1e6), st.integers(2, 9))
def test_constants_have_no_correlation(value, count):
  _, mask = steps.pad([[1] * n for n in range(1, count + 1)])
  scores = np.full(count, value)
  assert diagnostics.length_correlation(scores, mask) is None
  _, mask = steps.pad([[1] * 3] * count)
  assert diagnostics.length_correlation(np.arange(count), mask) is None


def test_one_chain_has_no_correlation():
  assert diagnostics.length_correlation([0.3], [[True]]) is None


def test_tiny_scores_still_correlate():
  # Products of steps underflow when squared.
  _, mask = steps.pad([[1], [1] * 2, [1] * 3])
  got = diagnostics.length_correlation(np.array([0, 1, 1]) * 1e-200, mask)
  assert got == pytest.approx(np.sqrt(3) / 2)


def test_wrong_process_by_hand():
  scores, mask = steps.pad(
    [
      [0.9, 0.3],  # right answer, wrong step, flagged
      [0.9, 0.5],  # right answer, wrong step, not flagged: 0.5 is not below
      [0.9, 0.8, 0.1],  # right answer, wrong step 0, flagged by a later one
      [0.9, 0.4],  # right through and through, flagged
      [0.9, 0.6],  # right through and through
      [0.9, 0.7],
      [0.8],
      [0.1, 0.1],  # wrong answer: not counted
      [0.9, 0.9],
    ]
  )
  labels = np.array([1, 0, 0, -1, -1, -1, -1, 0, -1])
  outcomes = np.array([True] * 7 + [False] * 2)
  got = diagnostics.wrong_process_found(scores, mask, labels, outcomes)
  assert got == {
    'found': pytest.approx(2 / 3),
    'false_flags': 0.25,
    'count_wrong_process': 3,
    'count_right_process': 4,
  }
  lower = diagnostics.wrong_process_found(scores, mask, labels, outcomes, 0.2)
  assert lower['found'] == pytest.approx(1 / 3)
  assert lower['false_flags'] == 0


def test_wrong_process_undefined_is_none():
  got = diagnostics.wrong_process_found(
    [[0.1]], [[True]], np.array([0]), np.array([False])
  )
  assert got['found'] is None
  assert got['false_flags'] is None


def test_bad_arrays_are_rejected():
  mask = np.ones((2, 1), bool)
  with pytest.raises(UserError, match='chain 1 scores -inf'):
    diagnostics.length_correlation([0.1, -np.inf], mask)
  with pytest.raises(UserError, match='for 2 chains'):
    diagnostics.length_correlation([0.1], mask)
  with pytest.raises(UserError, match='leave out unchecked chains'):
    diagnostics.wrong_process_found(
      np.ones((2, 1)), mask, np.array([-1, -1]), [True, None]
    )
