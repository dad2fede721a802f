"""A PRM's scores of chains: also of those that are longer than its window."""

import numpy as np
import pytest

from prm_jax.data.tokenizer import STEP_END
from tests.rl.written_chains import LAST, STEP, FixedPrm, rate, sample_of


def chain(steps):
  """A chain that goes on and on: its steps are the first over and over."""
  return sample_of([*STEP, STEP_END] * steps)


@pytest.mark.parametrize('window', range(1, 6))
def test_steps_beyond_the_window_count_as_wrong(window):
  prm = FixedPrm(**{'1': 0.9})
  prm.window = window
  rated = rate([chain(steps) for steps in range(1, 6)], prm)
  for steps, episode in enumerate(rated.episodes, 1):
    read = min(steps, window)
    wanted = [0.9] * read + [0.0] * (steps - read)
    np.testing.assert_array_equal(episode.scores, wanted)
  assert rated.metrics == {}


def test_a_chain_that_fits_is_read_once():
  prm = FixedPrm()
  rate([chain(3), sample_of([*STEP, STEP_END, *LAST])], prm)
  assert [len(each.steps) for each in prm.asked] == [3, 1]


def test_what_cannot_be_read_at_all_has_no_score():
  """Such as a text that its tokenizer refuses: nothing is said about it."""
  prm = FixedPrm()
  prm.window = 0
  [episode] = rate([chain(3)], prm).episodes
  assert np.isnan(episode.scores).tolist() == [True] * 3
