"""The part `right` of the accelerator command: its cases hold, faults do not.

Wrong programs are the real ones with one mistake that a chip's program could
have: other rotary positions, chains that see each other, a lost head.
"""

import dataclasses

import numpy as np
import pytest

from experiments.accelerator import right_attention as attention
from experiments.accelerator import right_checks as checks
from experiments.accelerator import right_programs as programs
from experiments.accelerator import right_sampling as sampling
from experiments.accelerator import right_scoring as scoring
from experiments.accelerator.right import make_cases
from experiments.accelerator.right_checks import reference, subjects
from prm_jax.inference.writer import SampledTokens

pytestmark = pytest.mark.slow

MODEL = programs.TINY_MODEL
CPU = reference()
LENGTH = 64
BATCH = programs.make_batch(MODEL.vocab_size, 2, LENGTH)
# The loosest bounds of the table belong to it.
BFLOAT16 = subjects()[-1]


@pytest.mark.parametrize(
  'name',
  [
    *('attention', 'decoding', 'sampling_greedy'),
    *('forward_256', 'gradients', 'train_steps', 'scoring', 'sampling_drawn'),
    *('growing_chains', 'rl_update', 'same_bits', 'resume'),
  ],
)
def test_right_programs_hold(name):
  found = make_cases(tiny=True)[name]()
  assert found['checks']
  for check in found['checks']:
    assert check['holds'], check
    assert check['difference'] <= check['bound']
    assert isinstance(check['difference'], float)


def test_what_is_left_out_says_why():
  found = make_cases(tiny=True)['smollm2']()
  assert not found['checks']
  assert 'left out' in found['notes'][0]


@pytest.mark.parametrize(
  ('difference', 'holds'),
  [(0.0, True), (1.0, True), (1.01, False), (np.inf, False), (np.nan, False)],
)
def test_a_check_holds_up_to_its_bound(difference, holds):
  assert checks.check('name', difference, 1.0)['holds'] is holds


def test_differences_by_hand():
  a = {'x': np.array([3.0, 0.0]), 'y': np.array([[4.0]])}
  b = {'x': np.array([3.0, 0.5]), 'y': np.array([[4.0]])}
  assert checks.relative(b, a) == pytest.approx(0.1)  # .5 of a norm of 5
  assert checks.worst_relative(b, a) == pytest.approx(0.5 / 3)
  assert checks.furthest(b['x'], a['x']) == 0.5
  assert checks.other_bits(b, a) == 1
  # A zero of the other sign is equal, and has other bits.
  assert checks.other_bits(np.array([-0.0]), np.array([0.0])) == 1
  with pytest.raises(ValueError, match='shape'):
    checks.relative(a['x'][None], a['x'])


def test_nan_in_one_of_many_arrays_is_not_lost():
  fine = {'x': np.ones(3), 'y': np.ones(2)}
  for name, array in fine.items():
    broken = fine | {name: np.nan * array}
    for measure in (checks.relative, checks.worst_relative):
      assert np.isnan(measure(broken, fine))
  assert np.isnan(checks.furthest(np.array([1.0, np.nan]), np.ones(2)))
  assert np.isnan(checks.largest([np.nan, 1.0]))


def test_bounds_are_ordered_by_rounding():
  tables = [x for x in vars(checks).values() if isinstance(x, dict)]
  tables = [x for x in tables if x.keys() == checks.VALUES.keys()]
  assert len(tables) > 6
  for table in tables:
    if table is not checks.EXACT:
      assert table['float32'] < table['tf32'] < table['bfloat16'] < 1


def unmasked(batch):
  """Chains of a row that see each other."""
  real = batch['positions'] >= 0
  return batch | {
    'last': np.where(real, real.sum(1)[:, None] - 1, batch['last'])
  }


@pytest.mark.parametrize(
  ('model', 'batch'),
  [
    (dataclasses.replace(MODEL, rope_theta=20_000.0), BATCH),
    (MODEL, unmasked(BATCH)),
    (dataclasses.replace(MODEL, norm_eps=1e-2), BATCH),
  ],
  ids=['rope', 'trees', 'norm'],
)
def test_wrong_hidden_states_exceed_the_bounds(model, batch, monkeypatch):
  weights = programs.make_weights(MODEL)
  monkeypatch.setattr(programs, 'make_weights', lambda _: weights)
  expected = programs.hidden_states(CPU, MODEL, BATCH)
  wrong = programs.hidden_states(CPU, model, batch)
  apart = checks.relative(wrong, expected)
  assert apart > checks.VALUES['bfloat16']


def test_wrong_gradients_exceed_the_bounds():
  _, expected = programs.gradients(CPU, MODEL, BATCH)
  _, wrong = programs.gradients(CPU, MODEL, unmasked(BATCH))
  assert checks.relative(wrong, expected) > checks.GRADIENTS['bfloat16']
  # One small parameter whose gradient is lost shows in the worst alone.
  lost = expected | {
    'head': expected['head'] | {'bias': 0 * expected['head']['bias']}
  }
  apart = checks.worst_relative(lost, expected)
  assert apart > checks.WORST_GRADIENT['bfloat16']


def test_wrong_attention_exceeds_the_bounds():
  heads = attention.Heads(LENGTH, 2, 2, 16)
  expected = attention.run(CPU, attention.dense, heads, BATCH)

  def no_scale(query, *others):
    return attention.dense(0.9 * query, *others)

  for wrong in (
    attention.run(CPU, no_scale, heads, BATCH),
    attention.run(CPU, attention.dense, heads, unmasked(BATCH)),
  ):
    for ours, theirs in zip(wrong, expected, strict=True):
      assert checks.relative(ours, theirs) > checks.ATTENTION['bfloat16']


def test_wrong_scores_exceed_the_bounds():
  expected = np.concatenate(scoring.shared_scores(CPU, MODEL))
  assert np.ptp(expected) > 0.3  # scores of which none is as good as any
  swapped = np.concatenate([s[::-1] for s in scoring.scores(CPU, MODEL)])
  apart = checks.furthest(swapped, expected)
  assert apart > checks.PROBABILITIES['bfloat16']


def test_wrong_samples_exceed_the_bounds():
  """A cache that is one position off, and tokens that are not the best."""
  tokens = sampling.some_tokens(MODEL)
  expected = sampling.read_logits(CPU, MODEL, tokens)
  late = sampling.decode_logits(CPU, MODEL, np.roll(tokens, 1, axis=1))
  assert checks.relative(late, expected) > checks.VALUES['bfloat16']
  greedy = sampling.sample(CPU, MODEL, 0.0)
  drawn = sampling.sample(CPU, MODEL, 1.0)
  assert sampling.other_share(greedy, greedy) == 0
  other = sampling.other_share(drawn, greedy)
  assert other > checks.OTHER_TOKENS['bfloat16']


def test_the_share_of_other_tokens_counts_missing_ones():
  def sample(*tokens):
    return SampledTokens(np.array(tokens), np.zeros(len(tokens)), 0)

  ours = [sample(1, 2, 3, 4), sample(5)]
  theirs = [sample(1, 2, 9), sample(5)]
  # Of 4 and 1 tokens, one is another and one is missing.
  assert sampling.other_share(ours, theirs) == pytest.approx(2 / 5)
  assert sampling.other_share(theirs, ours) == pytest.approx(2 / 5)
