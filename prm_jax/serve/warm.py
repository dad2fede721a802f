"""Compiles a PRM's programs before the first client asks.

A program is compiled for each number of rows, length of steps and length of
what comes before them, all rounded up. Chains of random tokens, alone and many
at a time, grow step by step as those of a search do, so that the programs of
most requests are there. Whole chains of each length up to the window follow.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import numpy as np

from prm_jax.models.prefix_store import Ids
from prm_jax.serve.gather import Gatherer
from prm_jax.serve.prms import Chain, ServedPrm

TOGETHER = 1, 4, 16, 64  # chains of a call
STEP = 24  # tokens of a step
PROMPT = 48


def warm(prm: ServedPrm, gatherer: Gatherer) -> None:
  """Scores random chains of growing length."""
  began = time.monotonic()
  for seed, count in enumerate(TOGETHER):
    asyncio.run(_grow(prm, gatherer, count, seed))
  asyncio.run(_score_whole(prm, gatherer))
  seconds = time.monotonic() - began
  logging.info('%s: programs compiled in %.0f s', prm.name, seconds)


def _drawer(prm: ServedPrm, seed: int) -> Callable[[int], Ids]:
  """Returns a function that draws so many tokens."""
  rng, most = np.random.default_rng(seed), prm.format.tokenizer.vocab_size
  return lambda length: tuple(rng.integers(0, most, length).tolist())


async def _score_whole(prm: ServedPrm, gatherer: Gatherer) -> None:
  some, length = _drawer(prm, len(TOGETHER)), prm.format.max_length
  while length > PROMPT:
    steps = [some(STEP) for _ in range((length - PROMPT) // STEP)]
    if steps:
      await gatherer.score(prm, [[some(PROMPT), *steps]])
    length //= 2


async def _grow(
  prm: ServedPrm, gatherer: Gatherer, count: int, seed: int
) -> None:
  some, fmt = _drawer(prm, seed), prm.format
  longest = min(fmt.max_length, PROMPT + 16 * STEP)
  chains: list[Chain] = [
    [some(min(PROMPT, fmt.max_length // 2)), some(4)] for _ in range(count)
  ]
  while sum(map(len, chains[0])) <= longest:
    await gatherer.score(prm, chains)
    chains = [[*chain, some(STEP)] for chain in chains]
