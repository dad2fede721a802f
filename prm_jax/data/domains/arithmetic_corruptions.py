"""Plants errors in right chains of the arithmetic domain and carries them on.

One step is wrong, every later step calculates correctly from what is written,
and the answer is wrong. `corruptions` does the same for sentences.

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
  ParsedProblem,
  calculate,
  read_problem,
)

# Those of `corruptions.KINDS` that leave one error in a chain.
KINDS = (
  'wrong_operand',
  'wrong_operator',
  'wrong_result',
  'copied_number',
  'skipped_step',
)


class WrongChain(NamedTuple):
  """Holds a chain with one error.

  Attributes:
    steps: the steps; with 'skipped_step' there is one less than operations.
    answer: the last result, which is wrong.
    error: index of the wrong step; if a step was skipped, of the step in its
      place. All later steps carry the error on.
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
  """Returns the only right chain of a problem.

  Raises:
    UserError: the text is not a problem of this domain.
  """
  parsed = read_problem(problem)
  return _render(_carry_on(parsed, 0, parsed.start))


def plant(
  problem: str, kind: str, rng: np.random.Generator
) -> WrongChain | None:
  """Plants one error in the right chain, drawn uniformly from all possible.

  Args:
    kind: one of KINDS.

  Returns:
    The chain; None if no error of this kind makes the answer wrong, as before
    a multiplication by 0.

  Raises:
    UserError: the text is not a problem of this domain.
  """
  parsed = read_problem(problem)
  right = _carry_on(parsed, 0, parsed.start)
  proposals = list(_proposals(parsed, right, kind))
  for i in rng.permutation(len(proposals)):
    error, step, following = proposals[i]
    rest = _carry_on(parsed, following, step.result)
    steps = [*right[:error], step, *rest]
    # If the answer is wrong, so is every result after the error: from a right
    # result the rest of the chain would be right.
    if steps[-1].result != right[-1].result:
      return WrongChain(_render(steps), str(steps[-1].result), error)
  return None


def _proposals(
  parsed: ParsedProblem, right: list[_Step], kind: str
) -> Iterator[tuple[int, _Step, int]]:
  """Yields index of the error, the wrong step, and the operation after it."""
  for p, (a, op, b, result) in enumerate(right):
    if kind == 'wrong_operator':
      for other in OPS:
        if other != op:
          yield p, _step(parsed, a, other, b), p + 1
    elif kind == 'skipped_step':
      # Of two equal operations nobody could say which one is missing.
      if p + 1 < len(right) and parsed.parts[p] != parsed.parts[p + 1]:
        yield p, _step(parsed, a, *parsed.parts[p + 1]), p + 2
    else:
      for x in range(parsed.modulus):
        if kind == 'wrong_operand' and x != b:
          yield p, _step(parsed, a, op, x), p + 1
        elif kind == 'wrong_result' and x != result:
          yield p, _Step(a, op, b, x), p + 1
        elif kind == 'copied_number' and x != a:
          yield p, _step(parsed, x, op, b), p + 1


def _step(parsed: ParsedProblem, a: int, op: str, b: int) -> _Step:
  return _Step(a, op, b, calculate(op, a, b, parsed.modulus))


def _carry_on(parsed: ParsedProblem, part: int, state: int) -> list[_Step]:
  """Returns the steps from operation `part` on, calculated from `state`."""
  steps = []
  for op, b in parsed.parts[part:]:
    steps.append(_step(parsed, state, op, b))
    state = steps[-1].result
  return steps


def _render(steps: list[_Step]) -> tuple[str, ...]:
  return tuple(f'{s.a} {s.op} {s.b} = {s.result}' for s in steps)
