"""Features of a backbone that stays as it is, and the heads on them."""

import numpy as np
import pytest

from experiments.neutral_labels import features
from experiments.smollm2_prm import heads
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.evals import suite

pytestmark = pytest.mark.once


def chains(count: int = 20) -> list[Chain]:
  return [
    Chain(
      f'{i} and {i + 1}?',
      tuple(f'that is {n}' for n in range(1 + i % 3)),
      labels=tuple(
        StepLabel(1.0, neutral=(i + n) % 5 == 0) for n in range(1 + i % 3)
      ),
    )
    for i in range(count)
  ]


def test_a_head_finds_the_shares_of_two_groups():
  group = np.repeat([0.0, 1.0], [4, 6])[:, None]
  targets = np.array([1, 0, 0, 0, 1, 1, 0.5, 0.5, 1, 0])
  head = heads.fit(group, targets, 1e-12)
  assert head.score(np.array([[0.0], [1.0]])) == pytest.approx(
    [0.25, 4 / 6], abs=1e-6
  )
  # With an endless decay only the constant is left.
  flat = heads.fit(group, targets, 1e9).score(group)
  assert flat == pytest.approx(np.full(10, 0.5), abs=1e-6)


def test_held_out_problems_are_not_trained_on():
  part = features.Part(chains(), [np.zeros((1, 2))] * 20)
  train, dev = features.split(part, 0)
  assert len(dev.chains) == 5 and len(train.chains) == 15
  assert not {c.problem for c in train.chains} & {c.problem for c in dev.chains}
  other, _ = features.split(part, 1)
  assert [c.problem for c in other.chains] != [c.problem for c in train.chains]


def test_neutral_steps_are_not_ranked():
  before = chains()
  after = features.without_neutral(before)
  for old, new in zip(before, after, strict=True):
    assert [it.value is None for it in new.labels] == [
      it.neutral for it in old.labels
    ]
  steps = suite.rank_steps(after, [np.zeros(len(c.steps)) for c in after])
  neutral = sum(it.neutral for c in before for it in c.labels)
  assert len(steps.scores) == sum(len(c.steps) for c in before) - neutral


def test_targets_of_a_neutral_step():
  chain = Chain(
    'q', ('a', 'b'), labels=(StepLabel(1.0), StepLabel(1.0, neutral=True))
  )
  part = features.Part([chain], [np.array([[1.0], [2.0]])])
  expected = {'good': [1, 1], 'bad': [1, 0], 'half': [1, 0.5], 'ignore': [1]}
  for arm, values in expected.items():
    assert features.targets_of(part, arm)[1].tolist() == values
