"""Batches of chains, sampled while those before them are learned from.

    parameters after an update -> chains of the batches that are due, rated
      -> loop.py, one batch an update

Which parameters sample which batch follows from the config alone, never from
the clock: whatever is faster, and however often a run is killed, it comes to
the same bits.
"""

import collections
import concurrent.futures
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm_jax.data.problems import Problem
from prm_jax.inference.generator import Generator, Sample
from prm_jax.rl import episodes
from prm_jax.rl.rating import Rated

Rate = Callable[[Sequence[Problem], Sequence[Sequence[Sample]]], Rated]


class Batch(NamedTuple):
  """What an update learns from.

  Attributes:
    staleness: updates between the policy that sampled it and the one that
      learns from it.
    seconds_sampling, seconds_scoring: what it took, beside whatever else ran.
  """

  rated: Rated
  staleness: int
  seconds_sampling: float
  seconds_scoring: float


def sampled_after(update: int, staleness: int, checkpoint_every: int) -> int:
  """The update whose parameters sample the batch of `update`.

  `staleness` updates before the last one, but none before the last checkpoint:
  a run that goes on from there has no older parameters. So a checkpoint has
  all chains that were sampled before it behind it.
  """
  checkpoint = (update - 1) // checkpoint_every * checkpoint_every
  return max(update - 1 - staleness, checkpoint)


class Batches:
  """The batches of a run, in order.

  With staleness a thread samples and rates while the caller learns. Nobody
  else may ask the policy or the PRM then but after `lend`, until `next`. A PRM
  that learns from what it rates does so batch by batch, in order: at an update
  it may have learned from as many batches more as are begun.

  Args:
    rate: says what the chains of problems are worth.
    backbone: parameters as trained -> those that the policy writes with; with
      staleness a copy, as training gives away what it trains.
    size: chains of each problem.
    data: indices of the problems of each batch.
    done: the update that the run goes on from.
    updates: the last one.
  """

  def __init__(
    self,
    policy: Generator,
    rate: Rate,
    backbone: Callable[[Any], Any],
    problems: Sequence[Problem],
    size: int,
    data: Iterator[np.ndarray],
    done: int,
    updates: int,
    staleness: int,
    checkpoint_every: int,
  ) -> None:
    self._policy, self._rate, self._backbone = policy, rate, backbone
    self._problems, self._size, self._data = problems, size, data
    self._handed_out, self._begun, self._updates = done, done, updates
    self._staleness, self._checkpoint_every = staleness, checkpoint_every
    # Of the batches that were begun: calls that wait and return them.
    self._ahead: collections.deque[Callable[[], Batch]] = collections.deque()
    self._thread = None
    if staleness:
      self._thread = concurrent.futures.ThreadPoolExecutor(1)

  @property
  def ahead(self) -> int:
    """Batches that were begun and nobody has yet."""
    return len(self._ahead)

  def next(self, params: Any) -> Batch:
    """The next batch, when all those before it are learned from.

    Args:
      params: of now, as trained; all batches that they are to sample begin.
    """
    due = 0
    while self._is_due(self._begun + due + 1):
      due += 1
    for n in range(due):
      # The first of them brings the parameters, the others find them there.
      self._begin([self._backbone(params)] if n == 0 else [])
    self._handed_out += 1
    return self._ahead.popleft()()

  def lend(self, params: Any) -> float:
    """Waits for all that is begun and lets the policy write with `params`.

    Returns:
      Seconds that it waited: of batches that are trained on later.
    """
    began = time.monotonic()
    for finished in self._ahead:
      finished()
    waited = time.monotonic() - began
    self._policy.take(self._backbone(params))
    return waited

  def close(self) -> None:
    """Waits for the thread; what it has not begun is left out."""
    if self._thread:
      self._thread.shutdown(cancel_futures=True)

  def _is_due(self, update: int) -> bool:
    after = sampled_after(update, self._staleness, self._checkpoint_every)
    return update <= self._updates and after <= self._handed_out

  def _begin(self, given: list[Any]) -> None:
    self._begun += 1
    chosen = [self._problems[i] for i in next(self._data)]
    stale = self._begun - 1 - self._handed_out
    make = functools.partial(self._make, self._begun, stale, chosen, given)
    thread = self._thread
    self._ahead.append(thread.submit(make).result if thread else make)

  def _make(
    self,
    update: int,
    staleness: int,
    chosen: list[Problem],
    given: list[Any],
  ) -> Batch:
    clock = [time.monotonic()]
    if given:
      # Taken out: the policy has its own form of them, and one is enough.
      self._policy.take(given.pop())
    groups = episodes.sample(
      self._policy, chosen, self._size, f'update {update}'
    )
    clock.append(time.monotonic())
    rated = self._rate(chosen, groups)
    clock.append(time.monotonic())
    return Batch(rated, staleness, *np.diff(clock).tolist())
