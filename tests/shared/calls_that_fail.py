"""Reads two calls in all processes of a server, of which the first fails.

python -m tests.shared.calls_that_fail WHO --coordinator=... --process=...

WHO says which fail: `both`, or process `0` or `1` alone. A call is a program of
all processes, in which one waits for the other.
"""

import argparse

import numpy as np
from jax.experimental import multihost_utils

from prm_jax import main
from prm_jax.inference.protocols import ScoredSteps
from prm_jax.runtime import processes
from prm_jax.serve import followers

BAD, GOOD = ((1,),), ((2,),)


class Failing:
  """Scores chains, or fails at a bad one."""

  def __init__(self, who):
    self._fails = who in ('both', str(processes.index()))

  def score_ids(self, chains):
    if self._fails and tuple(chains[0]) == BAD:
      raise MemoryError('no room')
    return [
      ScoredSteps((float(multihost_utils.process_allgather(x).sum()),), 0)
      for x in np.ones(len(chains))
    ]


def run(who, given):
  processes.HEARTBEAT_SECONDS = 10
  processes.join(given.coordinator, given.processes, given.process)
  followers.FAIL_SECONDS = 3
  scorer = Failing(who)
  if not processes.is_first():
    followers.follow({'prm': scorer})
    return
  try:
    followers.score_together('prm', scorer, [BAD])
  except MemoryError as error:
    print(f'failed: {error}')
  (scored,) = followers.score_together('prm', scorer, [GOOD])
  print(f'scored: {scored.scores}')
  followers.dismiss()


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('who', choices=['both', '0', '1'])
  parser.add_argument('--coordinator')
  parser.add_argument('--processes', type=int)
  parser.add_argument('--process', type=int)
  arguments = parser.parse_args()
  main.prepare_jax(0)
  try:
    run(arguments.who, arguments)
  except Exception as error:
    main.end_for(error)
  main.end(main.DONE, 0)
