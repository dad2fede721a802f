"""Samples batches of chains while earlier batches are learned from.

    parameters after an update -> chains of the batches that are due, rated
      -> loop.py, one batch an update

The config alone decides which parameters sample which batch, never the clock.
So a run has the same bits on fast and slow machines, and however often it is
interrupted.
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
from prm_jax.rl import episodes as episodes_lib
from prm_jax.rl.rating import Rated
from prm_jax.rl.schedule import RlLoopConfig, sampled_after

Rate = Callable[[Sequence[Problem], Sequence[Sequence[Sample]]], Rated]


class RatedBatch(NamedTuple):
  """Holds the chains that an update learns from.

  Attributes:
    staleness: updates between the policy that sampled the batch and the one
      that learns from it.
    seconds_sampling: wall time of sampling, in parallel with anything else.
    seconds_scoring: wall time of rating, likewise.
  """

  rated: Rated
  staleness: int
  seconds_sampling: float
  seconds_scoring: float


class Batches:
  """Hands out the batches of a run, in order.

  With staleness > 0 a second thread samples and rates the next batches while
  the caller trains. The caller may use the policy and the PRM only between
  `lend` and `next`. An online PRM learns from batches in order, but ahead of
  the policy: it may already have learned from batches that are not handed out.

  Args:
    rate: rates the chains of problems.
    backbone: parameters as trained -> parameters for sampling; with staleness a
      copy, because training donates the memory of its parameters.
    data: iterates over the indices of each batch's problems.
    done: the update from which the run resumes.
  """

  def __init__(
    self,
    config: RlLoopConfig,
    policy: Generator,
    rate: Rate,
    backbone: Callable[[Any], Any],
    problems: Sequence[Problem],
    data: Iterator[np.ndarray],
    done: int,
  ) -> None:
    self._config, self._policy, self._rate = config, policy, rate
    self._backbone, self._problems, self._data = backbone, problems, data
    self._handed_out, self._begun = done, done
    # For each batch that was begun, a call that waits for it and returns it.
    self._ahead: collections.deque[Callable[[], RatedBatch]] = (
      collections.deque()
    )
    self._thread = None
    if config.staleness:
      self._thread = concurrent.futures.ThreadPoolExecutor(1)

  @property
  def ahead(self) -> int:
    """Returns the number of batches begun but not yet handed out."""
    return len(self._ahead)

  def next(self, params: Any) -> RatedBatch:
    """Returns the next batch; all earlier ones must be learned from.

    Args:
      params: the current parameters, as trained. All batches that they sample
        are begun.
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
    """Waits for all batches that were begun; the policy then has `params`.

    Returns:
      Seconds that it waited for batches of later updates.
    """
    began = time.monotonic()
    for wait in self._ahead:
      wait()
    waited = time.monotonic() - began
    self._policy.set_params(self._backbone(params))
    return waited

  def close(self) -> None:
    """Waits for the batch in progress; batches not begun are dropped."""
    if self._thread:
      self._thread.shutdown(cancel_futures=True)

  def _is_due(self, update: int) -> bool:
    config = self._config
    after = sampled_after(update, config.staleness, config.checkpoint_every)
    return update <= config.updates and after <= self._handed_out

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
  ) -> RatedBatch:
    clock = [time.monotonic()]
    if given:
      # Popped, so that no second copy stays beside the policy's own.
      self._policy.set_params(given.pop())
    groups = episodes_lib.sample(
      self._policy, chosen, self._config.samples, f'update {update}'
    )
    clock.append(time.monotonic())
    rated = self._rate(chosen, groups)
    clock.append(time.monotonic())
    return RatedBatch(rated, staleness, *np.diff(clock).tolist())
