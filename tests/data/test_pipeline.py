"""Compares packed batches with the separate encodings of their chains."""

import asyncio
import collections
import dataclasses
import itertools

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import (
  ALL_SHARDS,
  BatchConfig,
  encode_example,
  fill,
  make_batches,
  take_census,
)
from prm_jax.data.shards import Share, share_of_rows
from prm_jax.data.targets import TargetConfig
from prm_jax.data.tokenizer import STEP_END
from prm_jax.runtime.errors import UserError

FORMAT = make_format('bytes', 48)
TARGETS = TargetConfig(after_first_error='keep')
BATCHES = BatchConfig(
  batch_size=4, row_length=64, max_steps_per_row=12, seed=0, epochs=1
)
UNKNOWN = StepLabel(None)


def random_chains(count, seed=0):
  """Returns chains of random lengths; each has a problem of its own."""
  rng = np.random.default_rng(seed)
  chains = []
  for i in range(count):
    steps = tuple('x' * n for n in rng.integers(1, 8, rng.integers(1, 5)))
    labels = []
    for _ in steps:
      trials = int(rng.integers(1, 9))
      successes = int(rng.integers(0, trials + 1))
      known = StepLabel(successes / trials, 'rollout', successes, trials)
      labels.append(known if rng.random() < 0.8 else UNKNOWN)
    labels[0] = StepLabel(1.0)
    chains.append(Chain(f'{i}', steps, labels=tuple(labels)))
  return chains


CHAINS = random_chains(150)


def batches_of(chains, share=ALL_SHARDS, **changes):
  census = take_census(chains, FORMAT, TARGETS)
  config = dataclasses.replace(BATCHES, **changes)
  return make_batches(chains, census, FORMAT, TARGETS, config, share)


def unpack(batch):
  """Yields every chain of a batch in the form that encode_example returns."""
  for b, s in itertools.product(range(len(batch['tokens'])), range(1, 65)):
    inside = batch['segment_ids'][b] == s
    mine = batch['chain_ids'][b] == s
    assert inside.any() == mine.any()
    if not inside.any():
      continue
    start = int(np.argmax(inside))
    assert inside[start : start + inside.sum()].all()
    np.testing.assert_array_equal(
      batch['positions'][b, inside], np.arange(inside.sum())
    )
    per_step = ('step_labels', 'step_weights', 'step_trials')
    yield {
      'tokens': batch['tokens'][b, inside],
      'numbers': batch['numbers'][b, inside],
      'lm_mask': batch['lm_mask'][b, inside],
      'step_ends': batch['step_ends'][b, mine] - start,
    } | {name: batch[name][b, mine] for name in per_step}


def problem_of(example):
  end = example['tokens'].tolist().index(3)
  return FORMAT.tokenizer.decode(example['tokens'][:end])


def problems_in(batches):
  return collections.Counter(
    problem_of(example) for batch in batches for example in unpack(batch)
  )


def assert_equal(ours, theirs):
  assert ours.keys() == theirs.keys()
  for name in ours:
    np.testing.assert_array_equal(ours[name], theirs[name], name)


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
  assert of_policy['lm_mask'].tolist() == [False] * 4 + [True] * 6
  assert of_policy['tokens'][-1] == FORMAT.end
  assert of_reward['lm_mask'].tolist() == [True] * 9
  np.testing.assert_array_equal(of_policy['tokens'][:-1], of_reward['tokens'])


def test_shapes_dtypes_and_step_ends_of_batches():
  batches = list(batches_of(CHAINS))
  for batch in batches:
    rows = len(batch['tokens'])
    assert rows == 4 or batch is batches[-1]
    for names, length, dtype in (
      ('tokens positions segment_ids', 64, np.int32),
      ('numbers lm_mask', 64, np.bool_),
      ('step_ends chain_ids', 12, np.int32),
      ('step_labels step_weights step_trials', 12, np.float32),
      ('step_mask', 12, np.bool_),
    ):
      for name in names.split():
        assert batch[name].shape == (rows, length)
        assert batch[name].dtype == dtype
    mask = batch['step_mask']
    assert not batch['step_weights'][~mask].any()
    assert not batch['tokens'][batch['segment_ids'] == 0].any()
    # Scores are read at separators, and at every separator.
    ends = np.zeros(batch['tokens'].shape, bool)
    rows_of = np.nonzero(mask)[0]
    ends[rows_of, batch['step_ends'][mask]] = True
    np.testing.assert_array_equal(ends, batch['tokens'] == STEP_END)


def test_packing_leaves_little_padding():
  batches = list(batches_of(CHAINS))
  tokens = take_census(CHAINS, FORMAT, TARGETS).tokens
  real = sum(int((b['segment_ids'] > 0).sum()) for b in batches)
  assert real == tokens
  assert real / sum(b['tokens'].size for b in batches) > 0.85
  assert max(batch['chain_ids'].max() for batch in batches) > 2
  assert fill({'segment_ids': np.array([[1, 1, 2, 0]])}) == 0.75


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


def batches_of_shards(*own, shards=4, **changes):
  """Returns the batches of a process that reads these shards."""
  return batches_of(CHAINS, Share(shards, own, own), **changes)


@pytest.mark.parametrize(
  'processes', [[(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0,), (1,), (2,), (3,)]]
)
def test_processes_share_an_epoch(processes):
  parts = [list(batches_of_shards(*own)) for own in processes]
  for own, part in zip(processes, parts, strict=True):
    assert {len(batch['tokens']) for batch in part[:-1]} == {len(own)}
  once = problems_in(batches_of(CHAINS))
  assert set(once.values()) == {1}
  assert sum(map(problems_in, parts), collections.Counter()) == once
  # The same holds for later epochs, which have another order.
  later = [problems_in(batches_of_shards(*own, epochs=3)) for own in processes]
  assert set(sum(later, collections.Counter()).values()) == {3}


def endless(*own):
  return iter(batches_of_shards(*own, epochs=None, batch_size=8))


def test_any_number_of_processes_reads_the_same_batches():
  """Joins the parts of two and of four processes to the whole batch."""
  streams = [
    endless(*own)
    for own in ((0, 1, 2, 3), (0, 1), (2, 3), (0,), (1,), (2,), (3,))
  ]
  for _ in range(30):
    whole, *parts = map(next, streams)
    for run in (parts[:2], parts[2:]):
      joined = {
        name: np.concatenate([part[name] for part in run]) for name in whole
      }
      assert_equal(joined, whole)


class Created:
  """Stands for the folder that Orbax creates in the background."""

  def __init__(self, folder):
    self.folder = folder

  async def await_creation(self):
    return self.folder


async def await_both(awaitable):
  await (await awaitable)


def save(iterator, folder):
  asyncio.run(await_both(iterator.save(Created(folder))))


def load(iterator, folder):
  asyncio.run(await_both(iterator.load(folder)))


def test_a_run_continues_with_another_number_of_processes(tmp_path):
  """Saves from two processes; one and four processes read the next batch."""
  pair = endless(0, 1), endless(2, 3)
  for part in pair:
    for _ in range(9):
      next(part)
    save(part, tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    f'shard_{i}-of-4.json' for i in range(4)
  ]
  whole, quarter = endless(0, 1, 2, 3), endless(2)
  for part in (whole, quarter):
    load(part, tmp_path)
  expected = np.concatenate([next(part)['tokens'] for part in pair])
  np.testing.assert_array_equal(next(whole)['tokens'], expected)
  np.testing.assert_array_equal(next(quarter)['tokens'], expected[4:6])
  halves = iter(batches_of_shards(0, 1, shards=2))
  with pytest.raises(UserError, match=r'in 4 shards, now they are in 2; start'):
    load(halves, tmp_path)


@pytest.mark.parametrize('consumed', [0, 7, 70])
def test_a_restored_iterator_gives_the_same_next_batches(tmp_path, consumed):
  """Restores within the first packing bins and past their end."""
  iterator, fresh = (
    iter(batches_of(CHAINS, batch_size=2, epochs=None)) for _ in range(2)
  )
  for _ in range(consumed):
    next(iterator)
  save(iterator, tmp_path)
  expected = [next(iterator) for _ in range(5)]
  load(fresh, tmp_path)
  for batch in expected:
    assert_equal(next(fresh), batch)
  # An iterator that has moved on returns to the position, too.
  load(iterator, tmp_path)
  assert_equal(next(iterator), expected[0])


ROWS = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}


@pytest.mark.parametrize(
  ('rows', 'shards', 'process', 'expected'),
  [
    (ROWS, 0, 0, Share(2, (0,), (0,))),
    (ROWS, 0, 1, Share(2, (1,), (1,))),
    (ROWS, 8, 1, Share(8, (4, 5, 6, 7), (4, 5, 6, 7))),
    # The order of the mesh is not that of the processes.
    ({0: {0, 1, 6, 7}, 1: {2, 3, 4, 5}}, 4, 0, Share(4, (0, 3), (0, 3))),
    # Processes 0 and 1 are a tensor-parallel group, and so are 2 and 3.
    (ROWS | {2: ROWS[1], 1: ROWS[0], 3: ROWS[1]}, 0, 1, Share(2, (0,), ())),
    (ROWS | {2: ROWS[1], 1: ROWS[0], 3: ROWS[1]}, 0, 2, Share(2, (1,), (1,))),
  ],
)
def test_a_process_reads_the_rows_of_its_devices(
  rows, shards, process, expected
):
  assert share_of_rows(rows, process, 8, shards) == expected


@pytest.mark.parametrize(
  ('rows', 'shards', 'message'),
  [
    (ROWS, 3, 'data.shards=3 .* the 8 rows .* one of 2, 4, 8, or to 0: 2'),
    (ROWS, -1, 'data.shards=-1 does not divide'),
    (ROWS, 1, 'data.shards=1 .* set it to one of 2, 4, 8, or to 0: 2'),
    ({0: {*range(5)}, 1: {5, 6, 7}}, 4, 'data.shards=4 .* set it to one of 8'),
  ],
)
def test_impossible_numbers_of_shards_are_rejected(rows, shards, message):
  with pytest.raises(UserError, match=message):
    share_of_rows(rows, 0, 8, shards)


def test_endless_batches_are_full():
  batches = itertools.islice(batches_of(CHAINS[:30], epochs=None), 20)
  assert {len(batch['tokens']) for batch in batches} == {4}


def labels_of(*values):
  return tuple(StepLabel(value) for value in values)


def test_the_census_counts_what_can_be_learned():
  fmt = make_format('bytes', 10)  # <bos> p <problem_end>, then 7 tokens
  chains = [
    Chain('p', ('aa', 'bbb'), labels=labels_of(1.0, 0.0)),  # 3 + 3 + 4: fits
    Chain('p', ('aa', 'bbbb'), labels=labels_of(1.0, 0.0)),  # cut after a step
    Chain('p', ('aaaaaaa',), labels=labels_of(1.0)),  # too long
    Chain('p', ('a', 'b')),  # no labels
    Chain('p', ('a', 'b'), labels=labels_of(None, None)),
    Chain('p', ('aa', 'bbbb'), labels=labels_of(None, 1.0)),  # label cut away
    Chain('p', ('a', 'b', 'c'), labels=labels_of(None, 0.5, 1.0)),
  ]
  census = take_census(chains, fmt, TargetConfig())
  np.testing.assert_array_equal(census.usable, [0, 1, 6])
  assert census.steps == 2 + 1 + 2
  assert census.tokens == 10 + 6 + 9
  assert census.truncated == 1
  assert census.too_long == 1
  assert census.unlabelled == 3
  assert census.longest == 3
  assert census.summary() == (
    '3 of 7 chains (1 truncated; left out: 1 too long, 3 with nothing to '
    'learn from), 5 steps to learn from, 25 tokens'
  )


def test_batches_hold_only_chains_that_the_census_calls_usable():
  chains = random_chains(30)
  chains[3] = Chain('blank', ('a',), labels=(UNKNOWN,))
  chains[8] = Chain('long', ('a' * 60,), labels=labels_of(1.0))
  census = take_census(chains, FORMAT, TARGETS)
  assert (census.unlabelled, census.too_long) == (1, 1)
  assert problems_in(batches_of(chains)) == collections.Counter(
    chain.problem for i, chain in enumerate(chains) if i not in (3, 8)
  )


def test_a_truncated_chain_keeps_its_first_steps():
  steps = ('a' * 20, 'b' * 20, 'cccc')
  chain = Chain('p', steps, labels=labels_of(1.0, 0.0, 1.0))
  (batch,) = batches_of([chain], batch_size=1)
  (example,) = unpack(batch)
  np.testing.assert_array_equal(example['step_labels'], [1.0, 0.0])
  np.testing.assert_array_equal(example['step_ends'], [23, 44])


def test_a_data_set_without_usable_chains_is_rejected():
  chains = [
    Chain('p', ('a',)),
    Chain('p', ('a' * 99,), labels=labels_of(1.0)),
    Chain('p', ('a',), labels=(UNKNOWN,)),
  ]
  with pytest.raises(
    UserError,
    match=r'no chain to train on: 0 of 3 .* 1 too long, 2 with nothing',
  ):
    take_census(chains, FORMAT, TARGETS)


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
      '150 usable chains cannot be split into data.shards=151',
    ),
  ],
)
def test_rows_and_shards_that_cannot_hold_the_chains_are_rejected(
  change, message
):
  with pytest.raises(UserError, match=message):
    batches_of(CHAINS, **change)
