"""Consensus: claims and agreement by hand, and the accuracy of what is kept."""

import math

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel, first_error
from prm_jax.labels.consensus import (
  ConsensusConfig,
  Kept,
  agree,
  claimed_error,
  consensus,
)
from prm_jax.runtime.errors import UserError

CONFIG = ConsensusConfig('rollouts', 'judge')


def chain(values, name='a', outcome=None, steps=None):
  steps = steps or tuple(f'step {p}' for p in range(len(values) or 3))
  labels = tuple(StepLabel(value) for value in values)
  return Chain('how many?', steps, None, outcome, labels, {'id': name})


@pytest.mark.parametrize(
  ('values', 'hard_above', 'claim'),
  [
    ([1, 1, 1], 0, -1),
    ([1, 0, 1], 0, 1),
    ([0.1, 0.2, 0], 0, 2),
    ([0.1, 0.2, 0], 0.1, 0),
    ([0.6, 0.5, 0], 0.5, 1),
    ([1, 0, None], 0, 1),
    ([1, None, 0], 0, None),
    ([1, 1, None], 0, None),
    ([], 0, None),
  ],
)
def test_claims_by_hand(values, hard_above, claim):
  assert claimed_error(chain(values), hard_above) == claim


@pytest.mark.parametrize(
  ('first', 'second', 'same'),
  [
    ([1, 1, 1], [1, 0.3, 1], True),
    ([1, 0, 1], [1, 0, 0], True),
    ([1, 0, 1], [1, 1, 0], False),
    ([1, 1, 1], [1, 1, 0], False),
    ([1, None, 0], [1, None, 0], False),
    ([1, 1, None], [1, 1, 1], False),
  ],
)
def test_agreement_by_hand(first, second, same):
  assert agree(chain(first), chain(second), CONFIG) is same
  assert agree(chain(second), chain(first), CONFIG) is same


def test_chains_with_agreement_are_kept_and_counted():
  first = [
    chain([0.5, 0.0, 0.0], 'a', False),
    chain([1, 1, 1], 'b', True),
    chain([1, 1, 0], 'c', True),
    chain([1, 0, 0], 'd', False),
    chain([1, 1, 1], 'e', None),
    chain([1, 1, 1], 'only rollouts', True),
  ]
  second = [
    chain([1, 1, 1], 'e'),
    chain([1, 1, 0], 'd'),
    chain([1, 1, 1], 'c'),
    chain([1, 1, 1], 'b'),
    chain([1, 0, None], 'a'),
    chain([1, 1, 1], 'only judge'),
    chain([1, 1, 1], 'only judge 2'),
  ]
  kept, report = consensus(first, second, CONFIG)
  assert [c.meta['id'] for c in kept] == ['a', 'b', 'e']
  assert [c.labels for c in kept] == [first[i].labels for i in (0, 1, 4)]
  assert kept[0].meta['consensus'] == ['rollouts', 'judge']
  assert report == (Kept(5, 3), Kept(2, 1), Kept(2, 1), 3)
  assert report.all.share == 0.6
  assert Kept(0, 0).share == 0


@pytest.mark.parametrize(
  ('first', 'second', 'message'),
  [
    ([chain([1, 1])], [chain([1, 1, 1])], "chain 'a' of rollouts has another"),
    ([chain([1], steps=('x',))], [chain([1])], 'or other steps in judge'),
    ([chain([1], 'a')], [chain([1], 'b')], 'none of the 1 chains of rollouts'),
    ([chain([1])], [chain([1])] * 2, "two chains of judge have the id 'a'"),
    ([Chain('p', ('x',))], [chain([1])], "chain 0 of rollouts has no 'id'"),
    ([], [], 'none of the 0 chains'),
  ],
)
def test_chains_that_do_not_pair_are_rejected(first, second, message):
  with pytest.raises(UserError, match=message):
    consensus(first, second, CONFIG)


@pytest.mark.parametrize(
  ('first', 'second', 'message'),
  [
    ([chain([])], [chain([1] * 3)], 'the 1 chains of rollouts have no labels'),
    ([chain([1] * 3)], [chain([])], 'judge have no labels: name a labelling'),
    (
      [chain([1, 0, 1]), chain([1, None, 1], 'b')],
      [chain([1, 1, 1]), chain([1, 1, 1], 'b')],
      r'agree on the first error of none of 2 chains with hard_above=0\.0: set',
    ),
  ],
)
def test_sources_that_leave_nothing_to_keep_are_rejected(
  first, second, message
):
  with pytest.raises(UserError, match=message):
    consensus(first, second, CONFIG)


def test_agreement_is_more_accurate_than_either_source():
  """The numbers follow from two independent sources and chains of 5 steps.

  Each source is right with probability 0.8 and otherwise uniform over the 5
  other claims. So they agree on 0.64 + 0.04 / 5 of the chains, and are right on
  0.64 / 0.648 of these.
  """
  rng, count = np.random.default_rng(0), 20_000
  truth = rng.integers(-1, 5, count)

  def source():
    shift = np.where(rng.random(count) < 0.8, 0, rng.integers(1, 6, count))
    claims = (truth + 1 + shift) % 6 - 1
    return [
      chain([float(p != claim) for p in range(5)], str(i))
      for i, claim in enumerate(claims)
    ]

  first = source()
  kept, report = consensus(first, source(), CONFIG)
  share, accuracy = 0.648, 0.64 / 0.648
  deviation = math.sqrt(share * (1 - share) / count)
  assert abs(report.all.share - share) < 4 * deviation

  def right(chains):
    found = [first_error(c.labels) == truth[int(c.meta['id'])] for c in chains]
    return np.mean(found)

  assert abs(right(first) - 0.8) < 4 * math.sqrt(0.16 / count)
  deviation = math.sqrt(accuracy * (1 - accuracy) / len(kept))
  assert abs(right(kept) - accuracy) < 4 * deviation


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'first': 'judge', 'second': 'judge'}, r"^second='judge': expected an"),
    ({'hard_above': 1.0}, r'^hard_above=1.0: expected a number'),
    ({'hard_above': None}, r'^hard_above=None: expected a number'),
  ],
)
def test_configs_check_themselves(fields, message):
  with pytest.raises(UserError, match=message):
    ConsensusConfig(**fields)
