"""The arithmetic domain read back from text.

A trained policy writes chains as text, rightly formed or not. Here its steps
are checked exactly, and problems give their own answers; `arithmetic` is the
domain itself.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from prm_jax.data.domains.arithmetic import OPS
from prm_jax.runtime.errors import UserError

_PROBLEM = re.compile(r'mod (\d{1,2}) : (\d{1,2})((?: [-+*] \d{1,2})+)', re.A)
_PART = re.compile(r'([-+*]) (\d{1,2})', re.A)
_STEP = re.compile(r'(\d{1,2}) ([-+*]) (\d{1,2}) = (\d{1,2})', re.A)


class Written(NamedTuple):
  """A problem as it is written, `mod 10 : 7 * 3 + 4`."""

  modulus: int
  start: int
  parts: tuple[tuple[str, int], ...]  # the operations, in order


def is_problem(text: str) -> bool:
  """Whether a text is a problem of this domain."""
  return _PROBLEM.fullmatch(text) is not None


def read_problem(text: str) -> Written:
  """Takes a problem apart.

  Raises:
    UserError: it is none of this domain.
  """
  match = _PROBLEM.fullmatch(text)
  if match is None:
    raise UserError(
      f'{text[:60]!r} is no problem of the arithmetic domain; expected e.g. '
      "'mod 10 : 7 * 3 + 4'"
    )
  modulus, start, rest = match.groups()
  parts = tuple((op, int(n)) for op, n in _PART.findall(rest))
  return Written(int(modulus), int(start), parts)


def calculate(op: str, a: int, b: int, modulus: int) -> int:
  """The right result of one operation, in [0, modulus)."""
  results = dict(zip(OPS, (a + b, a - b, a * b), strict=True))
  return results[op] % modulus


def true_answer(problem: str) -> str:
  """The right final answer of a problem."""
  written = read_problem(problem)
  value = written.start
  for op, operand in written.parts:
    value = calculate(op, value, operand, written.modulus)
  return str(value)


def result_of(step: str) -> int | None:
  """The result that a step states; None where it has not a step's form."""
  match = _STEP.fullmatch(step)
  return int(match[4]) if match else None


def read_results(problem: str, steps: Sequence[str]) -> list[int] | None:
  """The result of each step of a rightly formed chain, right or wrong.

  None where it is not: every operation of the problem has to stand in its place
  once, on the result before it, and give a number of the domain.
  """
  written = read_problem(problem)
  matches = [_STEP.fullmatch(step) for step in steps]
  if len(matches) != len(written.parts) or not all(matches):
    return None
  results = [int(match[4]) for match in matches]
  states = [written.start, *results]
  stated = [(int(match[1]), match[2], int(match[3])) for match in matches]
  asked = [(states[i], *part) for i, part in enumerate(written.parts)]
  inside = all(result < written.modulus for result in results)
  return results if inside and stated == asked else None


def check_steps(problem: str, steps: Sequence[str]) -> list[bool]:
  """Is each step right, as `arithmetic.step_correct` says it of results?

  A step is right if it takes up the result written before it (the start, at
  first), applies the operation that is next in the problem and calculates
  rightly. What is no such step is wrong, and where it states no result that
  the next could take up, so is every step after it.
  """
  written = read_problem(problem)
  right = []
  state: int | None = written.start
  for i, step in enumerate(steps):
    match = _STEP.fullmatch(step)
    if match is None or state is None or i >= len(written.parts):
      right.append(False)
      state = int(match[4]) if match else None
      continue
    a, op, b, result = int(match[1]), match[2], int(match[3]), int(match[4])
    right.append(
      (a, op, b) == (state, *written.parts[i])
      and result == calculate(op, a, b, written.modulus)
    )
    state = result
  return right
