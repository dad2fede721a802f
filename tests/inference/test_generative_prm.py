r"""A critic's words become step scores, whatever the critic does."""

import math

import jax
import numpy as np
import pytest

from prm_jax.data.critiques.questions import read_question
from prm_jax.data.critiques.styles import STYLES
from prm_jax.data.critiques.writing import write
from prm_jax.data.encoding import make_format
from prm_jax.data.verify import sandbox
from prm_jax.inference.generative_prm import (
  UNKNOWN,
  CritiqueConfig,
  GenerativePrm,
)
from prm_jax.inference.generator import Generator
from prm_jax.inference.protocols import Scoring
from prm_jax.inference.sampler import SamplingConfig
from prm_jax.models import TransformerConfig, init_params
from prm_jax.runtime.checks import Faults
from prm_jax.runtime.errors import UserError
from tests.shared.scripted_critic import ScriptedCritic
from tests.shared.tiny_sampling import one_device

PROBLEM = 'mod 10 : 7 * 3 + 4 - 6'
RIGHT = ('7 * 3 = 1', '1 + 4 = 5', '5 - 6 = 9')
WRONG = ('7 * 3 = 1', '1 + 4 = 6', '6 - 6 = 0')


def exact(question, lines, sample):
  """Writes the exact critique, or what is left of it."""
  del sample
  rng = np.random.default_rng(0)
  return write(read_question(question), -1, rng)[len(lines) :]


def scores_of(prm, *chains):
  found = prm.score([Scoring(PROBLEM, steps) for steps in chains])
  return [scored.scores for [scored] in found]


@pytest.mark.parametrize(
  ('name', 'ask'),
  [
    (name, ask)
    for name, style in STYLES.items()
    if not style.of_outcome
    for ask in ('steps', 'chain')
    if style.whole or ask == 'steps'
  ],
)
def test_exact_critiques_give_exact_scores(name, ask):
  config = CritiqueConfig(name, ask=ask, samples=2)
  prm = GenerativePrm(ScriptedCritic(exact), config)
  right, wrong = scores_of(prm, RIGHT, WRONG)
  assert right == (1, 1, 1)
  # A style that judges the chain so far has no good word for what follows an
  # error; one that judges the last step alone has.
  assert wrong == ((1, 0, 0) if STYLES[name].whole else (1, 0, 1))


def test_a_step_is_judged_once_and_without_those_after_it():
  critic = ScriptedCritic(exact)
  prm = GenerativePrm(critic, CritiqueConfig('r_prm', samples=3))
  [[first]] = prm.score([Scoring(PROBLEM, WRONG[:2])])
  assert first.scores == (1, 0)
  # Ten tokens read and two written, of each of three critiques of two steps;
  # then three read for the choice.
  assert first.tokens == 6 * (10 + 2 + 3)
  assert first.flops == 6 * (7 + 2)
  asked = len(critic.requests)
  [[again], [longer]] = prm.score(
    [Scoring(PROBLEM, WRONG[:2]), Scoring(PROBLEM, WRONG)]
  )
  assert again.scores == first.scores
  assert again.tokens == 0
  assert longer.scores[:2] == first.scores
  assert len(critic.requests) == asked + 3
  seeds = {(request.key, request.first) for request in critic.requests}
  assert len(seeds) == len(critic.requests)


def test_the_probability_of_the_word_is_the_score():
  """Of `yes` against `no`, whatever else is likely."""
  likely = math.log(0.3), math.log(0.1)
  critic = ScriptedCritic(exact, lambda choice: likely)
  prm = GenerativePrm(critic, CritiqueConfig('thinkprm'))
  [scores] = scores_of(prm, RIGHT)
  assert scores == pytest.approx((0.75, 0.75, 0.75))
  last = critic.choices[-1]
  assert last.options == STYLES['thinkprm'].options
  assert last.lead == 'Is the solution correct ?'
  # The critic's own answer is not shown to it.
  assert len(last.steps) == len(RIGHT)
  assert not any('Is the solution' in line for line in last.steps)


@pytest.mark.parametrize(
  'lines',
  [
    ['nothing to say'],
    [],
    ['Ist der Schritt richtig? Ja'],
    [r'\boxed{correct}'] * 50,
  ],
)
def test_a_critique_without_a_verdict(lines):
  """It counts as unknown, unless the critic says how likely one is."""
  prm = GenerativePrm(
    ScriptedCritic(lambda *_: lines), CritiqueConfig('thinkprm')
  )
  [[scored]] = prm.score([Scoring(PROBLEM, RIGHT[:2])])
  assert scored.scores == (UNKNOWN, UNKNOWN)
  assert (scored.unread, scored.lost) == (2, 0)
  likely = math.log(0.3), math.log(0.1)
  critic = ScriptedCritic(lambda *_: lines, lambda choice: likely)
  prm = GenerativePrm(critic, CritiqueConfig('thinkprm'))
  [[scored]] = prm.score([Scoring(PROBLEM, RIGHT[:2])])
  assert scored.scores == pytest.approx((0.75, 0.75))
  assert scored.unread == 0


def test_a_lost_critique_is_asked_for_again():
  """By a second call, when the server may have come back."""
  critic = ScriptedCritic(lambda *_: None)
  prm = GenerativePrm(critic, CritiqueConfig('thinkprm'))
  [[scored], [again]] = prm.score([Scoring(PROBLEM, RIGHT[:1])] * 2)
  assert scored.scores == (UNKNOWN,)
  assert (scored.unread, scored.lost, again.lost) == (0, 1, 1)
  critic._write = exact
  [[scored]] = prm.score([Scoring(PROBLEM, RIGHT[:1])])
  assert (scored.scores, scored.lost) == ((1.0,), 0)


def test_the_name_holds_all_that_changes_scores():
  def name(**changes):
    return GenerativePrm(ScriptedCritic(exact), CritiqueConfig(**changes)).name

  assert name() == name(style='thinkprm')
  for change in (
    {'style': 'r_prm'},
    {'plain': False},
    {'samples': 2},
    {'ask': 'chain'},
    {'limits': sandbox.Limits()},
  ):
    assert name(**change) != name(), change


def test_what_cannot_be_asked():
  """One question without words is unknown; if all are, somebody has to know."""
  refusal = "'x' is not a word"

  def write_some(question, lines, sample):
    return refusal if 'x' in question else exact(question, lines, sample)

  prm = GenerativePrm(ScriptedCritic(write_some), CritiqueConfig('r_prm'))
  with pytest.raises(UserError, match=f'cannot be asked: {refusal}'):
    prm.score([Scoring('x', ('1',))])
  [[right], [odd]] = prm.score(
    [Scoring(PROBLEM, RIGHT[:1]), Scoring('x', ('1',))]
  )
  assert right.scores == (1.0,)
  assert (odd.scores, odd.unread, odd.lost) == ((UNKNOWN,), 1, 0)
  assert prm.refusal == refusal
  [[odd]] = prm.score([Scoring('x', ('2',))])
  assert odd.scores == (UNKNOWN,)


def test_code_whose_rest_is_lost_is_lost():
  def write_code(question, lines, sample):
    return None if lines else ['<verify> print ( True ) </verify>']

  likely = math.log(0.9), math.log(0.1)
  critic = ScriptedCritic(write_code, lambda choice: likely)
  prm = GenerativePrm(critic, CritiqueConfig('genprm'))
  [[scored]] = prm.score([Scoring(PROBLEM, RIGHT[:1])])
  assert (scored.scores, scored.lost) == ((UNKNOWN,), 1)


def test_the_mean_of_the_critiques():
  """One of four is lost, one says no, two say yes."""
  said = {0: 'Yes', 1: 'No', 2: None, 3: 'Yes'}

  def write_some(question, lines, sample):
    word = said[sample]
    return word and [f'Is the step correct (Yes/No) ? {word}']

  prm = GenerativePrm(
    ScriptedCritic(write_some), CritiqueConfig('r_prm', samples=4)
  )
  [scores] = scores_of(prm, RIGHT[:1])
  assert scores == ((1 + 0 + UNKNOWN + 1) / 4,)
  [said] = prm.opinions(PROBLEM, RIGHT[:1])
  assert (len(said.critiques), said.unread, said.lost) == (3, 0, 1)


def test_chains_are_asked_about_once():
  votes = {0: r'\boxed{-1}', 1: r'\boxed{1}', 2: r'\boxed{1}', 3: 'none'}
  critic = ScriptedCritic(lambda question, lines, sample: [votes[sample]])
  config = CritiqueConfig('boxed_index', samples=4, ask='chain')
  prm = GenerativePrm(critic, config)
  [scores] = scores_of(prm, RIGHT)
  half = (1 + 0 + 0 + UNKNOWN) / 4
  assert scores == ((3 + UNKNOWN) / 4, half, half)
  assert len(critic.requests) == 4
  # A verdict about the answer is that of every step.
  critic = ScriptedCritic(exact, lambda choice: (math.log(0.3), math.log(0.1)))
  prm = GenerativePrm(critic, CritiqueConfig('genrm', ask='chain'))
  assert scores_of(prm, RIGHT) == [pytest.approx((0.75,) * 3)]
  assert len(critic.requests) == 1
  with pytest.raises(Faults, match='judges the last step alone'):
    CritiqueConfig('r_prm', ask='chain')
  with pytest.raises(Faults, match='judges the answer of a whole chain'):
    CritiqueConfig('genrm')


def coding(code):
  """Returns a critic that checks by this code, and judges by its output."""

  def write_code(question, lines, sample):
    del question, sample
    if lines:
      said = 'Yes' if lines[-1] == '[Code Output: True ]' else 'No'
      return [rf'<output> \boxed{{{said}}}']
    # What the critic believes that its code prints is not what it prints.
    return [f'<verify> {code} </verify>', '[Code Output: True ]', 'rest']

  return ScriptedCritic(write_code)


@pytest.mark.parametrize(
  ('code', 'output'),
  [
    ('print ( ( 1 + 4 ) % 10 == 5 )', 'True'),
    ('print ( ( 1 + 4 ) % 10 == 6 )', 'False'),
    ('print ( 1 / 0 )', 'error'),
    ('for i in range(1):\n  print(True)', 'error'),  # lines lose their blanks
    ('print ( 1 )', 'error'),  # a critic trained here has no word for it
    ('this is no Python', 'error'),
    ('while True: pass', 'error'),
    ('print ( "True " * 10 ** 8 )', 'error'),
    ('import os; os.kill(os.getppid(), 9); print(True)', 'error'),
    ('print(open("/etc/shadow").read() == "")', 'error'),
    ('import os\nwhile True: os.fork()', 'error'),
  ],
)
def test_the_output_of_code_decides(code, output):
  critic = coding(code)
  wall = 2.0 if output == 'error' else 60.0
  limits = sandbox.Limits(wall_seconds=wall, cpu_seconds=1)
  prm = GenerativePrm(critic, CritiqueConfig('genprm', limits=limits))
  assert scores_of(prm, RIGHT[:1]) == [(float(output == 'True'),)]
  [_, again] = critic.requests
  assert again.steps[0].startswith('<verify>')
  assert again.steps[-1] == f'[Code Output: {output} ]'


def test_code_runs_in_the_sandbox_alone(tmp_path):
  """A file that it writes is nowhere, and our modules are not its own."""
  there = tmp_path / 'written'
  code = f'open({str(there)!r}, "w").write("x"); print(True)'
  assert scores_of(
    GenerativePrm(coding(code), CritiqueConfig('genprm')), RIGHT[:1]
  ) == [(0,)]
  assert not there.exists()
  code = 'import sys; print("prm_jax" not in sys.modules)'
  assert scores_of(
    GenerativePrm(coding(code), CritiqueConfig('genprm')), RIGHT[:1]
  ) == [(1,)]


@pytest.mark.parametrize(
  ('lines', 'before', 'lead'),
  [
    (
      ('Is the step correct (Yes/No)? Let me see.', '7 * 3 is 1, not 2.'),
      ('Is the step correct (Yes/No)? Let me see.', '7 * 3 is 1, not 2.'),
      'Is the step correct (Yes/No) ?',
    ),
    (('7 * 3 is 1.',), ('7 * 3 is 1.',), 'So: is the step correct (Yes/No) ?'),
  ],
)
def test_the_word_is_read_after_all_that_was_written(lines, before, lead):
  """A critic may ask itself earlier, or in the middle of a line."""
  said = (*lines, f'{lead.replace(" ?", "?")} No')
  critic = ScriptedCritic(lambda *_: list(said), lambda choice: (-3.0, -0.1))
  prm = GenerativePrm(critic, CritiqueConfig('r_prm', plain=False))
  prm.score([Scoring(PROBLEM, WRONG[:1])])
  [choice] = critic.choices
  assert choice.steps == before
  assert choice.lead.lower() == lead.lower()


@pytest.mark.parametrize('ask', ['steps', 'chain'])
def test_steps_without_room_are_told(ask):
  def write_short(question, lines, sample):
    steps = len(read_question(question).steps)
    return 'no room' if steps > 2 else exact(question, lines, sample)

  prm = GenerativePrm(ScriptedCritic(write_short), CritiqueConfig(ask=ask))
  [[short], [long]] = prm.score(
    [Scoring(PROBLEM, RIGHT[:2]), Scoring(PROBLEM, RIGHT)]
  )
  assert (short.scores, short.refused) == ((1, 1), 0)
  assert len(long.scores) == 3
  assert long.refused == (1 if ask == 'steps' else 3)


def test_a_question_longer_than_the_window_of_a_model_is_refused():
  """A model writes nothing then, and says that it had no room."""
  fmt = make_format('arithmetic_critic', 40)
  model = TransformerConfig(
    vocab_size=256, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=24
  )
  params = init_params(jax.random.key(0), model)
  sampling = SamplingConfig(slots=2, max_tokens=8)
  critic = Generator(params, model, fmt, one_device(), sampling, 0, 'tiny')
  prm = GenerativePrm(critic, CritiqueConfig('r_prm'))
  long = ('7 * 3 = 1', *('1 + 4 = 5',) * 9)
  [[scored]] = prm.score([Scoring(PROBLEM, long)])
  assert len(scored.scores) == len(long)
  assert 0 < scored.refused < len(long)
  assert prm.refusal == 'its window has no room to answer'
  alone = GenerativePrm(critic, CritiqueConfig('boxed_index', ask='chain'))
  with pytest.raises(UserError, match='cannot be asked: its window has no'):
    alone.score([Scoring(PROBLEM, long)])
