"""Counts what a data set holds for training and groups it into tries.

chains -> encode each once -> usable chains, by problem -> split to rows
  -> merge -> Census: counts for the log, and the tries that the pipeline packs
"""

import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from prm_jax.data import trie_store, tries
from prm_jax.data.chains import Chain, shown_id
from prm_jax.data.encoding import DoesNotFit, StepFormat
from prm_jax.data.examples import (
  Example,
  encode_example,
  merge_examples,
  step_entries,
  trie_of,
)
from prm_jax.data.targets import TargetConfig
from prm_jax.data.trie_store import TrieStore, join, to_pack
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.metrics import Heartbeat

VERSION = 2  # of what a census holds; another one is not read
# The counts of `Census`.
COUNTS = (
  'steps',
  'tokens',
  'unique',
  'computed',
  'truncated',
  'too_long',
  'unlabelled',
)


@dataclasses.dataclass(frozen=True)
class BatchConfig:
  """Says what batches look like and in which order chains enter them.

  Attributes:
    batch_size: number of rows over all processes.
    row_length: tokens per row, at least the format's `max_length`.
    max_steps_per_row: step entries per row (P).
    seed: seed of the shuffle.
    epochs: how often every chain is read; None repeats without end.
    trees: whether chains of one problem share the tokens of their equal
      beginnings; otherwise every chain is a trie of its own.
    compare_steps: whether the loss compares the steps of a chain with each
      other; then chains share tokens and keep their own step entries.
  """

  batch_size: int
  row_length: int
  max_steps_per_row: int
  seed: int
  epochs: int | None = None
  trees: bool = False
  compare_steps: bool = False


class Groups(Sequence[np.ndarray]):
  """Holds indices of chains in groups, without an object for each group.

  Args:
    chains: [chains] int64, of all groups one after another.
    stops: [groups + 1] int64, index after the last of each group, after a 0.
  """

  def __init__(self, chains: np.ndarray, stops: np.ndarray) -> None:
    self.chains, self.stops = chains, stops

  def __len__(self) -> int:
    return len(self.stops) - 1

  def __getitem__(self, index: int) -> np.ndarray:
    return self.chains[self.stops[index] : self.stops[index + 1]]


@dataclasses.dataclass(frozen=True)
class Census:
  """Counts what a data set holds for training.

  Attributes:
    usable: indices of the chains that fit and have something to learn from.
    groups: the same in groups whose tries fit a row each, in the order of
      their first chains.
    tries: the arrays of each group's trie.
    steps: number of steps of usable chains whose weight is not 0.
    tokens: number of tokens of usable chains.
    unique: number of tokens of the tries of each problem's chains, had they
      not been split.
    computed: number of tokens of the tries of all groups.
    truncated: number of usable chains that were cut after a step.
    too_long: number of chains whose first step does not fit.
    unlabelled: number of chains whose steps all have weight 0.
  """

  usable: np.ndarray  # [chains] int64
  groups: Groups
  tries: TrieStore
  steps: int
  tokens: int
  unique: int
  computed: int
  truncated: int
  too_long: int
  unlabelled: int

  def summary(self) -> str:
    """Returns the counts as one line for the log."""
    total = len(self.usable) + self.too_long + self.unlabelled
    text = (
      f'{len(self.usable):,} of {total:,} chains '
      f'({self.truncated:,} truncated; left out: {self.too_long:,} too long, '
      f'{self.unlabelled:,} with nothing to learn from), '
      f'{self.steps:,} steps to learn from, {self.tokens:,} tokens'
    )
    if self.unique < self.tokens:
      text += (
        f', of which {self.unique:,} unique ({self.tokens / self.unique:.2f} '
        f'times fewer), in {len(self.groups):,} trees; '
        f'{self.computed - self.unique:,} repeated where a tree was split'
      )
    return text


def take_census(
  chains: Sequence[Chain],
  fmt: StepFormat,
  targets: TargetConfig,
  config: BatchConfig,
) -> Census:
  """Encodes every chain once, counts, and merges the usable ones into tries.

  Raises:
    UserError: no chain is usable, the tokenizer rejects one, or a row is too
      short for one.
  """
  if config.row_length < fmt.max_length:
    raise UserError(
      f'data.row_length={config.row_length} is shorter than '
      f'data.max_length={fmt.max_length}; raise it'
    )
  counts = dict.fromkeys(COUNTS, 0)
  usable, merged, read, longest = [], {}, 0, 0
  heartbeat = Heartbeat('encoding chains', len(chains))
  for problem in _by_problem(chains, config.trees):
    names, examples = [], []
    for i in problem:
      heartbeat.at(read)
      read += 1
      example = _count(chains[i], fmt, targets, counts)
      if example is not None:
        names.append(i)
        examples.append(example)
        longest = max(longest, len(example.step_ends))
    usable += names
    # A chain with more steps than a row has room for is reported below.
    if examples and longest <= config.max_steps_per_row:
      parts = _split(examples, config)
      counts['unique'] += _size(examples)
      for part in parts:
        trie = merge_examples([examples[k] for k in part], config.compare_steps)
        merged[tuple(names[k] for k in part)] = to_pack(trie)
        counts['computed'] += len(trie['tokens'])
  if not usable:
    left = {name: counts[name] for name in ('too_long', 'unlabelled')}
    raise UserError(
      f'no chain to train on: of {len(chains):,} chains {left["too_long"]:,} '
      f'are too long and {left["unlabelled"]:,} have nothing to learn from; '
      'check the labels, targets.* and data.max_length'
    )
  if longest > config.max_steps_per_row:
    raise UserError(
      f'data.max_steps_per_row={config.max_steps_per_row}, but a chain has '
      f'{longest} steps; raise it'
    )
  groups = sorted(merged)
  return Census(
    np.asarray(sorted(usable), np.int64),
    Groups(
      np.fromiter(itertools.chain(*groups), np.int64),
      np.cumsum([0, *map(len, groups)]),
    ),
    join([merged[group] for group in groups]),
    **counts,
  )


def save(census: Census, folder: pathlib.Path) -> None:
  """Writes a census, so that `read` opens it without encoding anything."""
  groups = census.groups
  arrays = {
    'usable': census.usable,
    'group_chains': groups.chains,
    'group_stops': groups.stops,
  }
  about = {name: getattr(census, name) for name in COUNTS}
  trie_store.save(folder, census.tries, arrays, about)


def read(folder: pathlib.Path) -> Census:
  """Opens a census that `save` wrote.

  Raises:
    UserError: it is damaged.
  """
  beside = 'usable', 'group_chains', 'group_stops'
  tries, arrays, counts = trie_store.read(folder, beside, COUNTS)
  groups = Groups(arrays['group_chains'], arrays['group_stops'])
  return Census(np.asarray(arrays['usable']), groups, tries, **counts)


def key(fmt: StepFormat, targets: TargetConfig, config: BatchConfig) -> str:
  """Returns 16 hex digits that change with what a census depends on.

  Not with the chains: the data set's folder is named after them.
  """
  sizes = {
    name: getattr(config, name)
    for name in ('row_length', 'max_steps_per_row', 'trees', 'compare_steps')
  }
  parts = (
    VERSION,
    fmt.fingerprint(),
    fmt.end,  # only policies read it
    fmt.max_length,
    dataclasses.asdict(targets),
    sizes,
  )
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _count(
  chain: Chain,
  fmt: StepFormat,
  targets: TargetConfig,
  counts: dict[str, int],
) -> Example | None:
  """Adds a chain to the counts; returns None if it is not usable."""
  try:
    example = encode_example(chain, fmt, targets)
  except DoesNotFit:
    counts['too_long'] += 1
    return None
  except UserError as error:
    raise UserError(
      f'chain {shown_id(chain)} cannot be encoded: {error}'
    ) from None
  if not example.step_weights.any():
    counts['unlabelled'] += 1
    return None
  counts['truncated'] += len(example.step_ends) < len(chain.steps)
  counts['steps'] += int((example.step_weights > 0).sum())
  counts['tokens'] += len(example.tokens)
  return example


def _by_problem(chains: Sequence[Chain], trees: bool) -> Iterable[list[int]]:
  """Groups the indices of chains with equal problems, if trees are wanted."""
  if not trees:
    return ([i] for i in range(len(chains)))
  groups: dict[str, list[int]] = {}
  heartbeat = Heartbeat('grouping chains by problem', len(chains))
  for i in heartbeat.over(range(len(chains))):
    groups.setdefault(chains[i].problem, []).append(i)
  return groups.values()


def _size(examples: Sequence[Example]) -> int:
  """Returns the number of tokens of the examples' trie."""
  return tries.unique_tokens(
    [each.tokens for each in examples], [each.kinds for each in examples]
  )


def _split(examples: Sequence[Example], config: BatchConfig) -> list[list[int]]:
  """Splits the chains of a problem into groups whose tries fit a row each.

  Returns:
    Groups of indices of examples.
  """
  if len(examples) == 1:
    return [[0]]
  steps = step_entries(examples, trie_of(examples), config.compare_steps)
  return tries.split(
    [each.tokens for each in examples],
    tries.Budget(config.row_length, config.max_steps_per_row),
    [
      [*zip(each.step_ends.tolist(), entries.tolist(), strict=True)]
      for each, entries in zip(examples, steps.of_chains, strict=True)
    ],
    [each.kinds for each in examples],
  )
