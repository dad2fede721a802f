"""Measures our side's functions; a device works on after a call returns."""

import time
from collections.abc import Callable
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
