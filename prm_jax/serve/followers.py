"""Has all processes of a slice read what the clients of process 0 ask.

    process 0: clients -> Gatherer -> score_together -> message to all
    the others: follow -> message -> ChainScorer.score_ids

A PRM that is spread over several processes computes where all of them run the
same programs in the same order. Process 0 alone has clients; each of its calls
is told to the others, who keep the same cache of keys and values.
"""

import json
import logging
from collections.abc import Mapping, Sequence

from prm_jax.inference.protocols import ScoredSteps
from prm_jax.models.prefix_store import Ids
from prm_jax.runtime import processes
from prm_jax.serve.prms import ChainScorer

CALL, END = 'call of a PRM', ''
# After a call that failed a process waits so long for the others to fail, too.
FAIL_SECONDS = 60


def score_together(
  name: str, scorer: ChainScorer, chains: Sequence[Sequence[Ids]]
) -> list[ScoredSteps]:
  """Returns `ChainScorer.score_ids`, which all processes compute.

  Args:
    name: by which the others know the PRM.
  """
  if processes.count() > 1:
    processes.broadcast(CALL, json.dumps([name, chains]))
  return _score(scorer, chains)


def _score(
  scorer: ChainScorer, chains: Sequence[Sequence[Ids]]
) -> list[ScoredSteps]:
  """Returns `ChainScorer.score_ids`, or fails in all processes.

  Raises:
    FailedAlone: not all failed, and this process must end, so that those that
      wait for it learn that it is lost.
  """
  try:
    return scorer.score_ids(chains)
  except Exception as error:
    if not processes.is_loss(error):
      processes.fail_together(error, FAIL_SECONDS)
    raise


def follow(scorers: Mapping[str, ChainScorer]) -> None:
  """Reads what process 0 reads, until it ends."""
  while message := processes.broadcast(CALL):
    name, chains = json.loads(message)
    asked = [[tuple(ids) for ids in chain] for chain in chains]
    try:
      _score(scorers[name], asked)
    except Exception as error:
      if processes.is_loss(error):
        raise
      # Process 0 failed as well, and tells its client.
      logging.exception('%s could not read %d chains', name, len(asked))


def dismiss() -> None:
  """Ends the other processes, when no client is left."""
  if processes.count() > 1:
    processes.broadcast(CALL, END)
