"""Decides what a right answer is, for labels, search, evaluation and rewards.

    problem, final answer, true answer -> data/verify/answers.py -> right or not

Domains whose truth is known (`data/domains/known.py`) write each answer in one
way only, so there equal text decides.
"""

import functools
from collections.abc import Sequence

from prm_jax.data.chains import Chain
from prm_jax.data.domains.known import domain_of
from prm_jax.data.verify import answers
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.inference.driver import CannotDo
from prm_jax.inference.protocols import Completion


def truth_of(chain: Chain) -> str:
  """Returns the right answer of a chain's problem.

  It is `meta['truth']` if that is given, and neither null nor blank. Problems
  of a known domain are computed, and a chain with a right outcome gives its own
  answer.

  Raises:
    CannotDo: the right answer is not known.
  """
  truth = chain.meta.get('truth')
  if truth is not None and (text := str(truth).strip()):
    return text
  if domain := domain_of(chain.problem):
    return domain.true_answer(chain.problem)
  if chain.outcome and chain.answer is not None:
    return chain.answer
  raise CannotDo(
    "the right answer is not known: no 'truth' in meta and no right outcome"
  )


class _Undecided(Exception):
  """Reports a time limit; it is raised because lru_cache keeps results."""


@functools.lru_cache(maxsize=100_000)
def _equal(answer: str, other: str) -> bool:
  verdict = answers.compare(answer, other)
  if verdict.how == 'time limit':
    raise _Undecided
  return verdict.equal


def same_answer(problem: str, answer: str, other: str) -> bool | None:
  """Returns whether two answers are equal, None if time ran out first."""
  if answer == other or domain_of(problem):
    return answer == other
  try:
    return _equal(answer, other)
  except _Undecided:
    return None


@functools.lru_cache(maxsize=100_000)
def answer_of(problem: str, steps: tuple[str, ...]) -> str | None:
  """Returns the final answer of a chain; None if it has none.

  It is what the last step states; of a program, its outputs.
  """
  if not steps:
    return None
  domain = domain_of(problem)
  return domain.answer_of(problem, steps) if domain else final_answer(steps)


def ends_right(problem: str, steps: Sequence[str], truth: str) -> bool | None:
  """Returns whether a chain has the true answer, None if unknown."""
  answer = answer_of(problem, tuple(steps))
  return answer is not None and same_answer(problem, answer, truth)


def is_right(
  problem: str,
  completion: Completion,
  truth: str,
  before: tuple[str, ...] = (),
) -> bool | None:
  """Returns whether a completion ends its chain with the right answer.

  An unfinished chain is wrong, even if the right number appears in it.

  Args:
    before: the steps that the completion continues.

  Returns:
    None if the answers could not be compared within the time limit.
  """
  steps = (*before, *completion.steps)
  return completion.finished and ends_right(problem, steps, truth)
