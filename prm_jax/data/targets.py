"""Step labels as the numbers that a loss reads.

The labels of a chain keep their provenance; what to make of it is decided
here, by configuration: neutral steps, soft or hard labels, what follows the
first error, and process or outcome supervision. Returns values, weights and
trials of the steps; weight 0 is a step that teaches nothing.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from prm_jax.data.chains import Chain
from prm_jax.runtime.errors import UserError

CHOICES = {
  'supervision': ('process', 'outcome', 'completion'),
  'neutral': ('good', 'bad', 'ignore', 'half'),
  'after_first_error': ('mask', 'bad', 'keep'),
}


@dataclasses.dataclass(frozen=True)
class TargetConfig:
  """How labels become targets.

  Attributes:
    supervision: 'process' reads the label of every step; 'outcome' reads the
      chain's outcome at its last step only (an ORM); 'completion' reads none:
      every step is itself the target, and the end of the chain (a policy).
    neutral: what a neutral step is: good (1), bad (0), half (1/2, the middle
      class of a three-class head), or ignored. It is never an error: the steps
      behind it keep their labels, whatever it is.
    after_first_error: 'mask' (a human who stopped there said nothing of what
      follows), 'bad' (a chain with an error stays wrong), or 'keep' as given.
      An error is a value of exactly 0, hardened where `hard_above` says so. A
      soft label of 0.3 is no verdict: what follows it stays. Of rollouts, 0 of
      8 are one, and may be bad luck; soft labels of theirs want 'keep'.
    hard_above: None keeps soft labels; else a label is 1 if it is above this
      number (0 is the field's "any rollout succeeded"), and 0 if not.
  """

  supervision: str = 'process'
  neutral: str = 'good'
  after_first_error: str = 'mask'
  hard_above: float | None = None

  def __post_init__(self) -> None:
    for name, choices in CHOICES.items():
      if getattr(self, name) not in choices:
        raise UserError(
          f'targets.{name}={getattr(self, name)!r}: expected one of '
          f'{", ".join(choices)}'
        )


class Targets(NamedTuple):
  """One number per step that was encoded."""

  values: np.ndarray  # [P] float32 in [0, 1]
  weights: np.ndarray  # [P] float32, 0 is masked out
  trials: np.ndarray  # [P] float32, 0 where there were no rollouts


def step_targets(chain: Chain, steps: int, config: TargetConfig) -> Targets:
  """The targets of the first `steps` steps, which are those that fit.

  A chain without labels, without an outcome (for outcome supervision), or cut
  before its last step (likewise) gets weights that are all 0.
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
