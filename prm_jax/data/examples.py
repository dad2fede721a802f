"""Turns chains into arrays, and the arrays of several chains into one tree.

    chain -> encode_example -> arrays of one chain
      -> merge_examples -> arrays of a trie, which the pipeline packs into rows

A trie holds every shared token once. What is learned stays that of its chains:
a token or step that several chains have gets the sum of their weights.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data import tries
from prm_jax.data.chains import Chain
from prm_jax.data.encoding import StepFormat
from prm_jax.data.targets import TargetConfig, step_targets


class Example(NamedTuple):
  """Holds what one chain brings to a row.

  Attributes:
    tokens: token ids.
    kinds: the kinds of the tokens, see `StepFormat.token_kinds`.
    lm_mask: marks the tokens that a language-model loss predicts, apart from
      the first token: for a reward model all, for a policy those after the
      problem.
    step_ends: index of each step's last token.
    step_begins: index of each step's first token.
    step_labels, step_weights, step_trials: from `targets.step_targets`.
  """

  tokens: np.ndarray  # [T] int32
  kinds: np.ndarray  # [T] int8
  lm_mask: np.ndarray  # [T] bool
  step_ends: np.ndarray  # [P] int32
  step_begins: np.ndarray  # [P] int32
  step_labels: np.ndarray  # [P] float32
  step_weights: np.ndarray  # [P] float32
  step_trials: np.ndarray  # [P] float32


class StepEntries(NamedTuple):
  """Holds the step entries of a trie.

  Attributes:
    arrays: `step_ends` (indices in the trie), `step_begins`, `step_labels`,
      `step_weights`, `step_trials`, and `chains`: the number of the entry's
      first chain, from 1. All are [P].
    of_chains: for each chain the entry of each of its steps.
  """

  arrays: dict[str, np.ndarray]
  of_chains: list[np.ndarray]


def encode_example(
  chain: Chain, fmt: StepFormat, targets: TargetConfig
) -> Example:
  """Encodes one chain and its targets.

  Raises:
    DoesNotFit: the first step does not fit the format's length.
  """
  completion = targets.supervision == 'completion'
  encode = fmt.encode_with_end if completion else fmt.encode
  encoding = encode(chain.problem, chain.steps)
  lm_mask = np.ones(len(encoding.tokens), bool)
  lm_mask[: encoding.prompt_length if completion else 0] = False
  ends = encoding.step_ends
  begins = np.concatenate([[encoding.prompt_length], ends[:-1] + 1])
  return Example(
    encoding.tokens,
    fmt.token_kinds(encoding),
    lm_mask,
    ends,
    begins.astype(np.int32),
    *step_targets(chain, len(ends), targets),
  )


def trie_of(examples: Sequence[Example]) -> tries.Trie:
  """Merges the equal beginnings of chains."""
  return tries.build(
    [each.tokens for each in examples], [each.kinds for each in examples]
  )


def merge_examples(
  examples: Sequence[Example], compare_steps: bool = False
) -> dict[str, np.ndarray]:
  """Returns the arrays of the chains' trie that are packed into a row.

  Args:
    compare_steps: whether the loss compares the steps of a chain with each
      other; see `step_entries`.

  Returns:
    Arrays with one entry per token, [T]: those of the trie, `kinds`, and
    `lm_weights`, the number of chains that want the token predicted. And those
    of `step_entries`, [P].
  """
  trie = trie_of(examples)
  kinds = np.zeros(len(trie.tokens), np.int8)
  lm_weights = np.zeros(len(trie.tokens), np.float32)
  for path, example in zip(trie.paths, examples, strict=True):
    kinds[path] = example.kinds
    lm_weights[path] += example.lm_mask
  lm_weights[trie.parents < 0] = 0  # nothing comes before them
  return {
    'tokens': trie.tokens,
    'positions': trie.depths,
    'last': trie.last,
    'parents': trie.parents,
    'counts': trie.counts,
    'kinds': kinds,
    'lm_weights': lm_weights,
    **step_entries(examples, trie, compare_steps).arrays,
  }


def step_entries(
  examples: Sequence[Example], trie: tries.Trie, compare_steps: bool
) -> StepEntries:
  """Merges the equal steps of chains; their weights add up.

  Steps are equal if they have the same tokens, label and trials. A step of
  weight 0 joins any other with its tokens, because it says nothing.

  Args:
    compare_steps: keeps every chain's steps as entries of their own, in the
      order of the chain, because a loss compares them with each other.
  """
  sizes = [len(each.step_ends) for each in examples]
  chains = np.repeat(np.arange(1, len(examples) + 1, dtype=np.int32), sizes)
  ends = np.concatenate(
    [path[e.step_ends] for path, e in zip(trie.paths, examples, strict=True)]
  )
  begins, labels, weights, trials = (
    np.concatenate([getattr(each, name) for each in examples])
    for name in ('step_begins', 'step_labels', 'step_weights', 'step_trials')
  )
  order, new = np.arange(len(ends)), np.ones(len(ends), bool)
  if not compare_steps:
    order = np.lexsort((chains, trials, labels, weights == 0, begins, ends))

    def differs(values: np.ndarray) -> np.ndarray:
      values = values[order]
      return np.concatenate([[True], values[1:] != values[:-1]])

    new = differs(ends) | differs(begins)
    new |= (differs(labels) | differs(trials)) & (weights[order] > 0)
  firsts = np.flatnonzero(new)
  arrays = {
    'step_ends': ends,
    'step_begins': begins,
    'step_labels': labels,
    'step_trials': trials,
    'chains': chains,
  }
  arrays = {name: values[order][firsts] for name, values in arrays.items()}
  arrays['step_weights'] = np.add.reduceat(weights[order], firsts)
  entries = np.empty(len(ends), np.int64)
  entries[order] = np.cumsum(new) - 1
  return StepEntries(arrays, np.split(entries, np.cumsum(sizes)[:-1]))
