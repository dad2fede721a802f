"""The training input: chains on disk to packed batches, by grain.

    chains -> encode -> shuffle, split into shards -> pack -> batch

Several chains share a row of `row_length` tokens; `segment_ids` keep them
apart and positions restart with each. The iterator's state goes into the
checkpoint, so a resumed run sees the very next batch (`shards`).
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np
from grain import experimental as grain_experimental

from prm_jax.data.chains import Chain
from prm_jax.data.encoding import DoesNotFit, StepFormat
from prm_jax.data.shards import ShardedBatches, Share
from prm_jax.data.targets import TargetConfig, step_targets
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat

# Rows that are filled at the same time; more of them leave less padding, at
# the price of memory and of how far apart in the shuffle neighbours may be.
PACKING_BINS = 128
# Encoding is light; grain's defaults (16 threads, 500 records ahead) spend more
# on their own book-keeping than on the records.
READING = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
ALONE = Share()


@dataclasses.dataclass(frozen=True)
class Census:
  """What a data set turned out to hold, counted before training.

  Attributes:
    usable: indices of chains that fit and teach something.
    steps: those of their steps that teach; tokens: all their tokens.
    truncated: usable chains that were cut at a step boundary.
    too_long: chains whose first step does not fit.
    unlabelled: chains with nothing to learn from after the targets' masks.
    longest: most steps in one usable chain.
  """

  usable: np.ndarray
  steps: int
  tokens: int
  truncated: int
  too_long: int
  unlabelled: int
  longest: int

  def summary(self) -> str:
    total = len(self.usable) + self.too_long + self.unlabelled
    return (
      f'{len(self.usable):,} of {total:,} chains '
      f'({self.truncated:,} truncated; left out: {self.too_long:,} too long, '
      f'{self.unlabelled:,} with nothing to learn from), '
      f'{self.steps:,} steps to learn from, {self.tokens:,} tokens'
    )


def encode_example(
  chain: Chain, fmt: StepFormat, targets: TargetConfig
) -> dict[str, np.ndarray]:
  """One chain as the arrays that are packed: per token [T], per step [P].

  `lm_mask` is True at the tokens that a language-model loss predicts: those of
  the whole chain for a reward model, what follows the problem for a policy.
  """
  completion = targets.supervision == 'completion'
  encode = fmt.encode_with_end if completion else fmt.encode
  encoding = encode(chain.problem, chain.steps)
  lm_mask = np.ones(len(encoding.tokens), bool)
  lm_mask[: encoding.prompt_length if completion else 0] = False
  values, weights, trials = step_targets(
    chain, len(encoding.step_ends), targets
  )
  return {
    'tokens': encoding.tokens,
    'numbers': fmt.number_tokens(encoding),
    'lm_mask': lm_mask,
    'step_ends': encoding.step_ends,
    'step_labels': values,
    'step_weights': weights,
    'step_trials': trials,
  }


def take_census(
  chains: Sequence[Chain], fmt: StepFormat, targets: TargetConfig
) -> Census:
  """Encodes every chain once; raises UserError when none is usable."""
  usable, steps, tokens = [], 0, 0
  truncated = too_long = unlabelled = longest = 0
  counting = Heartbeat('encoding chains', len(chains))
  for i in counting.over(range(len(chains))):
    chain = chains[i]
    try:
      example = encode_example(chain, fmt, targets)
    except DoesNotFit:
      too_long += 1
      continue
    if not example['step_weights'].any():
      unlabelled += 1
      continue
    usable.append(i)
    truncated += len(example['step_ends']) < len(chain.steps)
    steps += int((example['step_weights'] > 0).sum())
    tokens += len(example['tokens'])
    longest = max(longest, len(example['step_ends']))
  census = Census(
    np.asarray(usable, np.int64),
    steps,
    tokens,
    truncated,
    too_long,
    unlabelled,
    longest,
  )
  if not usable:
    raise UserError(
      f'no chain to train on: {census.summary()}; check the labels, '
      'targets.* and data.max_length'
    )
  return census


def _finish_row(row: dict[str, Any]) -> dict[str, np.ndarray]:
  """Turns what the packer emits into the batch contract, for one row.

  Step ends arrive relative to their chain; chain s starts where its segment
  id first stands.
  """
  segments = row['tokens_segment_ids'].astype(np.int32)
  chain_ids = row['step_ends_segment_ids'].astype(np.int32)
  mask = chain_ids > 0
  starts = np.searchsorted(
    np.where(segments > 0, segments, np.iinfo(np.int32).max), chain_ids
  )
  return {
    'tokens': row['tokens'],
    'numbers': row['numbers'],
    'lm_mask': row['lm_mask'],
    'positions': row['tokens_positions'].astype(np.int32),
    'segment_ids': segments,
    'step_ends': np.where(mask, row['step_ends'] + starts, 0).astype(np.int32),
    'step_mask': mask,
    'step_labels': row['step_labels'],
    'step_weights': row['step_weights'],
    'step_trials': row['step_trials'],
    'chain_ids': chain_ids,
  }


def _source_identity(chains: Sequence[Chain], usable: np.ndarray) -> str:
  digest = hashlib.sha256(usable.tobytes())
  digest.update(repr(chains[int(usable[0])]).encode())
  return digest.hexdigest()[:16]


class UsableChains:
  """The usable chains, by index: what grain reads."""

  def __init__(self, chains: Sequence[Chain], usable: np.ndarray) -> None:
    self._chains, self._usable = chains, usable

  def __len__(self) -> int:
    return len(self._usable)

  def __getitem__(self, index: int) -> Chain:
    return self._chains[int(self._usable[int(index)])]

  def __repr__(self) -> str:
    # What grain shows where it names its source.
    return f'UsableChains({_source_identity(self._chains, self._usable)})'


def make_batches(
  chains: Sequence[Chain],
  census: Census,
  fmt: StepFormat,
  targets: TargetConfig,
  *,
  batch_size: int,
  row_length: int,
  max_steps_per_row: int,
  seed: int,
  share: Share = ALONE,
  epochs: int | None = None,
) -> ShardedBatches:
  """Batches of packed rows, endless unless `epochs` is given.

  Args:
    batch_size: rows over all processes.
    row_length: tokens per row, at least `fmt.max_length`.
    max_steps_per_row: step ends per row (P).
    share: the shards that are read here, each an equal part of a batch. Shard s
      of S has every S-th chain of the shuffled ones.

  Returns:
    An iterable of dicts in the batch contract: tokens, positions, segment_ids
    [B, T] int32; numbers, lm_mask [B, T] bool; step_ends, chain_ids [B, P]
    int32; step_mask [B, P] bool; step_labels, step_weights, step_trials
    [B, P] float32.
  """
  if row_length < fmt.max_length:
    raise UserError(
      f'data.row_length={row_length} is shorter than '
      f'data.max_length={fmt.max_length}; raise it'
    )
  if max_steps_per_row < census.longest:
    raise UserError(
      f'data.max_steps_per_row={max_steps_per_row}, but a chain has '
      f'{census.longest} steps; raise it'
    )
  if len(census.usable) < share.shards:
    raise UserError(
      f'{len(census.usable):,} usable chains cannot be split into '
      f'data.shards={share.shards}; lower it, or bring more chains'
    )
  source = UsableChains(chains, census.usable)
  shuffled = grain.MapDataset.source(source).seed(seed).shuffle()
  per_token = ('tokens', 'numbers', 'lm_mask')
  per_step = ('step_ends', 'step_labels', 'step_weights', 'step_trials')

  def batches_of(shard: int) -> grain.IterDataset:
    dataset = shuffled
    if share.shards > 1:
      dataset = dataset[shard :: share.shards]
    dataset = dataset.repeat(epochs)
    dataset = dataset.map(lambda chain: encode_example(chain, fmt, targets))
    packed = grain_experimental.BestFitPackIterDataset(
      dataset.to_iter_dataset(READING),
      length_struct=dict.fromkeys(per_token, row_length)
      | dict.fromkeys(per_step, max_steps_per_row),
      num_packing_bins=PACKING_BINS,
      seed=seed,
    )
    return packed.map(_finish_row).batch(
      batch_size // share.shards, drop_remainder=epochs is None
    )

  return ShardedBatches([batches_of(shard) for shard in share.own], share)


def fill(batch: dict[str, np.ndarray]) -> float:
  """Share of tokens in a batch that are not padding."""
  return float((batch['segment_ids'] > 0).mean())
