"""Targets of one chain for every choice of what labels mean."""

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.targets import TargetConfig, step_targets
from prm_jax.runtime.errors import UserError

RIGHT, WRONG, UNKNOWN = StepLabel(1.0), StepLabel(0.0), StepLabel(None)
NEUTRAL = StepLabel(1.0, neutral=True)
NOTHING = None  # weight 0


def rollout(successes, trials):
  return StepLabel(successes / trials, 'rollout', successes, trials)


def chain_of(*labels, outcome=None):
  steps = tuple(f's{i}' for i in range(len(labels)))
  return Chain('p', steps, labels=labels, outcome=outcome)


def read(chain, steps=None, **config):
  """The targets as a list, NOTHING where the weight is 0."""
  steps = len(chain.steps) if steps is None else steps
  targets = step_targets(chain, steps, TargetConfig(**config))
  for field in targets:
    assert field.shape == (steps,)
    assert field.dtype == np.float32
  assert set(targets.weights) <= {0.0, 1.0}
  return [
    pytest.approx(float(value), abs=1e-7) if weight else NOTHING
    for value, weight in zip(targets.values, targets.weights, strict=True)
  ]


@pytest.mark.parametrize(
  ('neutral', 'expected'),
  [
    ('good', [1, 1, 1, 0]),
    ('half', [1, 0.5, 1, 0]),
    ('ignore', [1, NOTHING, 1, 0]),
    ('bad', [1, 0, 1, 0]),
  ],
)
def test_neutral(neutral, expected):
  chain = chain_of(RIGHT, NEUTRAL, RIGHT, WRONG)
  assert read(chain, neutral=neutral) == expected


@pytest.mark.parametrize('after', ['mask', 'bad'])
def test_a_neutral_step_that_is_bad_is_no_error(after):
  """Ratings 1, 0, 1, 1, -1: the labels behind the neutral step are learned."""
  chain = chain_of(RIGHT, NEUTRAL, RIGHT, RIGHT, WRONG, NEUTRAL)
  behind = NOTHING if after == 'mask' else 0
  found = read(chain, neutral='bad', after_first_error=after)
  assert found == [1, 0, 1, 1, 0, behind]


def test_a_completion_teaches_without_labels():
  bare = Chain('p', ('a', 'b', 'c'))
  for chain in (bare, chain_of(WRONG, UNKNOWN, RIGHT)):
    weights = step_targets(chain, 2, TargetConfig('completion')).weights
    assert weights.tolist() == [1.0, 1.0]


def test_neutral_bad_with_what_follows_kept():
  chain = chain_of(RIGHT, NEUTRAL, RIGHT, WRONG)
  config = dict(neutral='bad', after_first_error='keep')
  assert read(chain, **config) == [1, 0, 1, 0]


@pytest.mark.parametrize('hard_above', [None, 0.0, 0.9])
def test_a_neutral_choice_stands_above_hard_labels(hard_above):
  chain = chain_of(NEUTRAL)
  assert read(chain, neutral='half', hard_above=hard_above) == [0.5]


@pytest.mark.parametrize(
  ('after', 'expected'),
  [
    ('mask', [1, NOTHING, 0, NOTHING, NOTHING, NOTHING]),
    # A chain with an error stays wrong, also where nobody looked.
    ('bad', [1, NOTHING, 0, 0, 0, 0]),
    ('keep', [1, NOTHING, 0, 1, NOTHING, 0]),
  ],
)
def test_after_the_first_error(after, expected):
  chain = chain_of(RIGHT, UNKNOWN, WRONG, RIGHT, UNKNOWN, WRONG)
  assert read(chain, after_first_error=after) == expected


@pytest.mark.parametrize('after', ['mask', 'bad', 'keep'])
def test_a_soft_label_is_no_verdict(after):
  chain = chain_of(rollout(3, 8), StepLabel(0.01), RIGHT)
  assert read(chain, after_first_error=after) == [0.375, 0.01, 1]


def test_no_rollout_succeeded_is_an_error():
  chain = chain_of(rollout(3, 8), rollout(0, 8), RIGHT)
  assert read(chain) == [0.375, 0, NOTHING]
  assert read(chain, after_first_error='bad') == [0.375, 0, 0]


@pytest.mark.parametrize(
  ('hard_above', 'expected'),
  [
    (None, [1, 0.75, 0.25, 0, NOTHING]),
    # "Any rollout succeeded": above 0, not at it.
    (0.0, [1, 1, 1, 0, NOTHING]),
    (0.25, [1, 1, 0, 0, NOTHING]),
    (0.5, [1, 1, 0, 0, NOTHING]),
    (1.0, [0, 0, 0, 0, NOTHING]),
  ],
)
def test_hard_labels(hard_above, expected):
  chain = chain_of(RIGHT, rollout(6, 8), rollout(2, 8), rollout(0, 8), UNKNOWN)
  config = dict(hard_above=hard_above, after_first_error='keep')
  assert read(chain, **config) == expected


def test_hardening_comes_before_the_first_error():
  chain = chain_of(rollout(2, 8), rollout(6, 8))
  assert read(chain) == [0.25, 0.75]
  assert read(chain, hard_above=0.25) == [0, NOTHING]
  assert read(chain, hard_above=0.0) == [1, 1]


def test_trials_go_with_what_is_learned():
  chain = chain_of(RIGHT, rollout(6, 8), rollout(0, 4), rollout(3, 4))
  targets = step_targets(chain, 4, TargetConfig())
  np.testing.assert_array_equal(targets.trials, [0, 8, 4, 0])
  np.testing.assert_array_equal(targets.weights, [1, 1, 1, 0])


@pytest.mark.parametrize('outcome', [True, False])
def test_outcome_supervision_reads_the_last_step_only(outcome):
  chain = chain_of(RIGHT, WRONG, RIGHT, outcome=outcome)
  expected = [NOTHING, NOTHING, float(outcome)]
  assert read(chain, supervision='outcome') == expected


def test_outcome_supervision_needs_an_outcome_and_the_last_step():
  unchecked = chain_of(RIGHT, RIGHT)
  assert read(unchecked, supervision='outcome') == [NOTHING] * 2
  cut = chain_of(RIGHT, RIGHT, RIGHT, outcome=True)
  assert read(cut, steps=2, supervision='outcome') == [NOTHING] * 2


def test_a_cut_chain_keeps_the_labels_of_its_first_steps():
  chain = chain_of(RIGHT, StepLabel(0.7), WRONG)
  assert read(chain, steps=2) == [1, 0.7]
  assert read(chain, steps=1) == [1]


def test_a_chain_without_labels_teaches_nothing():
  chain = Chain('p', ('a', 'b'), outcome=True)
  assert read(chain) == [NOTHING] * 2
  assert read(chain, after_first_error='bad') == [NOTHING] * 2


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('supervision', 'both'),
    ('neutral', 'maybe'),
    ('after_first_error', 'stop'),
  ],
)
def test_unknown_choices(name, value):
  with pytest.raises(UserError, match=f'targets.{name}={value!r}: expected'):
    TargetConfig(**{name: value})
