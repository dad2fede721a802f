"""Makes chains with labels from right solutions, with or without an error.

    equations.Solution + corruptions.Links -> chain_with_errors -> Chain

The domain `words` and the worked answers of a file (`worked_answers`) both end
here, after `equations` has read a solution.

Labels say what is true of the problem. Steps before the first error are 1.
From the first error on, a step that says anything false is 0, whether it is
calculated wrongly or carries the error on. A true step after the error is
unknown: it is right by itself but belongs to a chain that has gone wrong. A
repeated step is not an error: it is 1 and `neutral`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from prm_jax.data.chains import VERIFIED, Chain, StepLabel
from prm_jax.data.domains import corruptions, equations

_REPEATED = StepLabel(1.0, source='verifier', neutral=True)


@dataclasses.dataclass(frozen=True)
class PlantingConfig:
  """Says how often which errors are planted.

  Attributes:
    kinds: the kinds of error to choose from, some of `corruptions.KINDS`.
    error_share: probability that an error is planted.
    repeat_share: probability that a chain without error repeats a step.
  """

  kinds: tuple[str, ...] = corruptions.KINDS
  error_share: float = 0.5
  repeat_share: float = 0.05


def chain_with_errors(
  question: str,
  solution: equations.Solution,
  links: corruptions.Links,
  config: PlantingConfig,
  meta: Mapping[str, Any],
  rng: np.random.Generator,
) -> Chain | None:
  """Writes one attempt at a problem, from its right solution.

  Args:
    solution: the right solution; its last number is the answer.

  Returns:
    The chain; None if an error was to be planted and the solution offers none
    of the kinds. Its `meta` also holds `kind` ('right', 'repeated_step' or one
    of the kinds), `error_steps`, the indices of the steps in which an error
    was planted, and `solution`, the steps of the right solution.
  """
  steps = [''.join(step) for step in solution.steps]
  right = list(steps)
  labels = [VERIFIED[True]] * len(steps)
  errors, kind = [], 'right'
  answer = solution.text(-1)
  if rng.random() < config.error_share:
    given = equations.numbers(question)
    for kind in (config.kinds[k] for k in rng.permutation(len(config.kinds))):
      planted = corruptions.plant(solution, links, kind, given, rng)
      if planted:
        break
    else:
      return None
    wrong = planted.changed_steps(solution)
    labels = [
      VERIFIED[False if s in wrong else True if s < min(wrong) else None]
      for s in range(len(steps))
      if s != planted.dropped
    ]
    steps = corruptions.render(solution, planted)
    gap = len(solution.steps) if planted.dropped is None else planted.dropped
    errors = [s - (s > gap) for s in planted.steps]
    answer = equations.format_number(planted.values[-1], answer)
  elif rng.random() < config.repeat_share:
    kind = 'repeated_step'
    repeated = int(rng.integers(len(steps) - 1))
    # The copy stands after the step and before the answer.
    at = int(rng.integers(repeated + 1, len(steps)))
    steps.insert(at, steps[repeated])
    labels.insert(at, _REPEATED)
  return Chain(
    problem=question,
    steps=tuple(steps),
    answer=answer,
    outcome=equations.numbers(answer) == [solution.values[-1]],
    labels=tuple(labels),
    meta={
      **meta,
      'kind': kind,
      'error_steps': errors,
      'solution': right,
    },
  )
