"""Which chains share a call, and what clients are told if a PRM fails."""

import asyncio
import threading

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


class Reads:
  """A scorer of chains of ids, which cannot read the id 9.

  Attributes:
    calls: the chains of each call.
  """

  def __init__(self):
    self.calls = []

  def score_ids(self, chains):
    self.calls.append(chains)
    if [(9,)] in chains:
      raise UserError('the id 9 is not known')
    return [ScoredSteps((0.5,), 1) for _ in chains]


def served(scorer):
  return ServedPrm('prm', scorer, make_format('arithmetic', 46), 'w')


def ask(config, *requests):
  """Sends requests, each a PRM and its chains, while others are encoded."""
  gatherer = Gatherer(config, Observed(config.tokens))

  async def together():
    async with asyncio.timeout(20):
      with gatherer.coming():
        scores = (gatherer.score(*request) for request in requests)
        return await asyncio.gather(*scores, return_exceptions=True)

  try:
    return asyncio.run(together())
  finally:
    gatherer.close(seconds=5)


def test_a_request_that_is_to_blame_spoils_no_other_of_its_call():
  """The call is full with them, so that it does not wait for others."""
  scorer, config = Reads(), GatherConfig(tokens=3, wait=1e6)
  prm = served(scorer)
  found = ask(config, *((prm, [[(token,)]]) for token in (1, 9, 2)))
  assert found[0] == found[2] == [ScoredSteps((0.5,), 1)]
  assert isinstance(found[1], Refused) and found[1].status == 400
  assert [len(call) for call in scorer.calls] == [3, 1, 1, 1]


class Gone(BaseException):
  """Ends the thread that reads, as a lost process does."""


class Ends:
  """A scorer that ends the thread once it may."""

  def __init__(self):
    self.may = threading.Event()

  def score_ids(self, chains):
    self.may.wait(20)
    raise Gone


@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)
def test_nobody_waits_for_a_thread_that_has_ended():
  """Neither who is in its last call, nor who waits, nor who comes later."""
  scorer, config = Ends(), GatherConfig(chains=1, wait=0.0)
  gatherer, prm = Gatherer(config, Observed(config.tokens)), served(scorer)

  async def ask_three():
    async with asyncio.timeout(20):
      first = [
        asyncio.ensure_future(gatherer.score(prm, [[(1,)]])) for _ in 'ab'
      ]
      await asyncio.sleep(0)  # both are in the queue
      scorer.may.set()
      found = await asyncio.gather(*first, return_exceptions=True)
      later = gatherer.score(prm, [[(1,)]])
      return found + await asyncio.gather(later, return_exceptions=True)

  found = asyncio.run(ask_three())
  assert [type(each) for each in found] == [Refused] * 3
  assert [(each.status, each.wait) for each in found] == [(503, 5)] * 3
  gatherer.close(seconds=5)
  assert not gatherer.alive


def test_no_call_is_larger_than_the_config_says():
  """It takes two chains of three tokens, fewer than the first request has."""
  for tokens, chains in ((7, 9), (99, 2)):
    scorer, config = Reads(), GatherConfig(tokens, chains, wait=0.05)
    prm, chain = served(scorer), [(1, 2), (3,)]
    found = ask(config, *((prm, [chain] * n) for n in (5, 1, 1, 1)))
    assert [len(each) for each in found] == [5, 1, 1, 1]
    assert max(len(call) for call in scorer.calls) == 2


def test_no_call_has_chains_of_two_prms():
  scorers = Reads(), Reads()
  prms = [served(scorer) for scorer in scorers]
  requests = [(prms[n % 2], [[(n,)]]) for n in range(8)]
  ask(GatherConfig(tokens=8, wait=0.05), *requests)
  for own, scorer in enumerate(scorers):
    read = [chain for call in scorer.calls for chain in call]
    assert read == [[(n,)] for n in range(own, 8, 2)]


def test_a_chain_that_a_critic_cannot_judge_is_refused():
  good, lost = ScoredSteps((0.9,), 5), ScoredSteps((0.9, 0.5), 5, refused=1)
  check_scored([good], [0], 'prm')
  with pytest.raises(Refused, match=r'^chains\[3\]: prm has no words or room'):
    check_scored([good, lost], [1, 3], 'prm')
