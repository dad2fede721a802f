"""How often labels are right, on a domain that knows it, and what they cost."""

import json
import pathlib
from collections.abc import Sequence

from prm_jax.data import chains as chains_lib
from prm_jax.data.domains import arithmetic_text
from prm_jax.labels.consensus import claimed_error


def read_labels(folder: pathlib.Path) -> list[chains_lib.Chain]:
  """Reads the labelled chains of a labelling job."""
  lines = (folder / 'chains.jsonl').read_bytes().splitlines()
  return [chains_lib.from_dict(json.loads(line)) for line in lines]


def accuracy(chains: Sequence[chains_lib.Chain], above: float) -> float:
  """Returns the share of chains whose labels have the true first error.

  Args:
    above: a step is labelled right where its value is above this.
  """
  right = 0
  for chain in chains:
    steps = arithmetic_text.check_steps(chain.problem, chain.steps)
    truth = steps.index(False) if False in steps else -1
    right += claimed_error(chain, above) == truth
  return right / len(chains)


def written_tokens(chains: Sequence[chains_lib.Chain]) -> int:
  """Counts what the solver wrote: words, separators and ends of chains."""
  words = sum(len(step.split()) + 1 for it in chains for step in it.steps)
  return words + len(chains)
