"""Labels from rollouts: how often a policy ends right from each step.

    chain -> Requests for every step -> Completions -> (successes, trials)

Math-Shepherd (Wang et al., 2024). The counts are kept; whether targets are
soft (successes / trials) or hard (above a threshold; 0 is "any succeeded") is
`targets.hard_above`'s decision. `labels/omega.py` samples with it, too.
"""

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import ClassVar, NamedTuple

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.inference import grading
from prm_jax.inference.driver import Answers, Asked, CannotDo
from prm_jax.inference.protocols import Request
from prm_jax.labels.labelling import Labelling
from prm_jax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How many rollouts a prefix gets.

  Attributes:
    samples: k, the most that any prefix gets.
    round_size: rollouts of a prefix between two looks at them, to stop early
      where the counts decide; 0 asks for all k at once.
    threshold: a prefix is right if rollouts from it succeed more often; in
      [0, 1).
    delta: stop where the posterior probability of the side of the threshold on
      which successes / trials lies is above 1 - delta; in (0, 0.5). At
      threshold 0 that is the first success.
  """

  samples: int = 8
  round_size: int = 0
  threshold: float = 0.5
  delta: float = 0.05
  _where: ClassVar[str] = 'rollouts'

  def __post_init__(self) -> None:
    self._expect('samples', self.samples >= 1, '>= 1')
    self._expect('round_size', self.round_size >= 0, '>= 0')
    self._expect('threshold', 0 <= self.threshold < 1, 'a number in [0, 1)')
    self._expect('delta', 0 < self.delta < 0.5, 'a number in (0, 0.5)')

  def _expect(self, name: str, fine: bool, expected: str) -> None:
    if not fine:
      raise UserError(
        f'{self._where}.{name}={getattr(self, name)!r}: expected {expected}'
      )


@dataclasses.dataclass(frozen=True)
class RolloutConfig(Sampling):
  """Math-Shepherd's labels.

  Attributes:
    stop_after_first_zero: go from step to step and stop where no rollout
      succeeds; what follows is unknown. Cheaper, but one step at a time.
  """

  stop_after_first_zero: bool = False


class Rollout(NamedTuple):
  """One completion of a prefix.

  Attributes:
    steps: those after the prefix.
    finished: as in Completion.
    right: as `grading.is_right` has it. None is no trial: it could not be
      had, there was no room for a step, or nobody knows.
  """

  steps: tuple[str, ...]
  finished: bool
  right: bool | None


def label(chain: Chain, config: RolloutConfig) -> Labelling:
  """Labels every step by rollouts from its end; other labels are dropped.

  With all k rollouts, successes are Binomial(k, value) and successes / trials
  is unbiased. With early stopping it is not: a run that stops on a lucky
  streak keeps it, so soft labels are pushed away from the threshold (by up to
  0.08 at samples=32, round_size=4 and the default threshold and delta; much
  more at threshold 0). Stop early for hard labels at that threshold only.

  All completions of a finished chain are the chain itself: the last step has
  k successes of k, or none, without a rollout. Completions that could not be
  had, or had no room for a step, are no trials; a step that has none is unknown
  (None, 0 of 0). Those that a limit cut off later are trials that failed: give
  the policy room. `meta['rollouts']` counts both, see `tally`. Samples are
  keyed by `meta['id']` and the step.

  Raises:
    CannotDo: the right answer is not known, or no completion was had.
  """
  truth = grading.truth_of(chain)
  last = len(chain.steps) - 1
  if config.stop_after_first_zero:
    groups = [[i] for i in range(last)]
  else:
    groups = [list(range(last))]
  labels = [StepLabel(None, 'rollout')] * len(chain.steps)
  drawn: list[Rollout] = []
  for group in groups:
    had = yield from sample(
      chain.problem,
      [chain.steps[: i + 1] for i in group],
      [f'{chain.meta["id"]}/rollouts/{i}' for i in group],
      truth,
      config,
    )
    for i, rollouts in zip(group, had, strict=True):
      labels[i] = count(rollouts)
      drawn += rollouts
    if config.stop_after_first_zero and labels[group[0]].value == 0:
      break
  else:
    if last and not any(each.trials for each in labels):
      raise CannotDo('the policy gave no completion of any step')
    labels[last] = outcome_label(chain, truth, config.samples)
  meta = {**chain.meta, 'rollouts': tally(drawn)}
  return dataclasses.replace(chain, labels=tuple(labels), meta=meta)


def sample(
  problem: str,
  prefixes: Sequence[tuple[str, ...]],
  keys: Sequence[str],
  truth: str,
  config: Sampling,
) -> Generator[Asked, Answers, list[list[Rollout]]]:
  """Rollouts from some prefixes, in rounds; all still open ones in each.

  Args:
    keys: of the requests, one for each prefix.

  Returns:
    For each prefix its rollouts, in the order of their numbers.
  """
  had: list[list[Rollout]] = [[] for _ in prefixes]
  still = list(range(len(prefixes)))
  drawn = 0
  while still and drawn < config.samples:
    size = min(config.round_size or config.samples, config.samples - drawn)
    answers = yield [
      Request(problem, prefixes[i], keys[i], size, first=drawn) for i in still
    ]
    for i, completions in zip(still, answers, strict=True):
      had[i] += [
        Rollout((), False, None)
        if each is None or each.no_room
        else Rollout(
          each.steps,
          each.finished,
          grading.is_right(problem, each, truth, prefixes[i]),
        )
        for each in completions
      ]
    drawn += size
    if config.round_size:
      still = [i for i in still if not _decided(had[i], config)]
  return had


def count(rollouts: Sequence[Rollout]) -> StepLabel:
  """The label of the step that some rollouts start after."""
  trials = sum(each.right is not None for each in rollouts)
  successes = sum(bool(each.right) for each in rollouts)
  value = successes / trials if trials else None
  return StepLabel(value, 'rollout', successes, trials)


def tally(rollouts: Sequence[Rollout]) -> dict[str, int]:
  """What counts of successes do not show.

  Returns:
    `unfinished`: failures that a limit cut off; `unknown`: no trials at all.
  """
  known = [each for each in rollouts if each.right is not None]
  return {
    'unfinished': sum(not each.finished for each in known),
    'unknown': len(rollouts) - len(known),
  }


def outcome_label(chain: Chain, truth: str, trials: int) -> StepLabel:
  """The label of a chain's last step: its outcome, found out if unknown.

  Raises:
    CannotDo: it takes too long to find out.
  """
  right = chain.outcome
  if right is None:
    right = grading.ends_right(chain.problem, chain.steps, truth)
  if right is None:
    raise CannotDo('its answer could not be compared with the right one')
  return StepLabel(float(right), 'rollout', trials * right, trials)


def probability_above(threshold: float, successes: int, trials: int) -> float:
  """P(rate > threshold) where rate ~ Beta(1 + successes, 1 + failures).

  The posterior of a uniform prior. A beta variable with whole parameters is an
  order statistic of n + 1 uniform numbers, so its tail is a binomial's:
  P(Binomial(n + 1, threshold) <= successes), with n the trials.
  """
  n = trials + 1
  if not threshold:
    return 1.0
  # By logarithms: binomial coefficients of a thousand trials are no floats.
  log_right, log_wrong = math.log(threshold), math.log1p(-threshold)
  logs = [
    math.lgamma(n + 1)
    - math.lgamma(i + 1)
    - math.lgamma(n - i + 1)
    + i * log_right
    + (n - i) * log_wrong
    for i in range(successes + 1)
  ]
  return min(1.0, math.fsum(map(math.exp, logs)))


def _decided(rollouts: Sequence[Rollout], config: Sampling) -> bool:
  label = count(rollouts)
  successes, trials = label.successes, label.trials
  above = probability_above(config.threshold, successes, trials)
  # The rate must agree: near 0 or 1 it is the prior that is so sure.
  if successes > config.threshold * trials:
    return above > 1 - config.delta
  return above < config.delta
