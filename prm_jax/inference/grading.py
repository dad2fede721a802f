"""Decides what a right answer is, for labels, search, evaluation and rewards.

Answers are compared by `data/verify/answers.py`; the arithmetic domain writes a
number in one way only, so there the text decides.
"""

import functools
from collections.abc import Sequence

from prm_jax.data.chains import Chain
from prm_jax.data.domains import arithmetic_text
from prm_jax.data.verify import answers
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.protocols import Completion


def truth_of(chain: Chain) -> str:
  """The right answer of a chain's problem.

  It stands in `meta['truth']`; the arithmetic domain's problems have theirs in
  themselves; a chain whose outcome is right has it as its own.

  Raises:
    CannotDo: nobody knows it.
  """
  if 'truth' in chain.meta:
    return str(chain.meta['truth'])
  if arithmetic_text.is_problem(chain.problem):
    return arithmetic_text.true_answer(chain.problem)
  if chain.outcome and chain.answer is not None:
    return chain.answer
  raise CannotDo(
    "the right answer is not known: no 'truth' in meta and no right outcome"
  )


class _Undecided(Exception):
  """Raised, not returned: what is raised is not cached."""


@functools.lru_cache(maxsize=100_000)
def _equal(answer: str, other: str) -> bool:
  verdict = answers.compare(answer, other)
  if verdict.how == 'time limit':
    raise _Undecided
  return verdict.equal


def same_answer(problem: str, answer: str, other: str) -> bool | None:
  """Are two answers to a problem the same? None: not found out in time.

  The arithmetic domain writes a number in one way, so text decides there.
  """
  if answer == other or arithmetic_text.is_problem(problem):
    return answer == other
  try:
    return _equal(answer, other)
  except _Undecided:
    return None


def ends_right(problem: str, steps: Sequence[str], truth: str) -> bool | None:
  """Does the last step state the right answer? None: not found out in time."""
  answer = final_answer(steps) if steps else None
  return answer is not None and same_answer(problem, answer, truth)


def is_right(
  problem: str,
  completion: Completion,
  truth: str,
  before: tuple[str, ...] = (),
) -> bool | None:
  """Does a completion end its chain, and with the right answer?

  What a limit cut off may state the right number on its way, and is wrong.

  Args:
    before: the steps of its request.

  Returns:
    None where the answer could not be compared in time: nobody knows.
  """
  steps = (*before, *completion.steps)
  return completion.finished and ends_right(problem, steps, truth)
