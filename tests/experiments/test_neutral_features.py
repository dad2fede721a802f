"""Features of a backbone that stays as it is, and the heads on them."""

import numpy as np
import pytest

from experiments.neutral_labels import features
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


def test_held_out_problems_are_not_trained_on():
  train, dev = features.split(chains(), 0)
  assert len(dev) == 5 and len(train) == 15
  assert not {c.problem for c in train} & {c.problem for c in dev}
  other, _ = features.split(chains(), 1)
  assert [c.problem for c in other] != [c.problem for c in train]


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
