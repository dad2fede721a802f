"""What clients are told when a PRM cannot read their chains."""

import asyncio

import pytest

from prm_jax.data.encoding import make_format
from prm_jax.inference.protocols import ScoredSteps
from prm_jax.runtime.errors import UserError
from prm_jax.serve.faults import Refused
from prm_jax.serve.gather import GatherConfig, Gatherer, check_scored
from prm_jax.serve.observed import Observed
from prm_jax.serve.prms import ServedPrm


class Broken:
  """A scorer whose device fails."""

  def __init__(self, error):
    self._error = error

  def score_ids(self, chains):
    raise self._error


@pytest.mark.parametrize(
  ('error', 'status', 'wait'),
  [
    (UserError('the chain is too long'), 400, 0),
    (RuntimeError('RESOURCE_EXHAUSTED: out of memory'), 413, 0),
    (MemoryError(), 413, 0),
    # Jobs ask again, and end: these chains are not without scores.
    (RuntimeError('INTERNAL: device lost'), 503, 5),
  ],
)
def test_a_fault_of_the_server_is_none_of_the_request(error, status, wait):
  config = GatherConfig(wait=0.0)
  gatherer = Gatherer(config, Observed(config.tokens))
  prm = ServedPrm('prm', Broken(error), make_format('arithmetic', 46), 'w')
  try:
    with pytest.raises(Refused) as refused:
      asyncio.run(gatherer.score(prm, [[(1, 2), (3, 4)]]))
  finally:
    gatherer.close(seconds=5)
  assert (refused.value.status, refused.value.wait) == (status, wait)


def test_a_chain_that_a_critic_cannot_judge_is_refused():
  good, lost = ScoredSteps((0.9,), 5), ScoredSteps((0.9, 0.5), 5, refused=1)
  check_scored([good], [0], 'prm')
  with pytest.raises(Refused, match=r'^chains\[3\]: prm has no words or room'):
    check_scored([good, lost], [1, 3], 'prm')
