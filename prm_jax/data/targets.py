"""Turns step labels into the numbers that a loss reads.

    Chain (labels with their provenance) + TargetConfig -> Targets -> loss

The configuration decides what neutral steps count as, whether labels are soft
or hard, what is learned after the first error, and whether the process or only
the outcome is supervised. Steps of weight 0 are masked out of the loss.
"""

import dataclasses
from typing import Annotated, NamedTuple

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.runtime import checks
from prm_jax.runtime.checks import one_of

Supervision = Annotated[str, one_of('process', 'outcome', 'completion')]
Neutral = Annotated[str, one_of('good', 'bad', 'ignore', 'half')]
AfterFirstError = Annotated[str, one_of('mask', 'bad', 'keep')]


@dataclasses.dataclass(frozen=True)
class TargetConfig:
  """Says how labels become targets.

  Attributes:
    supervision: 'process' trains on the label of every step. 'outcome' trains
      on the chain's outcome, at its last step only (an ORM). 'completion' uses
      no labels: the tokens of all steps and the end of the chain are the
      target (a policy).
    neutral: target of a neutral step: 'good' (1), 'bad' (0), 'half' (1/2, the
      middle class of a three-class head) or 'ignore' (masked out). A neutral
      step is never an error: the steps after it keep their labels.
    after_first_error: what happens to the steps after the first error. 'mask'
      masks them out (human labellers often stop at the first error), 'bad'
      sets them to 0 (a chain with an error stays wrong), 'keep' leaves their
      labels alone. An error is a target of exactly 0, after `hard_above` is
      applied: a soft label of 0.3 is not an error, but 0 successes in 8
      rollouts are one, although they may be bad luck. With soft rollout labels
      'mask' chose better chains by the lowest step score, and 'keep' by the
      last (experiments/label_sources/SOFT.md).
    hard_above: None keeps soft labels. A number makes labels hard: 1 above it,
      else 0. With 0 a step is right if any rollout from it succeeded.
  """

  supervision: Supervision = 'process'
  neutral: Neutral = 'good'
  after_first_error: AfterFirstError = 'mask'
  hard_above: float | None = None

  def __post_init__(self) -> None:
    checks.check(self)


class Targets(NamedTuple):
  """Holds one number of each kind per encoded step."""

  values: np.ndarray  # [P] float32 in [0, 1]
  weights: np.ndarray  # [P] float32, 1 or 0; steps of weight 0 are masked out
  trials: np.ndarray  # [P] float32, rollouts behind the value; 0 if none


def step_targets(chain: Chain, steps: int, config: TargetConfig) -> Targets:
  """Returns the targets of the first `steps` steps of a chain.

  All weights are 0 if the chain has no labels or, under outcome supervision,
  if it has no outcome or was cut before its last step.

  Args:
    steps: number of steps that fit into the model's window.
  """
  values = np.zeros(steps, np.float32)
  weights = np.zeros(steps, np.float32)
  trials = np.zeros(steps, np.float32)
  if config.supervision == 'completion':
    return Targets(values, np.ones(steps, np.float32), trials)
  if config.supervision == 'outcome':
    if chain.outcome is not None and steps == len(chain.steps):
      values[-1], weights[-1] = float(chain.outcome), 1.0
    return Targets(values, weights, trials)

  wrong = False
  for i, label in enumerate(chain.labels[:steps]):
    value = label.value
    if label.neutral:
      choice = {'good': 1.0, 'bad': 0.0, 'half': 0.5, 'ignore': None}
      value = choice[config.neutral]
    elif value is not None and config.hard_above is not None:
      value = float(value > config.hard_above)
    if wrong and config.after_first_error == 'mask':
      value = None
    elif wrong and config.after_first_error == 'bad':
      value = 0.0
    if value is None:
      continue
    values[i], weights[i], trials[i] = value, 1.0, label.trials or 0
    wrong = wrong or (value == 0 and not label.neutral)
  return Targets(values, weights, trials)
