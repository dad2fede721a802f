"""Chain and StepLabel: the record that every stage passes on.

Readers and domains make chains, label sources fill in `labels`, the encoding
turns them into token ids, and evaluations and reports read them back. Both
records check themselves when made, so a chain that exists is well formed.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.runtime.errors import UserError

SOURCES = ('human', 'verifier', 'rollout', 'judge', 'implicit')


@dataclasses.dataclass(frozen=True, slots=True)
class StepLabel:
  """What is known of one step, and how it is known.

  Attributes:
    value: probability in [0, 1] that the step is right; None is unknown and
      is masked out of every loss.
    source: who said so, one of SOURCES.
    successes: rollouts from here that ended right (rollout labels only).
    trials: rollouts from here (rollout labels only).
    neutral: neither right nor wrong, such as PRM800K's rating 0. The loss
      decides what to make of it; `value` is 1, as no error was made.
  """

  value: float | None
  source: str = 'human'
  successes: int | None = None
  trials: int | None = None
  neutral: bool = False

  def __post_init__(self) -> None:
    if self.value is not None and not (
      isinstance(self.value, int | float)
      and math.isfinite(self.value)
      and 0 <= self.value <= 1
    ):
      raise UserError(
        f'step label {self.value!r}: expected a number in [0, 1], or None '
        'for unknown'
      )
    if self.source not in SOURCES:
      raise UserError(
        f'label source {self.source!r}: expected one of {", ".join(SOURCES)}'
      )
    if not isinstance(self.neutral, bool):
      raise UserError(f'neutral is {self.neutral!r}: expected true or false')
    if (self.successes is None) != (self.trials is None):
      raise UserError('successes and trials come together or not at all')
    if self.trials is not None and not 0 <= self.successes <= self.trials:
      raise UserError(
        f'{self.successes} successes of {self.trials} trials: expected '
        '0 <= successes <= trials'
      )


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
  """A problem and the steps of one attempt at it.

  Attributes:
    problem: the question as the policy saw it.
    steps: the steps in order, none of them blank.
    answer: the final answer as text; None where there is none.
    outcome: was the final answer right; None where nobody checked.
    labels: one per step, or empty.
    meta: where it comes from: `id`, `dataset`, `generator`, and what a reader
      wants to keep. JSON types only.
  """

  problem: str
  steps: tuple[str, ...]
  answer: str | None = None
  outcome: bool | None = None
  labels: tuple[StepLabel, ...] = ()
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    if not isinstance(self.problem, str) or not self.problem.strip():
      raise UserError('chain without a problem: expected a non-empty string')
    if not self.steps:
      raise UserError('chain without steps: expected at least one')
    for i, step in enumerate(self.steps):
      if not isinstance(step, str) or not step.strip():
        raise UserError(f'step {i} is {step!r}: expected a non-blank string')
    if self.labels and len(self.labels) != len(self.steps):
      raise UserError(
        f'{len(self.labels)} labels for {len(self.steps)} steps: expected '
        'one per step, or none'
      )
    if not isinstance(self.answer, str | None):
      raise UserError(f'answer is {self.answer!r}: expected text or None')
    if not isinstance(self.outcome, bool | None):
      raise UserError(
        f'outcome is {self.outcome!r}: expected true, false or None'
      )
    if not isinstance(self.meta, Mapping):
      raise UserError(f'meta is {self.meta!r}: expected an object')


def first_error(
  labels: Sequence[StepLabel], hard_above: float | None = None
) -> int:
  """Index of the first step that its label calls wrong, -1 if none is.

  Args:
    hard_above: wrong is what is not above it, as in `targets.hard_above`; None:
      what is more wrong than right, below 1/2, as everywhere in `evals`.
  """
  for i, label in enumerate(labels):
    if label.value is None:
      continue
    if label.value < 0.5 if hard_above is None else label.value <= hard_above:
      return i
  return -1


def to_dict(chain: Chain) -> dict[str, Any]:
  """The chain as plain JSON types, `from_dict`'s inverse."""
  return dataclasses.asdict(chain) | {
    'steps': list(chain.steps),
    'labels': [dataclasses.asdict(label) for label in chain.labels],
    'meta': dict(chain.meta),
  }


def from_dict(record: Mapping[str, Any]) -> Chain:
  """A chain from `to_dict`'s form.

  Raises:
    UserError: a field is missing, unknown or of the wrong kind.
  """
  if not isinstance(record, Mapping):
    raise UserError(f'chain record is {record!r}: expected an object')
  known = {field.name for field in dataclasses.fields(Chain)}
  if unknown := sorted(set(record) - known):
    raise UserError(
      f'chain record with unknown field {unknown[0]!r}: expected '
      f'{", ".join(sorted(known))}'
    )
  for name in ('problem', 'steps'):
    if name not in record:
      raise UserError(f'chain record without {name!r}')
  labels = record.get('labels', ())
  for name, value in (('steps', record['steps']), ('labels', labels)):
    # A string is a sequence too: 'ab' must not become two steps.
    if not isinstance(value, list | tuple):
      raise UserError(f'{name} is {value!r}: expected a list')
  try:
    return Chain(
      **dict(record)
      | {
        'steps': tuple(record['steps']),
        'labels': tuple(StepLabel(**label) for label in labels),
      }
    )
  except TypeError as error:
    raise UserError(f'chain record of the wrong shape: {error}') from error
