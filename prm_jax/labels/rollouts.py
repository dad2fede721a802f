"""Labels steps by rollouts: how often a policy ends right when it continues.

    chain -> Requests for every step -> Completions -> (successes, trials)

Follows Math-Shepherd (Wang et al., 2024). Labels keep the counts. The setting
`targets.hard_above` decides later whether training uses soft targets (successes
/ trials) or hard ones (1 above a threshold; threshold 0 is "any succeeded").
`labels/omega.py` draws its rollouts here, too.
"""

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import Annotated, NamedTuple

from prm_jax.data.chains import Chain, StepLabel, was_cut_off
from prm_jax.inference import grading
from prm_jax.inference.driver import Answers, Asked, CannotDo
from prm_jax.inference.protocols import Request
from prm_jax.labels.labelling import Labelling
from prm_jax.runtime import checks
from prm_jax.runtime.checks import at_least, between, from_to_below


@dataclasses.dataclass(frozen=True)
class RolloutBudget:
  """Says how many rollouts a prefix gets, and when they stop early.

  Attributes:
    samples: k, the largest number of rollouts per prefix.
    round_size: number of rollouts of a prefix per round. After each round,
      prefixes whose counts are decisive stop. 0 draws all k at once.
    threshold: a prefix is right if its success rate is above this number, in
      [0, 1).
    delta: rollouts stop once the posterior probability that the success rate
      lies on the observed side of the threshold is above 1 - delta; in
      (0, 0.5). At threshold 0 that is the first success.
  """

  samples: Annotated[int, at_least(1)] = 8
  round_size: Annotated[int, at_least(0)] = 0
  threshold: Annotated[float, from_to_below(0, 1)] = 0.5
  delta: Annotated[float, between(0, 0.5)] = 0.05

  def __post_init__(self) -> None:
    checks.check(self)


@dataclasses.dataclass(frozen=True)
class RolloutConfig(RolloutBudget):
  """Holds the settings of Math-Shepherd's labels.

  Attributes:
    stop_after_first_zero: goes from step to step and stops after the first one
      from which no rollout succeeds; later steps are unknown. This needs fewer
      rollouts, but takes one round per step.
  """

  stop_after_first_zero: bool = False


class Rollout(NamedTuple):
  """Holds one completion of a prefix.

  Attributes:
    finished: whether the chain came to its end, as in Completion.
    right: whether its answer is right, by `grading.is_right`. None does not
      count as a trial: the completion failed, the window had no room for a
      step, or the answer could not be compared.
  """

  steps: tuple[str, ...]
  finished: bool
  right: bool | None


def label(chain: Chain, config: RolloutConfig) -> Labelling:
  """Labels every step by rollouts from its end; replaces existing labels.

  With all k rollouts, successes are Binomial(k, value) and successes / trials
  is unbiased. With early stopping it is biased: a prefix that stops after a
  lucky streak keeps it, which pushes soft labels away from the threshold (at
  samples=32 and the default delta by up to 0.08 with round_size=4 at threshold
  0.5, 0.10 at others, and by up to 0.27 with round_size=1). Stop early only for
  hard labels at that threshold.

  The only completion of a finished chain is the chain itself, so the last step
  gets k successes of k, or none, without rollouts. A chain that a limit cut off
  is rolled out from its last step, too. Completions that failed, or
  had no room for a step, are not trials; a step without trials is unknown
  (None, 0 of 0). Completions that a limit cut off later are failed trials, so
  give the policy enough tokens. `meta['rollouts']` counts both, see `tally`.
  Samples are keyed by `meta['id']` and the step.

  Raises:
    CannotDo: The right answer is not known, or every completion failed.
  """
  truth = grading.truth_of(chain)
  rolled_out = len(chain.steps) - (not was_cut_off(chain))
  if config.stop_after_first_zero:
    groups = [[i] for i in range(rolled_out)]
  else:
    groups = [list(range(rolled_out))]
  labels = [StepLabel(None, 'rollout')] * len(chain.steps)
  drawn: list[Rollout] = []
  for group in groups:
    by_step = yield from sample(
      chain.problem,
      [chain.steps[: i + 1] for i in group],
      [f'{chain.meta["id"]}/rollouts/{i}' for i in group],
      truth,
      config,
    )
    for i, rollouts in zip(group, by_step, strict=True):
      labels[i] = count(rollouts)
      drawn += rollouts
    if config.stop_after_first_zero and labels[group[0]].value == 0:
      break
  else:
    if rolled_out and not any(each.trials for each in labels):
      raise CannotDo('the policy gave no completion of any step')
    if not was_cut_off(chain):
      labels[-1] = outcome_label(chain, truth, config.samples)
  meta = {**chain.meta, 'rollouts': tally(drawn)}
  return dataclasses.replace(chain, labels=tuple(labels), meta=meta)


def sample(
  problem: str,
  prefixes: Sequence[tuple[str, ...]],
  keys: Sequence[str],
  truth: str,
  config: RolloutBudget,
) -> Generator[Asked, Answers, list[list[Rollout]]]:
  """Draws rollouts from prefixes in rounds, until each is decided or has k.

  Args:
    keys: one key per prefix for its requests.

  Returns:
    The rollouts of each prefix, in the order of their sample numbers.
  """
  drawn: list[list[Rollout]] = [[] for _ in prefixes]
  undecided = list(range(len(prefixes)))
  first = 0
  while undecided and first < config.samples:
    left = config.samples - first
    size = min(config.round_size or config.samples, left)
    answers = yield [
      Request(problem, prefixes[i], keys[i], size, first) for i in undecided
    ]
    for i, completions in zip(undecided, answers, strict=True):
      drawn[i] += [
        Rollout((), False, None)
        if each is None or each.no_room
        else Rollout(
          each.steps,
          each.finished,
          grading.is_right(problem, each, truth, prefixes[i]),
        )
        for each in completions
      ]
    first += size
    if config.round_size:
      undecided = [i for i in undecided if not _is_decided(drawn[i], config)]
  return drawn


def count(rollouts: Sequence[Rollout]) -> StepLabel:
  """Makes the label of the step after which the rollouts start."""
  trials = sum(each.right is not None for each in rollouts)
  successes = sum(bool(each.right) for each in rollouts)
  value = successes / trials if trials else None
  return StepLabel(value, 'rollout', successes, trials)


def tally(rollouts: Sequence[Rollout]) -> dict[str, int]:
  """Counts the rollouts that successes and trials do not show.

  Returns:
    `unfinished`: trials that were cut off by a limit and count as failures;
    `unknown`: rollouts that are not trials.
  """
  known = [each for each in rollouts if each.right is not None]
  return {
    'unfinished': sum(not each.finished for each in known),
    'unknown': len(rollouts) - len(known),
  }


def outcome_label(chain: Chain, truth: str, trials: int) -> StepLabel:
  """Labels a chain's last step by the outcome, grading the answer if needed.

  Raises:
    CannotDo: Comparing the answer with the right one takes too long.
  """
  right = chain.outcome
  if right is None:
    right = grading.ends_right(chain.problem, chain.steps, truth)
  if right is None:
    raise CannotDo(
      'the answer of the chain could not be compared with the right one'
    )
  return StepLabel(float(right), 'rollout', trials * right, trials)


def probability_above(threshold: float, successes: int, trials: int) -> float:
  """Returns P(rate > threshold) for rate ~ Beta(1 + successes, 1 + failures).

  That is the posterior under a uniform prior. A beta variable with integer
  parameters is an order statistic of n + 1 uniform numbers, so its tail is a
  binomial one: P(Binomial(n + 1, threshold) <= successes) for n trials.
  """
  n = trials + 1
  if not threshold:
    return 1.0
  # In logarithms, as binomial coefficients of a thousand trials overflow.
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


def _is_decided(rollouts: Sequence[Rollout], config: RolloutBudget) -> bool:
  """Says whether the counts are decisive enough to stop the rollouts."""
  label = count(rollouts)
  successes, trials = label.successes, label.trials
  if not trials:
    return False
  above = probability_above(config.threshold, successes, trials)
  # The observed rate must lie on the same side: near 0 or 1 the prior alone
  # can make the posterior this certain.
  if successes > config.threshold * trials:
    return above > 1 - config.delta
  return above < config.delta
