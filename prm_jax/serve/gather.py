"""Gathers the chains of all clients into calls of the PRMs.

    handlers: Gatherer.score -> queue -> one thread: ChainScorer.score_ids
      -> the scores of each request, or why it has none

One thread owns the devices. While it reads, requests wait in a queue, and the
next call takes what waits, up to a number of tokens. A request that nobody
waits for any more is dropped before it is read.
"""

import asyncio
import collections
import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from prm_jax.inference.protocols import ScoredSteps
from prm_jax.runtime import processes
from prm_jax.runtime.errors import UserError
from prm_jax.serve.faults import Refused
from prm_jax.serve.followers import score_together
from prm_jax.serve.observed import Observed
from prm_jax.serve.prms import Chain, ServedPrm, length_of


@dataclasses.dataclass(frozen=True)
class GatherConfig:
  """Says how requests are gathered.

  Attributes:
    tokens: most tokens of a call; what the cache holds counts, too. A request
      of more is read in several calls.
    chains: most chains of a call.
    wait: seconds that a request waits for others that are being encoded.
  """

  tokens: int = 65_536
  chains: int = 1_024
  wait: float = 0.002


@dataclasses.dataclass(eq=False)
class Waiting:
  """Is a request in the queue.

  Attributes:
    since: `time.monotonic` of its arrival.
  """

  prm: ServedPrm
  chains: Sequence[Chain]
  tokens: int
  answer: asyncio.Future[list[ScoredSteps]]
  since: float


class Gatherer:
  """Owns the devices: it alone calls the PRMs, from a thread of its own."""

  def __init__(self, config: GatherConfig, observed: Observed) -> None:
    self._config, self._observed = config, observed
    self._queue: collections.deque[Waiting] = collections.deque()
    self._changed = threading.Condition()
    self._closed, self._coming = False, 0
    self._thread = threading.Thread(
      target=self._run, name='devices', daemon=True
    )
    self._thread.start()

  @contextlib.contextmanager
  def coming(self) -> Iterator[None]:
    """Says that a request is being encoded, for which others may wait."""
    with self._changed:
      self._coming += 1
    try:
      yield
    finally:
      with self._changed:
        self._coming -= 1
        self._changed.notify()

  async def score(
    self, prm: ServedPrm, chains: Sequence[Chain]
  ) -> list[ScoredSteps]:
    """Returns the scores of each chain.

    Raises:
      Refused: the server stops, or the PRM cannot read the chains.
    """
    found: list[ScoredSteps] = []
    # Between two parts others have their turn, and a client may hang up.
    for part, tokens in self._parts(chains):
      found += await self._ask(prm, part, tokens)
    return found

  def _parts(
    self, chains: Sequence[Chain]
  ) -> Iterator[tuple[list[Chain], int]]:
    """Yields as many chains as a call takes, with their tokens."""
    config = self._config
    part: list[Chain] = []
    tokens = 0
    for chain in chains:
      length = length_of(chain)
      full = tokens + length > config.tokens or len(part) == config.chains
      if part and full:
        yield part, tokens
        part, tokens = [], 0
      part.append(chain)
      tokens += length
    if part:
      yield part, tokens

  async def _ask(
    self, prm: ServedPrm, chains: Sequence[Chain], tokens: int
  ) -> list[ScoredSteps]:
    """Puts chains into the queue, and waits for their scores."""
    loop = asyncio.get_running_loop()
    waiting = Waiting(
      prm, chains, tokens, loop.create_future(), time.monotonic()
    )
    with self._changed:
      if self._closed:
        raise Refused(503, 'the server is stopping; ask again', wait=5)
      self._queue.append(waiting)
      self._observed.queued(len(self._queue))
      self._changed.notify()
    return await waiting.answer

  @property
  def alive(self) -> bool:
    """Says whether there is a thread that answers."""
    return self._thread.is_alive()

  def close(self, seconds: float | None = None) -> None:
    """Answers what waits, takes nothing further, and ends the thread.

    Args:
      seconds: how long that may take; None is as long as it takes.
    """
    with self._changed:
      self._closed = True
      self._changed.notify()
    self._thread.join(seconds)

  def _run(self) -> None:
    taken: list[Waiting] | None = []
    try:
      while (taken := self._take()) is not None:
        if taken:
          self._answer(taken)
    finally:  # nothing can be read any more
      with self._changed:
        self._closed = True
        left = [*(taken or ()), *self._queue]
        self._queue.clear()
      for each in left:
        _settle(
          each,
          Refused(503, 'this server can read no more; see its log', wait=5),
        )

  def _take(self) -> list[Waiting] | None:
    """Waits for requests of one PRM; returns None when all is closed.

    The list is empty if nobody waits for its requests any more.
    """
    with self._changed:
      while not self._ready():
        if not self._queue and self._closed:
          return None
        self._changed.wait(self._patience())
      taken: list[Waiting] = []
      rest: collections.deque[Waiting] = collections.deque()
      tokens = chains = 0
      prm, config = self._queue[0].prm, self._config
      for each in self._queue:
        fits = not taken or (
          tokens + each.tokens <= config.tokens
          and chains + len(each.chains) <= config.chains
        )
        if each.prm is not prm or not fits:
          rest.append(each)
        elif not each.answer.cancelled():
          taken.append(each)
          tokens += each.tokens
          chains += len(each.chains)
      self._queue = rest
      self._observed.queued(len(rest))
    return taken

  def _ready(self) -> bool:
    """Says whether a call is full, or its first request has waited enough."""
    if not self._queue:
      return False
    full = sum(each.tokens for each in self._queue) >= self._config.tokens
    return full or self._closed or self._patience() == 0

  def _patience(self) -> float | None:
    """Returns the seconds that the first request still waits for others."""
    if not self._queue:
      return None
    if not self._coming:
      return 0.0
    waited = time.monotonic() - self._queue[0].since
    return max(0.0, self._config.wait - waited)

  def _answer(self, taken: Sequence[Waiting]) -> None:
    """Reads the chains of some requests in one call, and answers each."""
    prm = taken[0].prm
    chains = [chain for each in taken for chain in each.chains]
    began = time.monotonic()
    try:
      scored = iter(score_together(prm.name, prm.scorer, chains))
    except Exception as error:
      if processes.is_loss(error):  # it ends the thread
        raise
      if len(taken) > 1:  # one of them may be to blame, and the others are not
        for each in taken:
          self._answer([each])
        return
      logging.exception('%s could not read %d chains', prm.name, len(chains))
      _settle(taken[0], _broken(prm, error))
      return
    tokens = sum(each.tokens for each in taken)
    seconds = time.monotonic() - began
    self._observed.called(prm.name, len(taken), tokens, seconds)
    for each in taken:
      _settle(each, [next(scored) for _ in each.chains])


NO_ROOM = 'RESOURCE_EXHAUSTED'  # as XLA says it


def _broken(prm: ServedPrm, error: Exception) -> Refused:
  if isinstance(error, UserError):
    return Refused(400, str(error))
  if isinstance(error, MemoryError) or NO_ROOM in str(error):
    return Refused(
      413,
      f'{prm.name} has no memory for this request; send fewer or shorter '
      'chains',
    )
  # It is no fault of the request: clients ask again, and then give up.
  return Refused(
    503,
    f'{prm.name} could not read this request ({type(error).__name__}); the '
    "server's log has more",
    wait=5,
  )


def check_scored(
  scored: Sequence[ScoredSteps], numbers: Iterable[int], name: str
) -> None:
  """Raises Refused if a chain has scores that say nothing of it.

  The PRM's arithmetic overflowed, or a critic had no words or room for it.

  Args:
    numbers: places of the scored chains in their request, from 0.
  """
  for number, each in zip(numbers, scored, strict=True):
    if not all(map(math.isfinite, each.scores)):
      raise Refused(
        422,
        f'chain {number} of the request: a score of {name} is not finite, as '
        'its arithmetic overflows; leave that chain out, or serve the PRM in '
        'float32',
      )
    if each.refused:
      raise Refused(
        400,
        f'chains[{number}]: {name} has no words or room to judge it; shorten '
        'the chain, or leave it out',
        f'chains[{number}]',
      )


def _settle(waiting: Waiting, answer: list[ScoredSteps] | Refused) -> None:
  """Hands an answer to the event loop, unless nobody waits for it."""

  def settle() -> None:
    if waiting.answer.done():
      return
    if isinstance(answer, Refused):
      waiting.answer.set_exception(answer)
    else:
      waiting.answer.set_result(answer)

  loop = waiting.answer.get_loop()
  if not loop.is_closed():
    loop.call_soon_threadsafe(settle)
