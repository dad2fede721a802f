"""Reads how likely each of a few options is as the next word.

ids and options -> batches of similar length -> sampler.next_logprobs
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prm_jax.inference import sampler
from prm_jax.inference.packing import bucket
from prm_jax.models import TransformerConfig

# Ids that were written so far, and ids that may come next.
Asked = tuple[Sequence[int], Sequence[int]]
SMALLEST_BUCKET = 32
TOKENS = 4096  # read in one call, padding included


def jit_next(config: TransformerConfig, mesh: Mesh, spread: bool) -> Any:
  """Returns `sampler.next_logprobs` jitted; every process reads all of it."""
  return jax.jit(
    functools.partial(sampler.next_logprobs, config=config, spread=spread),
    out_shardings=NamedSharding(mesh, P()),
  )


def read(
  asked: Sequence[Asked], call: Callable[..., jax.Array]
) -> np.ndarray:  # [N, O] float32
  """Returns log-probabilities of the options at temperature 1.

  Args:
    asked: N, each with the same number O of options.
    call: runs the program 'next' for some sizes, as `Writer.call` does.
  """
  found = np.zeros((len(asked), len(asked[0][1])), np.float32)
  order = sorted(range(len(asked)), key=lambda i: -len(asked[i][0]))
  while order:
    T = bucket(len(asked[order[0]][0]) - 1, SMALLEST_BUCKET)
    count = max(1, TOKENS // T)
    taken, order = order[:count], order[count:]
    rows = bucket(len(taken), 1)
    tokens = np.zeros((rows, T), np.int32)
    last, position = np.zeros((2, rows), np.int32)
    options = np.zeros((rows, found.shape[1]), np.int32)
    for row, i in enumerate(taken):
      ids, options[row] = asked[i]
      tokens[row, : len(ids) - 1] = ids[:-1]
      last[row], position[row] = ids[-1], len(ids) - 1
    sizes = (*tokens.shape, found.shape[1])
    logprobs = call('next', sizes, tokens, last, position, options)
    found[taken] = np.asarray(logprobs)[: len(taken)]
  return found
