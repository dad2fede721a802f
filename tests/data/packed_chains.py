"""Packs random chains into batches and takes them apart again, for tests."""

import collections
import dataclasses
import itertools

import numpy as np

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.encoding import make_format
from prm_jax.data.pipeline import (
  ALL_SHARDS,
  BatchConfig,
  make_batches,
  take_census,
)
from prm_jax.data.targets import TargetConfig

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
    mine = batch['chain_ids'][b] == s
    if not mine.any():
      continue
    end = batch['last'][b, batch['step_ends'][b, mine][0]]
    inside = batch['last'][b] == end
    start = int(np.argmax(inside))
    assert inside[start : start + inside.sum()].all()
    np.testing.assert_array_equal(
      batch['positions'][b, inside], np.arange(inside.sum())
    )
    per_step = ('step_labels', 'step_weights', 'step_trials')
    yield {
      'tokens': batch['tokens'][b, inside],
      'numbers': batch['numbers'][b, inside],
      'lm_weights': batch['lm_weights'][b, inside],
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
