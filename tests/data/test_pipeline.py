"""Packed batches against the encodings of their chains, one by one."""

import asyncio
import collections
import itertools

import numpy as np
import pytest

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import (
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
SHAPES = dict(row_length=64, max_steps_per_row=12, seed=0)
UNKNOWN = StepLabel(None)


def some_chains(count, seed=0):
  """Chains of odd lengths; the problem's number makes each unlike others."""
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


CHAINS = some_chains(150)


def batches_of(chains, batch_size=4, epochs=1, fmt=FORMAT, **more):
  census = take_census(chains, fmt, TARGETS)
  return make_batches(
    chains,
    census,
    fmt,
    TARGETS,
    batch_size=batch_size,
    epochs=epochs,
    **SHAPES | more,
  )


def unpacked(batch):
  """Every chain of a batch as what encode_example would have given."""
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
    problem_of(example) for batch in batches for example in unpacked(batch)
  )


def assert_equal(ours, theirs):
  assert ours.keys() == theirs.keys()
  for name in ours:
    np.testing.assert_array_equal(ours[name], theirs[name], name)


def test_an_epoch_holds_every_chain_once_and_in_line():
  by_problem = {chain.problem: chain for chain in CHAINS}
  seen = collections.Counter()
  for batch in batches_of(CHAINS):
    for example in unpacked(batch):
      problem = problem_of(example)
      seen[problem] += 1
      expected = encode_example(by_problem[problem], FORMAT, TARGETS)
      assert_equal(example, expected)
  assert seen == collections.Counter(by_problem.keys())


def test_a_policy_learns_what_follows_the_problem():
  chain = Chain('ab', ('c', 'de'), labels=(StepLabel(1.0), StepLabel(0.0)))
  of_policy = encode_example(chain, FORMAT, TargetConfig('completion'))
  of_reward = encode_example(chain, FORMAT, TARGETS)
  # <bos> a b <problem_end> | c <step_end> | d e <step_end> | <problem_end>
  assert of_policy['lm_mask'].tolist() == [False] * 4 + [True] * 6
  assert of_policy['tokens'][-1] == FORMAT.end
  assert of_reward['lm_mask'].tolist() == [True] * 9
  np.testing.assert_array_equal(of_policy['tokens'][:-1], of_reward['tokens'])


def test_the_batch_contract():
  batches = list(batches_of(CHAINS, batch_size=4))
  for batch in batches:
    rows = len(batch['tokens'])
    assert rows == 4 or batch is batches[-1]
    for name in ('tokens', 'positions', 'segment_ids'):
      assert batch[name].shape == (rows, 64)
      assert batch[name].dtype == np.int32
    for name in ('numbers', 'lm_mask'):
      assert batch[name].shape == (rows, 64)
      assert batch[name].dtype == np.bool_
    for name in ('step_ends', 'chain_ids'):
      assert batch[name].shape == (rows, 12)
      assert batch[name].dtype == np.int32
    for name in ('step_labels', 'step_weights', 'step_trials'):
      assert batch[name].shape == (rows, 12)
      assert batch[name].dtype == np.float32
    mask = batch['step_mask']
    assert mask.dtype == np.bool_
    assert not batch['step_weights'][~mask].any()
    assert not batch['tokens'][batch['segment_ids'] == 0].any()
    # Where a score is read there stands a separator, and nowhere else.
    ends = np.zeros(batch['tokens'].shape, bool)
    rows_of = np.nonzero(mask)[0]
    ends[rows_of, batch['step_ends'][mask]] = True
    np.testing.assert_array_equal(ends, batch['tokens'] == STEP_END)


def test_packing_pays():
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
  order = [problem_of(x) for b in twice for x in unpacked(b)]
  assert order[:20] != order[len(CHAINS) : len(CHAINS) + 20]


def test_the_seed_decides_the_order():
  first, again, other = (
    list(batches_of(CHAINS, seed=seed)) for seed in (1, 1, 2)
  )
  for ours, theirs in zip(first, again, strict=True):
    assert_equal(ours, theirs)

  def neighbours(batches):
    """The chains that share a row, whatever the order of the rows."""
    return {
      frozenset(problems_in([{k: x[b : b + 1] for k, x in batch.items()}]))
      for batch in batches
      for b in range(len(batch['tokens']))
    }

  # Not the rows alone are shuffled: the chains were, before they were packed.
  common = neighbours(first) & neighbours(other)
  assert len(common) < len(neighbours(first)) / 4


def of_shards(*own, shards=4, **more):
  """The batches of a process that reads these shards."""
  return batches_of(CHAINS, share=Share(shards, own, own), **more)


@pytest.mark.parametrize(
  'processes', [[(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0,), (1,), (2,), (3,)]]
)
def test_processes_share_an_epoch(processes):
  parts = [list(of_shards(*own)) for own in processes]
  for own, part in zip(processes, parts, strict=True):
    assert {len(batch['tokens']) for batch in part[:-1]} == {len(own)}
  once = problems_in(batches_of(CHAINS))
  assert set(once.values()) == {1}
  assert sum(map(problems_in, parts), collections.Counter()) == once
  # Later epochs too, although each draws another order.
  later = [problems_in(of_shards(*own, epochs=3)) for own in processes]
  assert set(sum(later, collections.Counter()).values()) == {3}


def test_any_number_of_processes_reads_the_same_batches():
  """Rows in shard order, so that process after process they are the batch."""
  streams = [
    iter(of_shards(*own, epochs=None, batch_size=8))
    for own in ((0, 1, 2, 3), (0, 1), (2, 3), (0,), (1,), (2,), (3,))
  ]
  for _ in range(30):
    whole, *parts = map(next, streams)
    for of_some in (parts[:2], parts[2:]):
      joined = {
        name: np.concatenate([part[name] for part in of_some]) for name in whole
      }
      assert_equal(joined, whole)


def test_another_number_of_processes_goes_on(tmp_path):
  """What two processes saved, one and four read: the very next batch."""

  class Made:
    """A folder that is there, as Orbax hands it out."""

    async def await_creation(self):
      return tmp_path

  async def both(awaitable):
    await (await awaitable)

  def stream(*own):
    return iter(of_shards(*own, epochs=None, batch_size=8))

  pair = stream(0, 1), stream(2, 3)
  for part in pair:
    for _ in range(9):
      next(part)
    asyncio.run(both(part.save(Made())))
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    f'shard_{i}-of-4.json' for i in range(4)
  ]
  whole, quarter = stream(0, 1, 2, 3), stream(2)
  for part in (whole, quarter):
    asyncio.run(both(part.load(tmp_path)))
  expected = np.concatenate([next(part)['tokens'] for part in pair])
  np.testing.assert_array_equal(next(whole)['tokens'], expected)
  np.testing.assert_array_equal(next(quarter)['tokens'], expected[4:6])
  halves = iter(of_shards(0, 1, shards=2))
  with pytest.raises(UserError, match=r'in 4 shards up to this .* now in 2; '):
    asyncio.run(both(halves.load(tmp_path)))


ROWS = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}


@pytest.mark.parametrize(
  ('rows', 'shards', 'here', 'expected'),
  [
    (ROWS, 0, 0, Share(2, (0,), (0,))),
    (ROWS, 0, 1, Share(2, (1,), (1,))),
    (ROWS, 8, 1, Share(8, (4, 5, 6, 7), (4, 5, 6, 7))),
    # A mesh whose order is not that of the processes.
    ({0: {0, 1, 6, 7}, 1: {2, 3, 4, 5}}, 4, 0, Share(4, (0, 3), (0, 3))),
    # 0 and 1 are one in tensor parallelism, and so are 2 and 3.
    (ROWS | {2: ROWS[1], 1: ROWS[0], 3: ROWS[1]}, 0, 1, Share(2, (0,), ())),
    (ROWS | {2: ROWS[1], 1: ROWS[0], 3: ROWS[1]}, 0, 2, Share(2, (1,), (1,))),
  ],
)
def test_a_process_reads_the_rows_of_its_devices(rows, shards, here, expected):
  assert share_of_rows(rows, here, 8, shards) == expected


@pytest.mark.parametrize(
  ('rows', 'shards', 'message'),
  [
    (ROWS, 3, 'data.shards=3 .* the 8 rows .* one of 2, 4, 8, or to 0: 2'),
    (ROWS, -1, 'data.shards=-1 does not divide'),
    (ROWS, 1, 'data.shards=1 .* set it to one of 2, 4, 8, or to 0: 2'),
    ({0: {*range(5)}, 1: {5, 6, 7}}, 4, 'data.shards=4 .* set it to one of 8'),
  ],
)
def test_shards_that_cannot_be_read(rows, shards, message):
  with pytest.raises(UserError, match=message):
    share_of_rows(rows, 0, 8, shards)


@pytest.mark.parametrize('consumed', [0, 7, 70])
def test_a_restored_iterator_gives_the_same_next_batches(consumed):
  """Within the bins that are being emitted, and past their end."""
  dataset = batches_of(CHAINS, batch_size=2, epochs=None)
  iterator = iter(dataset)
  for _ in range(consumed):
    next(iterator)
  state = iterator.get_state()
  expected = [next(iterator) for _ in range(5)]

  fresh = iter(batches_of(CHAINS, batch_size=2, epochs=None))
  fresh.set_state(state)
  for batch in expected:
    assert_equal(next(fresh), batch)
  # And in an iterator that is somewhere else.
  iterator.set_state(state)
  assert_equal(next(iterator), expected[0])


def test_endless_batches_are_whole():
  batches = itertools.islice(batches_of(CHAINS[:30], epochs=None), 20)
  assert {len(batch['tokens']) for batch in batches} == {4}


def known(*values):
  return tuple(StepLabel(value) for value in values)


def test_census():
  fmt = make_format('bytes', 10)  # <bos> p <problem_end>, then 7 tokens
  chains = [
    Chain('p', ('aa', 'bbb'), labels=known(1.0, 0.0)),  # 3 + 3 + 4: fits
    Chain('p', ('aa', 'bbbb'), labels=known(1.0, 0.0)),  # cut after a step
    Chain('p', ('aaaaaaa',), labels=known(1.0)),  # too long
    Chain('p', ('a', 'b')),  # no labels
    Chain('p', ('a', 'b'), labels=(UNKNOWN, UNKNOWN)),
    Chain('p', ('aa', 'bbbb'), labels=(UNKNOWN, *known(1.0))),  # cut away
    Chain('p', ('a', 'b', 'c'), labels=(UNKNOWN, *known(0.5, 1.0))),
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


def test_what_the_census_leaves_out_is_never_drawn():
  chains = some_chains(30)
  chains[3] = Chain('blank', ('a',), labels=(UNKNOWN,))
  chains[8] = Chain('long', ('a' * 60,), labels=known(1.0))
  census = take_census(chains, FORMAT, TARGETS)
  assert (census.unlabelled, census.too_long) == (1, 1)
  drawn = problems_in(batches_of(chains))
  assert drawn == collections.Counter(
    chain.problem for i, chain in enumerate(chains) if i not in (3, 8)
  )


def test_a_truncated_chain_keeps_its_first_steps():
  chain = Chain('p', ('a' * 20, 'b' * 20, 'cccc'), labels=known(1.0, 0.0, 1.0))
  (batch,) = batches_of([chain], batch_size=1)
  (example,) = unpacked(batch)
  np.testing.assert_array_equal(example['step_labels'], [1.0, 0.0])
  np.testing.assert_array_equal(example['step_ends'], [23, 44])


def test_nothing_to_train_on():
  chains = [
    Chain('p', ('a',)),
    Chain('p', ('a' * 99,), labels=known(1.0)),
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
def test_shapes_that_cannot_work(change, message):
  with pytest.raises(UserError, match=message):
    batches_of(CHAINS, **change)
