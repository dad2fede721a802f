"""Errors planted in the arithmetic domain's right chains, and carried on.

What `corruptions` is to sentences: one step says something wrong, every later
one calculates rightly from what is written, and the answer is wrong.

    problem         mod 10 : 7 * 3 + 4 - 6
    right           7 * 3 = 1   1 + 4 = 5   5 - 6 = 9
    operand         7 * 3 = 1   1 + 8 = 9   9 - 6 = 3
    operator        7 * 3 = 1   1 - 4 = 7   7 - 6 = 1
    result          7 * 3 = 1   1 + 4 = 6   6 - 6 = 0
    copied_number   7 * 3 = 1   2 + 4 = 6   6 - 6 = 0
    skipped_step    7 * 3 = 1   1 - 6 = 5
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from prm_jax.data.domains.arithmetic import OPS
from prm_jax.data.domains.arithmetic_text import (
  Written,
  calculate,
  read_problem,
)

KINDS = ('operand', 'operator', 'result', 'copied_number', 'skipped_step')


class Planted(NamedTuple):
  """A chain with one error.

  Attributes:
    steps: as written; one less than the problem has with 'skipped_step'.
    answer: the last result, which is wrong.
    error: index of the step that is wrong by itself; where one was skipped,
      the step that stands in its place. All after it carry the error on.
  """

  steps: tuple[str, ...]
  answer: str
  error: int


class _Step(NamedTuple):
  a: int
  op: str
  b: int
  result: int


def right_steps(problem: str) -> tuple[str, ...]:
  """The one right chain of a problem.

  Raises:
    UserError: the text is no problem of this domain.
  """
  written = read_problem(problem)
  return _render(_carry_on(written, 0, written.start))


def plant(problem: str, kind: str, rng: np.random.Generator) -> Planted | None:
  """The right chain of a problem with one error, uniform over all there are.

  Args:
    kind: one of KINDS.

  Returns:
    The chain; None where the problem offers no error of the kind that makes
    its answer wrong, such as one before a multiplication by 0.

  Raises:
    UserError: the text is no problem of this domain.
  """
  written = read_problem(problem)
  right = _carry_on(written, 0, written.start)
  proposals = list(_proposals(written, right, kind))
  for i in rng.permutation(len(proposals)):
    error, step, following = proposals[i]
    rest = _carry_on(written, following, step.result)
    steps = [*right[:error], step, *rest]
    # Equal states go on equally: no step after the error is right by accident.
    if steps[-1].result != right[-1].result:
      return Planted(_render(steps), str(steps[-1].result), error)
  return None


def _proposals(
  written: Written, right: list[_Step], kind: str
) -> Iterator[tuple[int, _Step, int]]:
  """Place of the error, what is written there, the part that comes next."""
  for p, (a, op, b, result) in enumerate(right):
    if kind == 'operator':
      for other in OPS:
        if other != op:
          yield p, _step(written, a, other, b), p + 1
    elif kind == 'skipped_step':
      # Of two equal steps nobody could say which one is missing.
      if p + 1 < len(right) and written.parts[p] != written.parts[p + 1]:
        yield p, _step(written, a, *written.parts[p + 1]), p + 2
    else:
      for x in range(written.modulus):
        if kind == 'operand' and x != b:
          yield p, _step(written, a, op, x), p + 1
        elif kind == 'result' and x != result:
          yield p, _Step(a, op, b, x), p + 1
        elif kind == 'copied_number' and x != a:
          yield p, _step(written, x, op, b), p + 1


def _step(written: Written, a: int, op: str, b: int) -> _Step:
  return _Step(a, op, b, calculate(op, a, b, written.modulus))


def _carry_on(written: Written, part: int, state: int) -> list[_Step]:
  """The steps from a part of the problem on, calculated from a state."""
  steps = []
  for op, b in written.parts[part:]:
    steps.append(_step(written, state, op, b))
    state = steps[-1].result
  return steps


def _render(steps: list[_Step]) -> tuple[str, ...]:
  return tuple(f'{s.a} {s.op} {s.b} = {s.result}' for s in steps)
