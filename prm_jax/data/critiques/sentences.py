"""Says what steps in sentences have to be, by a right solution of the problem.

    right solution + steps of a chain -> what each step has to be -> writing

Sentences cannot be worked out from the text of a problem, as those of
arithmetic and logic are. `domains/planting`, which plants errors in right
solutions, keeps them as `solution` in the `meta` of its chains.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data.domains import equations


class Sentences(NamedTuple):
  """Works out the steps of one problem.

  Attributes:
    solution: right steps of the problem, in order.
  """

  solution: Sequence[str]

  def expected_steps(self, problem: str, steps: Sequence[str]) -> list[str]:
    """Returns the right text of every step, [P].

    A step of the right solution is right wherever it stands, even repeated.
    Any other step should have been the first one that was not said yet; '' if
    all were.
    """
    del problem
    expected = []
    for step in steps:
      if step in self.solution:
        expected.append(step)
        continue
      unsaid = (right for right in self.solution if right not in expected)
      expected.append(next(unsaid, ''))
    return expected

  def mistaken_step(
    self, problem: str, step: str, rng: np.random.Generator
  ) -> str:
    """Returns the step with a random wrong result in place of its own."""
    del problem
    read = equations.parse((step,))
    if not read.values:
      return step
    results = [equation.result for equation in read.equations]
    at = results[-1] if results else len(read.values) - 1
    other = read.values[at] + int(rng.integers(1, 10))
    tokens = list(read.steps[0])
    tokens[read.places[at][1]] = equations.format_number(other, read.text(at))
    return ''.join(tokens)
