"""Compiles programs of a PRM before the first client asks.

A program is compiled for each number of rows, length of rows and length of what
comes before them. Those of `sizes_to_warm` are few, and every request fits into
one of them; better ones are compiled while requests are answered
(`inference.ready_programs`).
"""

import concurrent.futures
import logging
import os
import time

from prm_jax.inference.packing import bucket
from prm_jax.inference.piece_runs import most_rows, rows_of_call
from prm_jax.inference.ready_programs import Sizes
from prm_jax.serve.prms import ServedPrm

# How many times as costly as needed a program may be, so that no client waits
# for the compiler.
SPARE = 8.0
SHORTEST, TIMES = 32, 4  # tokens of a row; each next one is so much longer
ROWS = 1, 8, 64
PREFIX = 256  # tokens of all but long chains
AT_ONCE = 8  # programs that are compiled side by side


def warm(prm: ServedPrm) -> None:
  """Compiles the programs of `sizes_to_warm`."""
  began = time.monotonic()
  wanted = sizes_to_warm(prm.format.max_length, prm.scorer.devices)
  compilers = min(AT_ONCE, os.cpu_count() or 1)
  with concurrent.futures.ThreadPoolExecutor(compilers) as pool:
    compiled = pool.map(prm.scorer.programs.get, wanted)
    for done, _ in enumerate(compiled, 1):
      if done % 10 == 0 or done == len(wanted):
        seconds = time.monotonic() - began
        logging.info(
          '%s: %d of %d programs compiled in %.0f s',
          *(prm.name, done, len(wanted), seconds),
        )


def sizes_to_warm(longest: int, devices: int) -> list[Sizes]:
  """Returns sizes into which every request fits.

  Args:
    longest: tokens of the PRM's window.
    devices: those that share rows.
  """
  last = bucket(longest, SHORTEST)
  tokens = [last]
  while tokens[-1] > SHORTEST:
    tokens.append(max(SHORTEST, tokens[-1] // TIMES))
  prefixes = sorted({0, min(PREFIX, longest), longest})
  return sorted(
    {
      Sizes(min(rows_of_call(B, devices), most_rows(T + S, devices)), T, S)
      for T in tokens
      for S in prefixes
      for B in ROWS
    },
    key=lambda sizes: sizes.cost,
  )
