"""Checks the counts and seeds that the domains get, and makes generators."""

import numpy as np

from prm_jax.runtime.errors import UserError


def check_count(name: str, count: int) -> None:
  """Raises UserError unless a count is a whole number from 1 up."""
  if not isinstance(count, int | np.integer) or count < 1:
    raise UserError(f'{name}={count!r}: expected a whole number from 1 up')


def make_generator(seed: int, *stream: int) -> np.random.Generator:
  """Returns the random generator of one stream of a seed.

  Args:
    seed: the seed; equal seeds give the same streams.
    stream: the spawn key; different keys give independent streams.

  Raises:
    UserError: the seed is not a whole number from 0 up.
  """
  if not isinstance(seed, int | np.integer) or seed < 0:
    raise UserError(f'seed={seed!r}: expected a whole number from 0 up')
  return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))
