"""Packs random chains into batches and takes them apart again, for tests."""

import collections
import dataclasses

import numpy as np

from prm_jax.data.census import BatchConfig, take_census
from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.data.examples import Example
from prm_jax.data.pipeline import ALL_SHARDS, make_batches
from prm_jax.data.targets import TargetConfig

FORMAT = make_format('bytes', 48)
TARGETS = TargetConfig(after_first_error='keep')
BATCHES = BatchConfig(
  batch_size=4,
  row_length=64,
  max_steps_per_row=12,
  seed=0,
  epochs=1,
  trees=True,
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
# Their problems are few, so they share tokens, and some trees must be split.
TREES = [
  dataclasses.replace(chain, problem=f'{i % 25}')
  for i, chain in enumerate(random_chains(150, seed=1))
]


def batches_of(chains, share=ALL_SHARDS, **changes):
  config = dataclasses.replace(BATCHES, **changes)
  census = take_census(chains, FORMAT, TARGETS, config)
  return make_batches(census, config, share)


def unpack(batch):
  """Yields every chain of a batch of tries of one chain each, as an Example."""
  for b, last in enumerate(batch['last']):
    for start in np.flatnonzero(batch['positions'][b] == 0):
      here = slice(start, last[start] + 1)
      length = last[start] + 1 - start
      np.testing.assert_array_equal(last[here], last[start])
      np.testing.assert_array_equal(
        batch['positions'][b, here], np.arange(length)
      )
      np.testing.assert_array_equal(
        batch['parents'][b, here], [-1, *range(start, last[start])]
      )
      ends = batch['step_ends'][b]
      mine = batch['step_mask'][b] & (start <= ends) & (ends <= last[start])
      assert len(set(batch['chain_ids'][b, mine])) == 1
      wanted = batch['lm_weights'][b, here]
      assert wanted[0] == 0
      yield Example(
        tokens=batch['tokens'][b, here],
        kinds=batch['kinds'][b, here],
        lm_mask=np.array([True, *wanted[1:]], bool),
        step_ends=ends[mine] - start,
        **{
          name: batch[name][b, mine]
          for name in Example._fields
          if name.startswith('step_') and name != 'step_ends'
        },
      )


def problem_of(example):
  end = example.tokens.tolist().index(3)
  return FORMAT.tokenizer.decode(example.tokens[:end])


def problems_in(batches):
  return collections.Counter(
    problem_of(example) for batch in batches for example in unpack(batch)
  )


def assert_equal(ours, theirs):
  """Compares two batches, or two Examples."""
  if isinstance(ours, Example):
    ours, theirs = ours._asdict(), theirs._asdict()
  assert ours.keys() == theirs.keys()
  for name in ours:
    np.testing.assert_array_equal(ours[name], theirs[name], name)
