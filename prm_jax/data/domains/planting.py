"""A right solution to a chain of steps with labels, an error in it or not.

What the domain `words` and worked answers that a person brings
(`worked_answers`) have in common, after `equations` has read the solution.

Labels say what is true of the problem. Up to the first error steps are 1.
From there a step that says anything false, be it calculated or carried on, is
0, and one that is true is unknown: it is right by itself, and stands in a
chain that has gone wrong. A repeated step is no error: it is 1, `neutral`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prm_jax.data.chains import Chain, StepLabel
from prm_jax.data.domains import corruptions, equations

_RIGHT = StepLabel(1.0, source='verifier')
_WRONG = StepLabel(0.0, source='verifier')
_UNKNOWN = StepLabel(None, source='verifier')
_REPEATED = StepLabel(1.0, source='verifier', neutral=True)


def chain_with_errors(
  question: str,
  solution: equations.Solution,
  links: corruptions.Links,
  kinds: Sequence[str],
  error_share: float,
  repeat_share: float,
  meta: Mapping[str, Any],
  rng: np.random.Generator,
) -> Chain | None:
  """One attempt at a problem; None if it offers none of the kinds.

  Args:
    solution: right, its last number the answer.
    kinds: the errors to choose from, some of `corruptions.KINDS`.
    error_share: probability that an error is planted.
    repeat_share: probability that a chain without error repeats a step.

  Returns:
    A chain whose `meta` says more: `kind` ('right', 'repeated_step' or one of
    the kinds) and `error_steps`, the indices of the steps that an error was
    planted in.
  """
  steps = [''.join(step) for step in solution.steps]
  labels = [_RIGHT] * len(steps)
  errors, kind = [], 'right'
  answer = solution.text(-1)
  if rng.random() < error_share:
    given = equations.numbers(question)
    for kind in (kinds[k] for k in rng.permutation(len(kinds))):
      planted = corruptions.plant(solution, links, kind, given, rng)
      if planted:
        break
    else:
      return None
    wrong = planted.differing(solution)
    labels = [
      _WRONG if s in wrong else _RIGHT if s < min(wrong) else _UNKNOWN
      for s in range(len(steps))
      if s != planted.dropped
    ]
    steps = corruptions.render(solution, planted)
    gap = len(solution.steps) if planted.dropped is None else planted.dropped
    errors = [s - (s > gap) for s in planted.steps]
    answer = equations.number_text(planted.values[-1], answer)
  elif rng.random() < repeat_share:
    kind = 'repeated_step'
    again = int(rng.integers(len(steps) - 1))
    # At once or later, but before the answer.
    at = int(rng.integers(again + 1, len(steps)))
    steps.insert(at, steps[again])
    labels.insert(at, _REPEATED)
  return Chain(
    problem=question,
    steps=tuple(steps),
    answer=answer,
    outcome=equations.numbers(answer) == [solution.values[-1]],
    labels=tuple(labels),
    meta={**meta, 'kind': kind, 'error_steps': errors},
  )
