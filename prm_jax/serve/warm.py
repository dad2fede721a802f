"""Compiles all programs of a PRM before the first client asks.

A program is compiled for each number of rows, length of rows and length of what
comes before them. A server has few such sizes (`call_sizes.coarse_grid`), into
which every request fits, so that no client waits for a compiler.
"""

import concurrent.futures
import logging
import os
import threading
import time

from prm_jax.inference.tree_scorer import TreeScorer
from prm_jax.serve.prms import ServedPrm

AT_ONCE = 8  # programs that are compiled side by side


def warm(prm: ServedPrm, closing: threading.Event | None = None) -> None:
  """Compiles the programs, the cheapest first.

  Args:
    closing: is set where the server ends: no further program is begun then.
  """
  began = time.monotonic()
  if not isinstance(prm.scorer, TreeScorer):
    logging.info('%s is a critic, which compiles when it is asked', prm.name)
    return
  wanted = sorted(prm.scorer.grid.sizes(), key=lambda sizes: sizes.cost)
  compilers = min(AT_ONCE, os.cpu_count() or 1)
  get = prm.scorer.programs.get
  with concurrent.futures.ThreadPoolExecutor(compilers) as pool:
    compiled = [pool.submit(get, sizes) for sizes in wanted]
    for done, program in enumerate(compiled, 1):
      while not program.done():
        concurrent.futures.wait([program], timeout=0.2)
        if closing and closing.is_set():
          pool.shutdown(wait=False, cancel_futures=True)
          return
      program.result()
      if done % 10 == 0 or done == len(wanted):
        seconds = time.monotonic() - began
        logging.info(
          '%s: %d of %d programs compiled in %.0f s',
          *(prm.name, done, len(wanted), seconds),
        )
