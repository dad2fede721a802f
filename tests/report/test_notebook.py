"""A chain as a notebook shows it."""

import html
import re

import numpy as np
import pytest

import prm_jax
from prm_jax.report.sections import NOTHING
from prm_jax.runtime.errors import UserError

STEPS = ['2 + 2 = 4', '</p><script>alert(1)</script>', '4 * 2 = 9']


def test_each_step_has_its_score_and_marks():
  view = prm_jax.show('How many?', STEPS, [0.91, 0.2, np.nan], [1.0, None, 0.0])
  assert re.findall(r'class="score">([^<]+)<', view.page) == [
    '0.91',
    '0.20',
    NOTHING,
  ]
  steps = re.findall(r'<li class="([^"]+)".*?</li>', view.page, re.S)
  assert steps == ['step', 'step', 'step error']
  assert view.page.index('Flagged') < view.page.index('First error')
  assert '<script' not in view.page
  assert html.escape(STEPS[1], quote=False) in view.page


def test_labels_may_be_of_numpy():
  nothing = float('nan')
  of_numpy = np.array([1, 0, nothing], np.float32)
  views = [
    prm_jax.show('How many?', STEPS, [0.9, 0.2, None], labels)
    for labels in (of_numpy, [1.0, 0.0, None])
  ]
  assert views[0].page == views[1].page


def test_a_notebook_frames_the_whole_page():
  view = prm_jax.show('How many?', STEPS[:1], np.array([0.5]))
  [document] = re.findall(r'srcdoc="([^"]*)"', view._repr_html_())
  assert html.unescape(document) == view.page
  # No scripts and no forms, whatever the steps are.
  assert '<iframe sandbox ' in view._repr_html_()
  more = prm_jax.show('How many?', STEPS, [0.5] * 3)
  assert more.height > view.height


@pytest.mark.parametrize(
  ('scores', 'message'),
  [
    ([0.5], '1 scores for 3 steps'),
    ([0.5, 1.5, 0], 'score 1.5: expected a prob'),
  ],
)
def test_scores_that_do_not_fit_the_steps_are_rejected(scores, message):
  with pytest.raises(UserError, match=message):
    prm_jax.show('How many?', STEPS, scores)
