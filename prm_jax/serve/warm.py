"""Compiles all programs of a PRM before the first client asks.

A program is compiled for each number of rows, length of rows and length of what
comes before them. A server has few such sizes (`call_sizes.coarse_grid`), into
which every request fits, so that no client waits for a compiler.
"""

import concurrent.futures
import logging
import os
import time

from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.serve.prms import ServedPrm

AT_ONCE = 8  # programs that are compiled side by side


def warm(prm: ServedPrm) -> None:
  """Compiles the programs, the cheapest first."""
  began = time.monotonic()
  if not isinstance(prm.scorer, TreeScorer):
    logging.info('%s is a critic, which compiles when it is asked', prm.name)
    return
  wanted = sorted(prm.scorer.grid.sizes(), key=lambda sizes: sizes.cost)
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
