"""Padding, and the checks before step-level evaluations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm_jax.evals import steps
from prm_jax.runtime.errors import UserError

MASK = np.array([[True, True], [True, False]])


@given(st.lists(st.lists(st.floats(0, 1), max_size=5), max_size=5))
def test_pad_keeps_rows(rows):
  values, mask = steps.pad(rows)
  assert [v[m].tolist() for v, m in zip(values, mask, strict=True)] == rows
  assert values.shape == (len(rows), max(map(len, rows), default=0))
  # A step's column is its index in the chain: the mask has no holes.
  assert (np.diff(mask.astype(int), axis=1) <= 0).all()


def test_pad_keeps_unknown_labels_in_their_place():
  values, mask = steps.pad([[1, None, 0], [None]])
  np.testing.assert_array_equal(
    values, [[1, np.nan, 0], [np.nan, 0, 0]], strict=True
  )
  np.testing.assert_array_equal(
    mask & ~np.isnan(values), [[True, False, True], [False] * 3]
  )


def test_scores_outside_the_mask_are_ignored():
  scores, mask = steps.check_scores([[0.5, 0.25], [1, np.nan]], MASK)
  np.testing.assert_array_equal(scores, [[0.5, 0.25], [1, 0]])
  np.testing.assert_array_equal(mask, MASK)


def test_until_first_error_by_hand():
  labels = np.array(
    [[1, 0, 1, 0], [1, 1, 0.5, 1], [0, 0, 0, 0], [0, 0.4, 0.5, 1]]
  )
  mask = np.ones((4, 4), bool)
  mask[3, 0] = False  # an unknown step is no error
  np.testing.assert_array_equal(
    steps.until_first_error(labels, mask),
    [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]],
  )


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (
      lambda: steps.check_scores([[0.1, np.nan], [0, 0]], MASK),
      'chain 0, step 1 scores nan',
    ),
    (
      lambda: steps.check_scores([[0.1, 0], [-np.inf, 0]], MASK),
      'chain 1, step 0 scores -inf',
    ),
    (lambda: steps.check_scores([[0.1, 0.2]], MASK), r'step_scores \(1, 2\)'),
    (lambda: steps.check_scores([0.1], [True]), r'step_scores \(1,\)'),
    (
      lambda: steps.check_labels([[1, -100], [1, 1]], MASK),
      'chain 0, step 1 has label -100',
    ),
    (
      lambda: steps.check_labels([[1, 1], [np.nan, 1]], MASK),
      'chain 1, step 0 has label nan',
    ),
    (lambda: steps.check_labels([[1, 1]], MASK), r'step_labels \(1, 2\)'),
    (
      lambda: steps.check_first_errors([1, 1], MASK),
      'chain 1 has first error 1 and 1 steps',
    ),
    (
      lambda: steps.check_first_errors([-2, 0], MASK),
      'chain 0 has first error -2',
    ),
    (
      lambda: steps.check_first_errors([-1], MASK),
      r'labels \(1,\) of int64: expected 2 whole numbers',
    ),
    (
      lambda: steps.check_first_errors([-1.0, 0.0], MASK),
      'labels .* of float64',
    ),
    (
      lambda: steps.check_first_errors([-1, -1], MASK[:, ::-1]),
      'chain 1 has a hole',
    ),
    (
      lambda: steps.check_first_errors([-1, -1], MASK & [[True], [False]]),
      'chain 1 has a hole or no step',
    ),
  ],
)
def test_errors_name_the_fault(call, message):
  with pytest.raises(UserError, match=message) as info:
    call()
  assert '\n' not in str(info.value)
