"""A PRM's scores of chains: also of those that are longer than its window."""

import numpy as np
import pytest

from prm_jax.data.critiques.questions import read_question
from prm_jax.data.critiques.writing import write as write_critique
from prm_jax.data.tokenizer import STEP_END
from prm_jax.inference.generative_prm import CritiqueConfig, GenerativePrm
from tests.rl.written_chains import LAST, STEP, FixedPrm, rate, sample_of
from tests.shared.scripted_critic import ScriptedCritic


def exact(question, lines, sample):
  """Writes the exact critique."""
  del lines, sample
  rng = np.random.default_rng(0)
  return write_critique(read_question(question), -1, rng)


def mute(*_):
  return ['nothing to say']


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


@pytest.mark.parametrize('ask', ['steps', 'chain'])
def test_steps_for_which_a_critic_has_no_room_count_as_wrong(ask):
  def write(question, lines, sample):
    steps = read_question(question).steps
    return 'no room' if len(steps) > 2 else exact(question, lines, sample)

  prm = GenerativePrm(ScriptedCritic(write), CritiqueConfig(ask=ask))
  [long, short] = rate([chain(4), chain(1)], prm).episodes
  np.testing.assert_array_equal(short.scores, [1.0])
  # The second step repeats the first, which is wrong.
  np.testing.assert_array_equal(long.scores, [1.0, 0.0, 0.0, 0.0])


def test_critiques_that_say_nothing_are_counted_and_lost_ones_break_the_score():
  rated = rate(
    [chain(2)], GenerativePrm(ScriptedCritic(mute), CritiqueConfig())
  )
  assert rated.metrics == {'unread_critiques': 2.0}
  np.testing.assert_array_equal(rated.episodes[0].scores, [0.5, 0.5])
  lost = GenerativePrm(ScriptedCritic(lambda *_: None), CritiqueConfig())
  [episode] = rate([chain(2)], lost).episodes
  assert np.isnan(episode.scores).all()
