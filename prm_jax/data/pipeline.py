"""Makes the training input: chains on disk become packed batches, by grain.

    chains -> take_census -> tries of the chains of a problem -> shuffle, split
      into shards -> pack -> batch -> training loop

A row holds several tries, each in depth-first order. `last` says which tokens
see each other, so they stay apart, and positions are depths. `shards` saves
the iterator's state with the checkpoint, so a resumed run continues with the
very next batch.
"""

from typing import Any

import grain
import numpy as np
from grain import experimental as grain_experimental

from prm_jax.data.census import BatchConfig, Census
from prm_jax.data.shards import ShardedBatches, Share
from prm_jax.data.trie_store import PER_STEP, PER_TOKEN
from prm_jax.runtime.errors import UserError

# Number of rows that are filled at the same time. More rows leave less padding
# but need more memory, and the tries of a row lie further apart in the shuffle.
PACKING_BINS = 128
# A trie is a slice of arrays: grain's defaults (16 threads, 500 records ahead)
# spend more time on book-keeping than on the records.
READ_OPTIONS = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
ALL_SHARDS = Share()


def _finish_row(row: dict[str, Any]) -> dict[str, np.ndarray]:
  """Turns a row of the packer into a row of the batch that training reads.

  The packer numbers the tries of a row from 1; 0 is padding. It leaves indices
  relative to their trie. They become relative to the row: trie s starts where
  number s first occurs.
  """
  of_token = row['token_ints_segment_ids']
  of_step = row['step_ints_segment_ids']
  real, mask = of_token > 0, of_step > 0
  ascending = np.where(real, of_token, np.iinfo(np.int32).max)
  start = np.searchsorted(ascending, of_token).astype(np.int32)
  step_start = np.searchsorted(ascending, of_step).astype(np.int32)
  tokens, depths, last, parents, counts = row['token_ints'].T
  ends, begins, chains = row['step_ints'].T
  # Chains are numbered within their trie, and from here on within the row.
  chain_ids = np.zeros_like(chains)
  pairs = np.stack([of_step[mask], chains[mask]])
  chain_ids[mask] = np.unique(pairs, axis=1, return_inverse=True)[1] + 1
  return {
    'tokens': tokens,
    'positions': np.where(real, depths, -1),
    'last': np.where(real, last + start, np.arange(len(last), dtype=np.int32)),
    'parents': np.where(real & (parents >= 0), parents + start, -1),
    'kinds': row['kinds'],
    'lm_weights': row['lm_weights'],
    'step_ends': np.where(mask, ends + step_start, 0),
    'step_begins': begins,
    'step_mask': mask,
    'step_labels': row['step_labels'],
    'step_weights': row['step_weights'],
    'step_trials': row['step_trials'],
    'chain_ids': chain_ids,
    'flat_tokens': counts.sum(dtype=np.int32),
  }


def make_batches(
  census: Census, config: BatchConfig, share: Share = ALL_SHARDS
) -> ShardedBatches:
  """Shuffles and packs the tries of the usable chains into batches.

  Args:
    census: what `take_census` found with the same config.
    share: the shards that this process reads; all chains by default. Shard s of
      S holds every S-th trie of the shuffled ones and fills an equal part of
      each batch.

  Returns:
    An iterable of batches, dicts of these arrays:
    tokens: [B, T] int32.
    positions: [B, T] int32, the depth of a token in its chains; -1 is padding.
    last: [B, T] int32, index in the row of the last token of the token's
      subtree; query i sees key j where j <= i <= last[j]. Padding sees itself.
    parents: [B, T] int32, index in the row of the token before this one in its
      chains; -1 where there is none.
    kinds: [B, T] int8, see `StepFormat.token_kinds`.
    lm_weights: [B, T] float32, how many chains want this token predicted.
    step_ends: [B, P] int32, index in the row of the step's last token.
    step_begins: [B, P] int32, position of the step's first token.
    step_mask: [B, P] bool, True where there is a step.
    step_labels, step_weights, step_trials: [B, P] float32. The weight is that
      of all chains that have the step with this label.
    chain_ids: [B, P] int32, number of the (first) chain that has the step,
      within the row; 0 is padding.
    flat_tokens: [B] int32, number of tokens of the row's chains, each counted
      in full.

  Raises:
    UserError: there are more shards than tries.
  """
  if len(census.tries) < share.shards:
    raise UserError(
      f'{len(census.tries):,} trees of usable chains cannot be split into '
      f'data.shards={share.shards}; lower it, or bring more chains'
    )
  source = grain.MapDataset.source(census.tries)
  shuffled = source.seed(config.seed).shuffle()

  def batches_of(shard: int) -> grain.IterDataset:
    dataset = shuffled
    if share.shards > 1:
      dataset = dataset[shard :: share.shards]
    dataset = dataset.repeat(config.epochs)
    packed = grain_experimental.BestFitPackIterDataset(
      dataset.to_iter_dataset(READ_OPTIONS),
      length_struct=dict.fromkeys(PER_TOKEN, config.row_length)
      | dict.fromkeys(PER_STEP, config.max_steps_per_row),
      num_packing_bins=PACKING_BINS,
      seed=config.seed,
    )
    return packed.map(_finish_row).batch(
      config.batch_size // share.shards, drop_remainder=config.epochs is None
    )

  return ShardedBatches([batches_of(shard) for shard in share.own], share)


def pad_rows(batch: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
  """Appends rows of padding to a batch, up to `rows` rows."""
  added = rows - len(batch['tokens'])
  padded = {
    name: np.pad(value, [(0, added)] + [(0, 0)] * (value.ndim - 1))
    for name, value in batch.items()
  }
  if added:
    padded['positions'][-added:] = padded['parents'][-added:] = -1
    padded['last'][-added:] = np.arange(padded['last'].shape[1])
  return padded


def fill_rate(batch: dict[str, np.ndarray]) -> float:
  """Returns the share of tokens in a batch that are not padding."""
  return float((batch['positions'] >= 0).mean())
