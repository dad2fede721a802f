"""Makes the training input: chains on disk become packed batches, by grain.

    chains -> take_census -> shuffle, split into shards -> encode -> pack
      -> batch -> training loop

Several chains share a row of tokens; `last` keeps them apart, and the
positions of each start at 0. `shards` saves the iterator's state with the
checkpoint, so a resumed run continues with the very next batch.
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

# Number of rows that are filled at the same time. More rows leave less padding
# but need more memory, and chains of a row lie further apart in the shuffle.
PACKING_BINS = 128
# Encoding is cheap: grain's defaults (16 threads, 500 records ahead) spend more
# time on book-keeping than on the records.
READ_OPTIONS = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
ALL_SHARDS = Share()


@dataclasses.dataclass(frozen=True)
class Census:
  """Counts what a data set holds for training.

  Attributes:
    usable: indices of the chains that fit and have something to learn from.
    steps: number of steps of usable chains whose weight is not 0.
    tokens: number of tokens of usable chains.
    truncated: number of usable chains that were cut after a step.
    too_long: number of chains whose first step does not fit.
    unlabelled: number of chains whose steps all have weight 0.
    longest: number of steps of the longest usable chain.
  """

  usable: np.ndarray  # [chains] int64
  steps: int
  tokens: int
  truncated: int
  too_long: int
  unlabelled: int
  longest: int

  def summary(self) -> str:
    """Returns the counts as one line for the log."""
    total = len(self.usable) + self.too_long + self.unlabelled
    return (
      f'{len(self.usable):,} of {total:,} chains '
      f'({self.truncated:,} truncated; left out: {self.too_long:,} too long, '
      f'{self.unlabelled:,} with nothing to learn from), '
      f'{self.steps:,} steps to learn from, {self.tokens:,} tokens'
    )


@dataclasses.dataclass(frozen=True)
class BatchConfig:
  """Says what batches look like and in which order chains enter them.

  Attributes:
    batch_size: number of rows over all processes.
    row_length: tokens per row, at least the format's `max_length`.
    max_steps_per_row: step ends per row (P).
    seed: seed of the shuffle.
    epochs: how often every chain is read; None repeats without end.
  """

  batch_size: int
  row_length: int
  max_steps_per_row: int
  seed: int
  epochs: int | None = None


def encode_example(
  chain: Chain, fmt: StepFormat, targets: TargetConfig
) -> dict[str, np.ndarray]:
  """Returns the arrays of one chain that are packed into a row.

  Arrays have one entry per token, [T], or per step, [P]. `lm_mask` marks the
  tokens that a language-model loss predicts: all tokens for a reward model, the
  tokens after the problem for a policy.
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
  """Encodes every chain once and counts; raises UserError if none is usable."""
  usable, steps, tokens = [], 0, 0
  truncated = too_long = unlabelled = longest = 0
  heartbeat = Heartbeat('encoding chains', len(chains))
  for i in heartbeat.over(range(len(chains))):
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
  """Turns a row of the packer into a row of the batch that training reads.

  The packer leaves step ends relative to their chain. They become relative to
  the row: chain s starts where segment id s first occurs.
  """
  segments = row['tokens_segment_ids'].astype(np.int32)
  chain_ids = row['step_ends_segment_ids'].astype(np.int32)
  mask, real = chain_ids > 0, segments > 0
  sorted_ids = np.where(real, segments, np.iinfo(np.int32).max)
  starts = np.searchsorted(sorted_ids, chain_ids)
  at = np.arange(len(segments), dtype=np.int32)
  ends = np.searchsorted(sorted_ids, segments, side='right') - 1
  positions = np.where(real, row['tokens_positions'], -1).astype(np.int32)
  inside = positions > 0
  step_ends = row['step_ends']
  begins = np.pad(step_ends[:-1] + 1, (1, 0))
  begins[1:][chain_ids[1:] != chain_ids[:-1]] = 0
  return {
    'tokens': row['tokens'],
    'numbers': row['numbers'],
    'lm_weights': (row['lm_mask'] & inside).astype(np.float32),
    'positions': positions,
    'last': np.where(real, ends, at).astype(np.int32),
    'parents': np.where(inside, at - 1, -1).astype(np.int32),
    'step_ends': np.where(mask, step_ends + starts, 0).astype(np.int32),
    'step_begins': np.where(mask, begins, 0).astype(np.int32),
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
  """Gives grain random access to the usable chains."""

  def __init__(self, chains: Sequence[Chain], usable: np.ndarray) -> None:
    self._chains, self._usable = chains, usable

  def __len__(self) -> int:
    return len(self._usable)

  def __getitem__(self, index: int) -> Chain:
    return self._chains[int(self._usable[int(index)])]

  def __repr__(self) -> str:
    # Grain shows this where it names its source.
    return f'UsableChains({_source_identity(self._chains, self._usable)})'


def make_batches(
  chains: Sequence[Chain],
  census: Census,
  fmt: StepFormat,
  targets: TargetConfig,
  config: BatchConfig,
  share: Share = ALL_SHARDS,
) -> ShardedBatches:
  """Shuffles, encodes and packs the usable chains into batches.

  Args:
    census: what `take_census` counted with the same format and targets.
    share: the shards that this process reads; all chains by default. Shard s of
      S holds every S-th chain of the shuffled ones and fills an equal part of
      each batch.

  Returns:
    An iterable of batches, dicts of these arrays:
    tokens, positions, last, parents: [B, T] int32, see `models.Rows`.
    numbers: [B, T] bool.
    lm_weights: [B, T] float32, 1 for the tokens of `encode_example`'s lm_mask
      that have one before them.
    step_ends, step_begins, chain_ids: [B, P] int32; chain id 0 is padding.
    step_mask: [B, P] bool, True where there is a step.
    step_labels, step_weights, step_trials: [B, P] float32.

  Raises:
    UserError: a row is too short for a chain, or there are more shards than
      usable chains.
  """
  if config.row_length < fmt.max_length:
    raise UserError(
      f'data.row_length={config.row_length} is shorter than '
      f'data.max_length={fmt.max_length}; raise it'
    )
  if config.max_steps_per_row < census.longest:
    raise UserError(
      f'data.max_steps_per_row={config.max_steps_per_row}, but a chain has '
      f'{census.longest} steps; raise it'
    )
  if len(census.usable) < share.shards:
    raise UserError(
      f'{len(census.usable):,} usable chains cannot be split into '
      f'data.shards={share.shards}; lower it, or bring more chains'
    )
  source = UsableChains(chains, census.usable)
  shuffled = grain.MapDataset.source(source).seed(config.seed).shuffle()
  per_token = ('tokens', 'numbers', 'lm_mask')
  per_step = ('step_ends', 'step_labels', 'step_weights', 'step_trials')

  def batches_of(shard: int) -> grain.IterDataset:
    dataset = shuffled
    if share.shards > 1:
      dataset = dataset[shard :: share.shards]
    dataset = dataset.repeat(config.epochs)
    dataset = dataset.map(lambda chain: encode_example(chain, fmt, targets))
    packed = grain_experimental.BestFitPackIterDataset(
      dataset.to_iter_dataset(READ_OPTIONS),
      length_struct=dict.fromkeys(per_token, config.row_length)
      | dict.fromkeys(per_step, config.max_steps_per_row),
      num_packing_bins=PACKING_BINS,
      seed=config.seed,
    )
    return packed.map(_finish_row).batch(
      config.batch_size // share.shards, drop_remainder=config.epochs is None
    )

  return ShardedBatches([batches_of(shard) for shard in share.own], share)


def fill_rate(batch: dict[str, np.ndarray]) -> float:
  """Returns the share of tokens in a batch that are not padding."""
  return float((batch['positions'] >= 0).mean())
