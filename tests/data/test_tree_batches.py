"""Compares what batches of trees say about chains with the chains themselves.

A loss is a sum over tokens and steps of a weight times a function of what comes
before them. So it is the same for trees and for flat chains if every beginning
has the same weight in sum.
"""

import collections
import dataclasses

import hypothesis
import numpy as np
from hypothesis import strategies as st

from prm_jax.data.census import BatchConfig, take_census
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import DoesNotFit, make_format
from prm_jax.data.examples import encode_example
from prm_jax.data.pipeline import make_batches
from prm_jax.data.readers import read_chains
from prm_jax.data.targets import TargetConfig
from tests.data.packed_chains import (
  BATCHES,
  CHAINS,
  FORMAT,
  TARGETS,
  assert_equal,
  batches_of,
)
from tests.shared.real_data import shared

COMPLETION = TargetConfig('completion')
LABELS = (
  StepLabel(None),
  StepLabel(0.0),
  StepLabel(1.0),
  StepLabel(0.5, 'rollout', 1, 2),
  StepLabel(0.5, 'rollout', 2, 4),
)


@st.composite
def tree_chains(draw):
  """Draws chains of few problems that often begin with equal steps."""
  chains = []
  for _ in range(draw(st.integers(1, 12))):
    problem = draw(st.sampled_from(['p', 'pq', 'r']))
    steps = draw(
      st.lists(st.sampled_from(['a', 'ab', '7', 'a7']), min_size=1, max_size=5)
    )
    labels = [draw(st.sampled_from(LABELS)) for _ in steps]
    # A chain without any label would be left out.
    labels[draw(st.integers(0, len(steps) - 1))] = draw(
      st.sampled_from(LABELS[1:])
    )
    chains.append(Chain(problem, tuple(steps), labels=tuple(labels)))
  return chains


def sums_of_chains(chains, targets):
  """Returns the weights of beginnings and of steps, and all tokens."""
  tokens, steps, count = collections.Counter(), collections.Counter(), 0
  for chain in chains:
    try:
      example = encode_example(chain, FORMAT, targets)
    except DoesNotFit:
      continue
    if not example.step_weights.any():
      continue
    count += len(example.tokens)
    marked = list(zip(example.tokens, example.kinds, strict=True))
    for t in np.flatnonzero(example.lm_mask):
      if t > 0:
        tokens[tuple(marked[: t + 1])] += 1
    for end, begin, label, weight, trials in zip(*example[3:], strict=True):
      steps[(tuple(marked[: end + 1]), begin, label, trials)] += weight
  return tokens, +steps, count


def sums_of_batches(batches):
  """Returns the same of batches; reads only what a loss may read."""
  tokens, steps, count = collections.Counter(), collections.Counter(), 0
  for batch in batches:
    count += batch['flat_tokens'].sum()
    for b in range(len(batch['tokens'])):
      row = {name: value[b] for name, value in batch.items()}
      prefixes = prefixes_of(row)
      for t in np.flatnonzero(row['lm_weights']):
        assert len(prefixes[t]) > 1
        tokens[prefixes[t]] += row['lm_weights'][t]
      for p in np.flatnonzero(row['step_mask']):
        end, begin = row['step_ends'][p], row['step_begins'][p]
        key = (prefixes[end], begin, row['step_labels'][p])
        steps[(*key, row['step_trials'][p])] += row['step_weights'][p]
        t = np.arange(len(row['tokens']))
        inside = (t <= end) & (end <= row['last']) & (row['positions'] >= begin)
        step = zip(row['tokens'][inside], row['kinds'][inside], strict=True)
        assert tuple(step) == prefixes[end][begin:]
  return tokens, +steps, count


def prefixes_of(row):
  """Returns what stands before and at each token, by `last` and `parents`."""
  prefixes = []
  for t, (token, number) in enumerate(
    zip(row['tokens'], row['kinds'], strict=True)
  ):
    parent = row['parents'][t]
    assert parent < t
    before = prefixes[parent] if parent >= 0 else ()
    prefixes.append((*before, (token, number)))
    seen = np.flatnonzero(row['last'][: t + 1] >= t)
    if row['positions'][t] < 0:
      assert seen.tolist() == [t]
      continue
    assert row['positions'][t] == len(before)
    assert tuple(row['tokens'][seen]) == tuple(x for x, _ in prefixes[t])
  return prefixes


@hypothesis.given(tree_chains(), st.data())
def test_every_weight_is_that_of_the_chains(chains, data):
  targets = data.draw(st.sampled_from([TARGETS, TargetConfig(), COMPLETION]))
  steps = max(len(chain.steps) for chain in chains)
  config = BatchConfig(
    batch_size=data.draw(st.integers(1, 3)),
    row_length=data.draw(st.integers(48, 100)),
    max_steps_per_row=data.draw(st.integers(steps, 3 * steps)),
    seed=0,
    epochs=1,
    trees=data.draw(st.booleans()),
    compare_steps=data.draw(st.booleans()),
  )
  census = take_census(chains, FORMAT, targets, config)
  batches = list(make_batches(census, config))
  expected = sums_of_chains(chains, targets)
  assert sums_of_batches(batches) == expected
  assert census.tokens == expected[2]
  assert census.steps == sum(expected[1].values())
  computed = sum(int((b['positions'] >= 0).sum()) for b in batches)
  assert census.computed == computed
  if not config.trees:
    assert census.unique == census.computed == census.tokens
  assert census.unique <= census.computed <= census.tokens


@hypothesis.given(tree_chains())
def test_a_loss_that_compares_steps_finds_each_chain_whole(chains):
  config = dataclasses.replace(BATCHES, compare_steps=True)
  census = take_census(chains, FORMAT, TARGETS, config)
  names = ('step_labels', 'step_weights', 'step_trials')
  found = collections.Counter()
  for batch in make_batches(census, config):
    for b, ids in enumerate(batch['chain_ids']):
      prefixes = prefixes_of({name: x[b] for name, x in batch.items()})
      for number in range(1, ids.max() + 1):
        mine = np.flatnonzero(ids == number)
        ends = [prefixes[end] for end in batch['step_ends'][b, mine]]
        values = [tuple(batch[name][b, mine]) for name in names]
        found[(tuple(ends), *values)] += 1
  expected = collections.Counter()
  for chain in chains:
    example = encode_example(chain, FORMAT, TARGETS)
    marked = list(zip(example.tokens, example.kinds, strict=True))
    ends = [tuple(marked[: end + 1]) for end in example.step_ends]
    values = [tuple(getattr(example, name)) for name in names]
    expected[(tuple(ends), *values)] += 1
  assert found == expected


def test_equal_steps_become_one_entry_of_all_their_weight():
  right, wrong, unknown = StepLabel(1.0), StepLabel(0.0), StepLabel(None)
  chains = [
    Chain('p', ('a', 'b'), labels=(right, right)),
    Chain('p', ('a', 'c'), labels=(right, wrong)),
    Chain('p', ('a', 'd'), labels=(unknown, wrong)),
    Chain('p', ('a',), labels=(wrong,)),
    Chain('p', ('e', 'f'), labels=(unknown, right)),
  ]
  (batch,) = batches_of(chains, batch_size=1)
  mask = batch['step_mask']
  # <bos> p <problem_end> | a <end> | b <end> | c <end> | d <end> | e .. f ..
  assert batch['step_ends'][mask].tolist() == [4, 4, 6, 8, 10, 12, 14]
  assert batch['step_begins'][mask].tolist() == [3, 3, 5, 5, 5, 3, 5]
  assert batch['step_labels'][mask].tolist() == [0, 1, 1, 0, 0, 0, 1]
  assert batch['step_weights'][mask].tolist() == [1, 2, 1, 1, 1, 0, 1]
  assert batch['chain_ids'][mask].tolist() == [4, 1, 1, 2, 3, 5, 5]
  assert batch['flat_tokens'].tolist() == [4 * 7 + 5]
  assert (batch['positions'] >= 0).sum() == 3 + 6 * 2
  assert batch['lm_weights'][0, :6].tolist() == [0, 5, 5, 4, 4, 1]


def census_of(chains, row_length):
  rows = dataclasses.replace(BATCHES, row_length=row_length)
  return take_census(chains, FORMAT, TARGETS, rows)


def test_the_census_counts_what_is_shared_and_what_splitting_repeats():
  ends = ('a' * 14, 'b' * 14, 'c' * 14)
  chains = [
    Chain('p', ('x' * 8, end), labels=(StepLabel(1.0), StepLabel(1.0)))
    for end in ends
  ] + [Chain('q', ('x',), labels=(StepLabel(1.0),))]
  # 3 tokens of the problem, 9 of the first step, and 15 of each second one.
  whole = census_of(chains, 3 + 9 + 3 * 15)
  assert (whole.tokens, whole.unique, whole.computed) == (86, 62, 62)
  assert [group.tolist() for group in whole.groups] == [[0, 1, 2], [3]]
  assert whole.summary() == (
    '4 of 4 chains (0 truncated; left out: 0 too long, 0 with nothing to learn '
    'from), 7 steps to learn from, 86 tokens, of which 62 unique (1.39 times '
    'fewer), in 2 trees; 0 repeated where a tree was split'
  )
  split = census_of(chains, 3 + 9 + 3 * 15 - 1)
  assert [group.tolist() for group in split.groups] == [[0, 1], [2], [3]]
  assert (split.tokens, split.unique, split.computed) == (86, 62, 74)
  assert '3 trees; 12 repeated where' in split.summary()


def test_nothing_changes_where_no_two_chains_share_a_problem():
  trees, flat = (list(batches_of(CHAINS, trees=x)) for x in (True, False))
  for ours, theirs in zip(trees, flat, strict=True):
    assert_equal(ours, theirs)


def test_raw_prm800k_sessions_keep_their_shape():
  path = shared('format_samples/samples_prm800k.jsonl')
  chains, _ = read_chains(path, 'prm800k')
  fmt = make_format('bytes', 2048)
  rows = BatchConfig(1, 2048, max_steps_per_row=128, seed=0, trees=True)
  census = take_census(chains, fmt, TARGETS, rows)
  assert census.tokens / census.unique > 4
  assert census.computed == census.unique
  assert len(census.groups) == 4  # one for each session


def test_texts_that_are_split_differently_share_what_comes_before():
  """The separator is text that a step may contain."""
  fmt = dataclasses.replace(FORMAT, separator=FORMAT.tokenizer.encode(';'))
  right = StepLabel(1.0)
  chains = [
    Chain('p', ('a', 'b'), labels=(right,) * 2),
    Chain('p', ('a;b',), labels=(right,)),
  ]
  ids, same = (fmt.encode('p', chain.steps).tokens for chain in chains)
  np.testing.assert_array_equal(ids, same)
  census = take_census(chains, fmt, TARGETS, BATCHES)
  assert [group.tolist() for group in census.groups] == [[0, 1]]
  # Shared are the four tokens up to the first letter of the step.
  assert census.unique == 2 * len(ids) - 4
