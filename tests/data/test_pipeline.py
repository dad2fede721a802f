"""Compares packed batches with the separate encodings of their chains."""

import collections
import itertools

import numpy as np
import pytest

from prm_jax.data.census import BatchConfig, take_census
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.data.examples import encode_example
from prm_jax.data.pipeline import fill_rate
from prm_jax.data.shards import Share
from prm_jax.data.targets import TargetConfig
from prm_jax.data.tokenizer import STEP_END
from prm_jax.runtime.errors import UserError
from tests.data.packed_chains import (
  BATCHES,
  CHAINS,
  FORMAT,
  TARGETS,
  UNKNOWN,
  assert_equal,
  batches_of,
  problem_of,
  problems_in,
  random_chains,
  unpack,
)


def test_an_epoch_holds_every_chain_once_with_its_steps_in_place():
  by_problem = {chain.problem: chain for chain in CHAINS}
  seen = collections.Counter()
  for batch in batches_of(CHAINS):
    for example in unpack(batch):
      problem = problem_of(example)
      seen[problem] += 1
      expected = encode_example(by_problem[problem], FORMAT, TARGETS)
      assert_equal(example, expected)
  assert seen == collections.Counter(by_problem.keys())


def test_a_policy_learns_only_the_tokens_after_the_problem():
  chain = Chain('ab', ('c', 'de'), labels=(StepLabel(1.0), StepLabel(0.0)))
  of_policy = encode_example(chain, FORMAT, TargetConfig('completion'))
  of_reward = encode_example(chain, FORMAT, TARGETS)
  # <bos> a b <problem_end> | c <step_end> | d e <step_end> | <problem_end>
  assert of_policy.lm_mask.tolist() == [False] * 4 + [True] * 6
  assert of_policy.tokens[-1] == FORMAT.end
  assert of_reward.lm_mask.tolist() == [True] * 9
  np.testing.assert_array_equal(of_policy.tokens[:-1], of_reward.tokens)


def test_shapes_dtypes_and_step_ends_of_batches():
  batches = list(batches_of(CHAINS))
  for batch in batches:
    rows = len(batch['tokens'])
    assert rows == 4 or batch is batches[-1]
    for names, length, dtype in (
      ('tokens positions last parents', 64, np.int32),
      ('kinds', 64, np.int8),
      ('lm_weights', 64, np.float32),
      ('step_ends step_begins chain_ids', 12, np.int32),
      ('step_labels step_weights step_trials', 12, np.float32),
      ('step_mask', 12, np.bool_),
    ):
      for name in names.split():
        assert batch[name].shape == (rows, length)
        assert batch[name].dtype == dtype
    assert batch['flat_tokens'].shape == (rows,)
    assert batch['flat_tokens'].dtype == np.int32
    mask = batch['step_mask']
    assert not batch['step_weights'][~mask].any()
    padding = batch['positions'] < 0
    assert (batch['positions'][padding] == -1).all()
    assert (batch['parents'][padding] == -1).all()
    assert not batch['tokens'][padding].any()
    assert not batch['lm_weights'][padding].any()
    # Padding sees itself alone.
    own = np.broadcast_to(np.arange(64), padding.shape)
    np.testing.assert_array_equal(batch['last'][padding], own[padding])
    # Scores are read at separators, and at every separator.
    ends = np.zeros(batch['tokens'].shape, bool)
    rows_of = np.nonzero(mask)[0]
    ends[rows_of, batch['step_ends'][mask]] = True
    np.testing.assert_array_equal(ends, batch['tokens'] == STEP_END)


def test_a_chain_that_the_tokenizer_rejects_is_named():
  fmt = make_format('arithmetic', max_length=64)
  chain = Chain('mod 10 : 7 * 3', ('7 * three',), meta={'id': 'k'})
  message = (
    "chain 'k' cannot be encoded: 'three' is not a word of .*; use token"
  )
  with pytest.raises(UserError, match=message):
    take_census([chain], fmt, TARGETS, BATCHES)


def test_packing_leaves_little_padding():
  batches = list(batches_of(CHAINS))
  tokens = take_census(CHAINS, FORMAT, TARGETS, BATCHES).tokens
  real = sum(int((b['positions'] >= 0).sum()) for b in batches)
  assert real == tokens
  assert real / sum(b['tokens'].size for b in batches) > 0.85
  assert max(batch['chain_ids'].max() for batch in batches) > 2
  assert fill_rate({'positions': np.array([[0, 1, 0, -1]])}) == 0.75


def test_epochs_differ_in_order_and_not_in_content():
  once, twice = batches_of(CHAINS), batches_of(CHAINS, epochs=2)
  assert problems_in(twice) == problems_in(once) + problems_in(once)
  order = [problem_of(x) for b in twice for x in unpack(b)]
  assert order[:20] != order[len(CHAINS) : len(CHAINS) + 20]


def test_the_seed_decides_the_order():
  first, again, other = (
    list(batches_of(CHAINS, seed=seed)) for seed in (1, 1, 2)
  )
  for ours, theirs in zip(first, again, strict=True):
    assert_equal(ours, theirs)

  def neighbours(batches):
    """Returns the sets of chains that share a row."""
    return {
      frozenset(problems_in([{k: x[b : b + 1] for k, x in batch.items()}]))
      for batch in batches
      for b in range(len(batch['tokens']))
    }

  # Chains are shuffled before they are packed, so their neighbours change.
  common = neighbours(first) & neighbours(other)
  assert len(common) < len(neighbours(first)) / 4


def test_endless_batches_are_full():
  batches = itertools.islice(batches_of(CHAINS[:30], epochs=None), 20)
  assert {len(batch['tokens']) for batch in batches} == {4}


def labels_of(*values):
  return tuple(StepLabel(value) for value in values)


def test_the_census_counts_what_can_be_learned():
  fmt = make_format('bytes', 10)  # <bos> p <problem_end>, then 7 tokens
  chains = [
    Chain('p', ('aa', 'bbb'), labels=labels_of(1.0, 0.0)),  # 3 + 3 + 4: fits
    Chain('q', ('aa', 'bbbb'), labels=labels_of(1.0, 0.0)),  # cut after a step
    Chain('p', ('aaaaaaa',), labels=labels_of(1.0)),  # too long
    Chain('p', ('a', 'b')),  # no labels
    Chain('p', ('a', 'b'), labels=labels_of(None, None)),
    Chain('p', ('aa', 'bbbb'), labels=labels_of(None, 1.0)),  # label cut away
    Chain('r', ('a', 'b', 'c'), labels=labels_of(None, 0.5, 1.0)),
  ]
  rows = BatchConfig(1, 10, max_steps_per_row=3, seed=0)
  census = take_census(chains, fmt, TargetConfig(), rows)
  np.testing.assert_array_equal(census.usable, [0, 1, 6])
  assert [group.tolist() for group in census.groups] == [[0], [1], [6]]
  assert census.steps == 2 + 1 + 2
  assert census.tokens == census.unique == census.computed == 10 + 6 + 9
  assert census.truncated == 1
  assert census.too_long == 1
  assert census.unlabelled == 3
  assert census.summary() == (
    '3 of 7 chains (1 truncated; left out: 1 too long, 3 with nothing to '
    'learn from), 5 steps to learn from, 25 tokens'
  )


def test_batches_hold_only_chains_that_the_census_calls_usable():
  chains = random_chains(30)
  chains[3] = Chain('blank', ('a',), labels=(UNKNOWN,))
  chains[8] = Chain('long', ('a' * 60,), labels=labels_of(1.0))
  census = take_census(chains, FORMAT, TARGETS, BATCHES)
  assert (census.unlabelled, census.too_long) == (1, 1)
  assert problems_in(batches_of(chains)) == collections.Counter(
    chain.problem for i, chain in enumerate(chains) if i not in (3, 8)
  )


def test_a_truncated_chain_keeps_its_first_steps():
  steps = ('a' * 20, 'b' * 20, 'cccc')
  chain = Chain('p', steps, labels=labels_of(1.0, 0.0, 1.0))
  (batch,) = batches_of([chain], batch_size=1)
  (example,) = unpack(batch)
  np.testing.assert_array_equal(example.step_labels, [1.0, 0.0])
  np.testing.assert_array_equal(example.step_ends, [23, 44])


def test_a_data_set_without_usable_chains_is_rejected():
  chains = [
    Chain('p', ('a',)),
    Chain('p', ('a' * 99,), labels=labels_of(1.0)),
    Chain('p', ('a',), labels=(UNKNOWN,)),
  ]
  with pytest.raises(
    UserError,
    match='no chain to train on: of 3 chains 1 are too long and 2 have ',
  ):
    take_census(chains, FORMAT, TARGETS, BATCHES)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (
      {'row_length': 47},
      'data.row_length=47 is shorter than data.max_length=48',
    ),
    (
      {'max_steps_per_row': 3},
      r'data.max_steps_per_row=3, but a chain has 4 steps',
    ),
    (
      {'share': Share(151, (0,), (0,)), 'batch_size': 151},
      '150 trees of usable chains cannot be split into data.shards=151',
    ),
  ],
)
def test_rows_and_shards_that_cannot_hold_the_chains_are_rejected(
  change, message
):
  with pytest.raises(UserError, match=message):
    batches_of(CHAINS, **change)
