"""Reads problems and chains of the arithmetic domain back from text.

    problem text -> read_problem -> ParsedProblem
    problem text, step texts -> check_steps, read_results

A trained policy writes chains as text, well formed or not. This module checks
its steps exactly and calculates the right answers. `arithmetic` is the domain.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm_jax.data.domains.arithmetic import OPS
from prm_jax.runtime.errors import UserError

_PROBLEM = re.compile(r'mod ([1-9]\d?) : (\d{1,2})((?: [-+*] \d{1,2})+)', re.A)
_PART = re.compile(r'([-+*]) (\d{1,2})', re.A)
_STEP = re.compile(r'(\d{1,2}) ([-+*]) (\d{1,2}) = (\d{1,2})', re.A)


class ParsedProblem(NamedTuple):
  """Holds the parts of a problem such as `mod 10 : 7 * 3 + 4`."""

  modulus: int
  start: int
  parts: tuple[tuple[str, int], ...]  # operations and operands, in order


def is_problem(text: str) -> bool:
  """Says whether a text is a problem of this domain."""
  return _PROBLEM.fullmatch(text) is not None


def read_problem(text: str) -> ParsedProblem:
  """Parses a problem.

  Raises:
    UserError: the text is not a problem of this domain.
  """
  match = _PROBLEM.fullmatch(text)
  if match is None:
    raise UserError(
      f'{text[:60]!r} is no problem of the arithmetic domain; expected e.g. '
      "'mod 10 : 7 * 3 + 4'"
    )
  modulus, start, rest = match.groups()
  parts = tuple((op, int(n)) for op, n in _PART.findall(rest))
  return ParsedProblem(int(modulus), int(start), parts)


def calculate(op: str, a: int, b: int, modulus: int) -> int:
  """Returns the right result of one operation, in [0, modulus)."""
  results = dict(zip(OPS, (a + b, a - b, a * b), strict=True))
  return results[op] % modulus


def true_answer(problem: str) -> str:
  """Returns the right final answer of a problem."""
  parsed = read_problem(problem)
  value = parsed.start
  for op, operand in parsed.parts:
    value = calculate(op, value, operand, parsed.modulus)
  return str(value)


def result_of(step: str) -> int | None:
  """Returns the result that a step states; None if it is not well formed."""
  match = _STEP.fullmatch(step)
  return int(match[4]) if match else None


def read_results(problem: str, steps: Sequence[str]) -> list[int] | None:
  """Returns the result of each step of a well-formed chain, right or wrong.

  A chain is well formed if it has one step per operation of the problem, in
  order, each starts from the result before it, and all results are below the
  modulus. For other chains None is returned.
  """
  parsed = read_problem(problem)
  matches = [_STEP.fullmatch(step) for step in steps]
  if len(matches) != len(parsed.parts) or not all(matches):
    return None
  results = [int(match[4]) for match in matches]
  states = [parsed.start, *results]
  stated = [(int(match[1]), match[2], int(match[3])) for match in matches]
  expected = [(states[i], *part) for i, part in enumerate(parsed.parts)]
  in_range = all(result < parsed.modulus for result in results)
  return results if in_range and stated == expected else None


def expected_steps(problem: str, steps: Sequence[str]) -> list[str]:
  """Returns the right text of each step, from the result written before it.

  After a step without a result it continues from the right chain's; after the
  problem's last operation it is ''.
  """
  parsed = read_problem(problem)
  expected = []
  state = right = parsed.start
  for i in range(len(steps)):
    if i == len(parsed.parts):
      return expected + [''] * (len(steps) - i)
    op, operand = parsed.parts[i]
    result = calculate(op, state, operand, parsed.modulus)
    expected.append(f'{state} {op} {operand} = {result}')
    right = calculate(op, right, operand, parsed.modulus)
    written = result_of(steps[i])
    state = right if written is None else written
  return expected


def mistaken_step(problem: str, step: str, rng: np.random.Generator) -> str:
  """Returns a step with another result than it has, drawn at random."""
  match = _STEP.fullmatch(step)
  if match is None:
    return step
  modulus = read_problem(problem).modulus
  other = (int(match[4]) + int(rng.integers(1, modulus))) % modulus
  return f'{match[1]} {match[2]} {match[3]} = {other}'


def check_steps(problem: str, steps: Sequence[str]) -> list[bool]:
  """Says for each step whether it is right, as `arithmetic.step_correct` does.

  A step is right if it starts from the result of the step before it (or from
  the start value), applies the next operation of the problem and calculates
  correctly. Any other text is wrong. If it states no result, the step after it
  is wrong, too, because it has nothing to start from.
  """
  parsed = read_problem(problem)
  right = []
  state: int | None = parsed.start
  for i, step in enumerate(steps):
    match = _STEP.fullmatch(step)
    if match is None or state is None or i >= len(parsed.parts):
      right.append(False)
      state = int(match[4]) if match else None
      continue
    a, op, b, result = int(match[1]), match[2], int(match[3]), int(match[4])
    right.append(
      (a, op, b) == (state, *parsed.parts[i])
      and result == calculate(op, a, b, parsed.modulus)
    )
    state = result
  return right
