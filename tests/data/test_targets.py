"""Tests the targets of a chain for every setting of TargetConfig."""

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.targets import TargetConfig, step_targets
from prm_jax.runtime.errors import UserError

RIGHT, WRONG, UNKNOWN = StepLabel(1.0), StepLabel(0.0), StepLabel(None)
NEUTRAL = StepLabel(1.0, neutral=True)
MASKED = None  # weight 0


def rollout(successes, trials):
  return StepLabel(successes / trials, 'rollout', successes, trials)


def chain_of(*labels, outcome=None):
  steps = tuple(f's{i}' for i in range(len(labels)))
  return Chain('p', steps, labels=labels, outcome=outcome)


def targets_of(chain, steps=None, **config):
  """Returns the targets as a list; steps of weight 0 are MASKED."""
  steps = len(chain.steps) if steps is None else steps
  targets = step_targets(chain, steps, TargetConfig(**config))
  for field in targets:
    assert field.shape == (steps,)
    assert field.dtype == np.float32
  assert set(targets.weights) <= {0.0, 1.0}
  return [
    pytest.approx(float(value), abs=1e-7) if weight else MASKED
    for value, weight in zip(targets.values, targets.weights, strict=True)
  ]


@pytest.mark.parametrize(
  ('neutral', 'expected'),
  [
    ('good', [1, 1, 1, 0]),
    ('half', [1, 0.5, 1, 0]),
    ('ignore', [1, MASKED, 1, 0]),
    ('bad', [1, 0, 1, 0]),
  ],
)
def test_targets_of_neutral_steps(neutral, expected):
  chain = chain_of(RIGHT, NEUTRAL, RIGHT, WRONG)
  assert targets_of(chain, neutral=neutral) == expected


@pytest.mark.parametrize(
  ('after', 'last'), [('mask', MASKED), ('bad', 0), ('keep', 0)]
)
def test_a_neutral_step_is_never_the_first_error(after, last):
  """Reads PRM800K ratings 1, 0, 1, 1, -1, 0: only the -1 is an error."""
  chain = chain_of(RIGHT, NEUTRAL, RIGHT, RIGHT, WRONG, NEUTRAL)
  found = targets_of(chain, neutral='bad', after_first_error=after)
  assert found == [1, 0, 1, 1, 0, last]


def test_completion_supervision_needs_no_labels():
  bare = Chain('p', ('a', 'b', 'c'))
  for chain in (bare, chain_of(WRONG, UNKNOWN, RIGHT)):
    weights = step_targets(chain, 2, TargetConfig('completion')).weights
    assert weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize('hard_above', [None, 0.0, 0.9])
def test_neutral_targets_are_not_hardened(hard_above):
  chain = chain_of(NEUTRAL)
  assert targets_of(chain, neutral='half', hard_above=hard_above) == [0.5]


@pytest.mark.parametrize(
  ('after', 'expected'),
  [
    ('mask', [1, MASKED, 0, MASKED, MASKED, MASKED]),
    # Unknown steps become wrong, too.
    ('bad', [1, MASKED, 0, 0, 0, 0]),
    ('keep', [1, MASKED, 0, 1, MASKED, 0]),
  ],
)
def test_targets_after_the_first_error(after, expected):
  chain = chain_of(RIGHT, UNKNOWN, WRONG, RIGHT, UNKNOWN, WRONG)
  assert targets_of(chain, after_first_error=after) == expected


@pytest.mark.parametrize('after', ['mask', 'bad', 'keep'])
def test_a_soft_label_above_0_is_not_an_error(after):
  chain = chain_of(rollout(3, 8), StepLabel(0.01), RIGHT)
  assert targets_of(chain, after_first_error=after) == [0.375, 0.01, 1]


def test_a_step_without_successful_rollout_is_an_error():
  chain = chain_of(rollout(3, 8), rollout(0, 8), RIGHT)
  assert targets_of(chain) == [0.375, 0, MASKED]
  assert targets_of(chain, after_first_error='bad') == [0.375, 0, 0]


@pytest.mark.parametrize(
  ('hard_above', 'expected'),
  [
    (None, [1, 0.75, 0.25, 0, MASKED]),
    # A step is right if any rollout succeeded: the value is above 0.
    (0.0, [1, 1, 1, 0, MASKED]),
    (0.25, [1, 1, 0, 0, MASKED]),
    (0.5, [1, 1, 0, 0, MASKED]),
    (1.0, [0, 0, 0, 0, MASKED]),
  ],
)
def test_hard_labels_are_1_above_the_threshold(hard_above, expected):
  chain = chain_of(RIGHT, rollout(6, 8), rollout(2, 8), rollout(0, 8), UNKNOWN)
  config = dict(hard_above=hard_above, after_first_error='keep')
  assert targets_of(chain, **config) == expected


def test_labels_are_hardened_before_the_first_error_is_found():
  chain = chain_of(rollout(2, 8), rollout(6, 8))
  assert targets_of(chain) == [0.25, 0.75]
  assert targets_of(chain, hard_above=0.25) == [0, MASKED]
  assert targets_of(chain, hard_above=0.0) == [1, 1]


def test_masked_steps_have_no_trials():
  chain = chain_of(RIGHT, rollout(6, 8), rollout(0, 4), rollout(3, 4))
  targets = step_targets(chain, 4, TargetConfig())
  np.testing.assert_array_equal(targets.trials, [0, 8, 4, 0])
  np.testing.assert_array_equal(targets.weights, [1, 1, 1, 0])


@pytest.mark.parametrize('outcome', [True, False])
def test_outcome_supervision_reads_the_last_step_only(outcome):
  chain = chain_of(RIGHT, WRONG, RIGHT, outcome=outcome)
  expected = [MASKED, MASKED, float(outcome)]
  assert targets_of(chain, supervision='outcome') == expected


def test_outcome_supervision_needs_an_outcome_and_the_last_step():
  unchecked = chain_of(RIGHT, RIGHT)
  assert targets_of(unchecked, supervision='outcome') == [MASKED] * 2
  cut = chain_of(RIGHT, RIGHT, RIGHT, outcome=True)
  assert targets_of(cut, steps=2, supervision='outcome') == [MASKED] * 2


def test_a_cut_chain_keeps_the_labels_of_its_first_steps():
  chain = chain_of(RIGHT, StepLabel(0.7), WRONG)
  assert targets_of(chain, steps=2) == [1, 0.7]
  assert targets_of(chain, steps=1) == [1]


def test_a_chain_without_labels_is_masked():
  chain = Chain('p', ('a', 'b'), outcome=True)
  assert targets_of(chain) == [MASKED] * 2
  assert targets_of(chain, after_first_error='bad') == [MASKED] * 2


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('supervision', 'both'),
    ('neutral', 'maybe'),
    ('after_first_error', 'stop'),
  ],
)
def test_unknown_choices_are_rejected(name, value):
  with pytest.raises(UserError, match=f'^{name}={value!r}: expected one of'):
    TargetConfig(**{name: value})
