"""Defines Chain and StepLabel, the records that all stages pass on.

Readers and domains make chains, label sources fill in `labels`, the encoding
turns chains into token ids, and evaluations and reports read them back. Both
classes check their fields when they are made, so every chain is well formed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax.runtime.errors import UserError, show

SOURCES = ('human', 'verifier', 'rollout', 'judge', 'implicit')


@dataclasses.dataclass(frozen=True, slots=True)
class StepLabel:
  """Holds what is known about one step, and where the knowledge comes from.

  Attributes:
    value: probability in [0, 1] that the step is right. None means unknown;
      such a step is masked out of every loss.
    source: kind of labeller, one of SOURCES.
    successes: number of rollouts from this step that reached the right answer
      (rollout labels only).
    trials: number of rollouts from this step (rollout labels only).
    neutral: whether the step is neither right nor wrong, such as PRM800K's
      rating 0. Its `value` is 1, because it contains no error;
      `targets.TargetConfig.neutral` decides what is learned from it.
  """

  value: float | None
  source: str = 'human'
  successes: int | None = None
  trials: int | None = None
  neutral: bool = False

  def __post_init__(self) -> None:
    if self.value is not None and not (
      isinstance(self.value, int | float) and 0 <= self.value <= 1
    ):
      raise UserError(
        f'step label {show(self.value)}: expected a number in [0, 1], or '
        'None for unknown'
      )
    if self.source not in SOURCES:
      raise UserError(
        f'label source {show(self.source)}: expected one of '
        f'{", ".join(SOURCES)}'
      )
    if not isinstance(self.neutral, bool):
      raise UserError(
        f'neutral is {show(self.neutral)}: expected true or false'
      )
    if self.neutral and self.value != 1:
      raise UserError(
        f'neutral step label {show(self.value)}: expected 1, because a neutral '
        'step contains no error; set 1, or neutral to false'
      )
    if (self.successes is None) != (self.trials is None):
      raise UserError('successes and trials come together or not at all')
    if self.trials is not None and not (
      # JSON may hold 1.5, which is no count.
      type(self.successes) is type(self.trials) is int
      and 0 <= self.successes <= self.trials
    ):
      raise UserError(
        f'{show(self.successes)} successes of {show(self.trials)} trials: '
        'expected whole numbers, 0 <= successes <= trials'
      )


# Verdict of a verifier -> label; None says nothing.
VERIFIED: Mapping[bool | None, StepLabel] = {
  True: StepLabel(1.0, source='verifier'),
  False: StepLabel(0.0, source='verifier'),
  None: StepLabel(None, source='verifier'),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
  """Holds a problem and the steps of one attempt at it.

  Attributes:
    problem: the question as the policy saw it.
    steps: the steps in order; none of them is blank.
    answer: the final answer as text, or None if the chain gives none.
    outcome: whether the final answer is right, or None if nobody checked it.
    labels: one label per step, or empty.
    meta: where the chain comes from: `id`, `dataset`, `generator` and whatever
      else a reader keeps. Holds JSON types only.
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
        raise UserError(
          f'step {i} is {show(step)}: expected a non-blank string'
        )
    if self.labels and len(self.labels) != len(self.steps):
      raise UserError(
        f'{len(self.labels)} labels for {len(self.steps)} steps: expected '
        'one per step, or none'
      )
    if not isinstance(self.answer, str | None):
      raise UserError(f'answer is {show(self.answer)}: expected text or None')
    if not isinstance(self.outcome, bool | None):
      raise UserError(
        f'outcome is {show(self.outcome)}: expected true, false or None'
      )
    if not isinstance(self.meta, Mapping):
      raise UserError(f'meta is {show(self.meta)}: expected an object')
    original = self.meta.get('original_problem', self.problem)
    if not isinstance(original, str) or not original.strip():
      raise UserError(
        f'meta.original_problem is {show(original)}: expected a non-empty '
        'string, or nothing'
      )


def source_problem(chain: Chain) -> str:
  """Returns the problem that the chain's problem was made from, or itself.

  The chain's problem may have another wording, or also hold answers to choose
  from. A split by it keeps a problem and its variants together.
  """
  return chain.meta.get('original_problem', chain.problem)


def shown_id(chain: Chain) -> str:
  """Returns the id of a chain, or how its problem begins, for a message."""
  return repr(chain.meta.get('id', chain.problem[:40]))


def was_cut_off(chain: Chain) -> bool:
  """Says whether a limit ended a sampled chain: its end says nothing then."""
  return chain.meta.get('finished') is False


def first_error(
  labels: Sequence[StepLabel], hard_above: float | None = None
) -> int:
  """Returns the index of the first step labelled wrong, or -1 if there is none.

  Args:
    labels: the labels of a chain. Unknown labels are skipped.
    hard_above: A step is wrong if its value is not above this threshold, as in
      `TargetConfig.hard_above`. None uses the rule of all evaluations: a step
      is wrong if its value is below 1/2.
  """
  for i, label in enumerate(labels):
    if label.value is None:
      continue
    if label.value < 0.5 if hard_above is None else label.value <= hard_above:
      return i
  return -1


def to_dict(chain: Chain) -> dict[str, Any]:
  """Converts a chain to plain JSON types; `from_dict` is the inverse."""
  return dataclasses.asdict(chain) | {
    'steps': list(chain.steps),
    'labels': [dataclasses.asdict(label) for label in chain.labels],
    'meta': dict(chain.meta),
  }


def from_dict(record: Mapping[str, Any]) -> Chain:
  """Builds a chain from the form that `to_dict` returns.

  Raises:
    UserError: a field is missing, unknown or of the wrong type.
  """
  if not isinstance(record, Mapping):
    raise UserError(f'chain record is {show(record)}: expected an object')
  known = {field.name for field in dataclasses.fields(Chain)}
  if unknown := sorted(set(record) - known):
    raise UserError(
      f'chain record with unknown field {show(unknown[0])}: expected '
      f'{", ".join(sorted(known))}'
    )
  for name in ('problem', 'steps'):
    if name not in record:
      raise UserError(f'chain record without {name!r}')
  labels = record.get('labels', ())
  for name, value in (('steps', record['steps']), ('labels', labels)):
    # A string is a sequence too: 'ab' must not become two steps.
    if not isinstance(value, list | tuple):
      raise UserError(f'{name} is {show(value)}: expected a list')
  try:
    return Chain(
      **dict(record)
      | {
        'steps': tuple(record['steps']),
        'labels': tuple(StepLabel(**label) for label in labels),
      }
    )
  except TypeError as error:
    # A key may be long and have line breaks.
    why = ' '.join(str(error).split())[:120]
    raise UserError(f'chain record of the wrong shape: {why}') from error


def evenly_spaced(chains: Sequence[Chain], count: int) -> list[Chain]:
  """Returns so many chains; 0 or more than there are returns all."""
  count = min(count or len(chains), len(chains))
  return [chains[i * len(chains) // count] for i in range(count)]
