"""Measures our side's functions; a device works on after a call returns."""

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax

CALLS = 20


def best_seconds(function: Callable[..., Any], *arguments: Any) -> float:
  """Returns the shortest time of a call, from many, after one that compiles."""
  jax.block_until_ready(function(*arguments))
  times = []
  for _ in range(CALLS):
    began = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    times.append(time.perf_counter() - began)
  return min(times)


def seconds_of_steps(started: Iterable[Any], warmup: int) -> list[float]:
  """Returns the time of each step after the warm-up.

  As in a train loop, a step is started while the one before it still runs.

  Args:
    started: starts a step and yields what to wait for.
  """
  ends, before = [], None
  for n, running in enumerate(started, 1):
    if before is not None and n > warmup:
      jax.block_until_ready(before)
      ends.append(time.perf_counter())
    before = running
    if n == warmup:
      jax.block_until_ready(running)
      ends.append(time.perf_counter())
      before = None
  jax.block_until_ready(before)
  ends.append(time.perf_counter())
  return [b - a for a, b in itertools.pairwise(ends)]
