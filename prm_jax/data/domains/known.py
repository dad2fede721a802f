"""Recognises a problem's domain by its text, and gives the exact truth of it.

    problem text -> domain_of -> Domain: true answer, verdicts, final answer

The domains are arithmetic, logic, code, and questions to a critic about chains
of these, whose true answer is the right verdict. Problems in sentences are not
here: their answers can be spelled in many ways, and only the calculator checks
their steps.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from prm_jax.data.critiques import questions
from prm_jax.data.domains import arithmetic_text, code_text, logic_text
from prm_jax.data.verify import sandbox
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.runtime.errors import UserError

Steps = Sequence[str]


class Domain(NamedTuple):
  """Answers what can be known of the problems of one domain.

  Attributes:
    is_problem: whether a text is a problem of this domain.
    true_answer: problem -> its right answer. Equal answers have equal texts.
    check_steps: problem, steps, what a program may use -> whether each step is
      right; None where single steps have no truth.
    is_formed: problem, steps -> whether the chain has the domain's form, with
      right steps or not.
    answer_of: problem, steps (at least one) -> the answer; None if there is
      none.
  """

  is_problem: Callable[[str], bool]
  true_answer: Callable[[str], str]
  check_steps: Callable[[str, Steps, sandbox.Limits], list[bool]] | None
  is_formed: Callable[[str, Steps], bool]
  answer_of: Callable[[str, Steps], str | None]


DOMAINS = {
  'arithmetic': Domain(
    arithmetic_text.is_problem,
    arithmetic_text.true_answer,
    lambda problem, steps, _: arithmetic_text.check_steps(problem, steps),
    lambda problem, steps: (
      arithmetic_text.read_results(problem, steps) is not None
    ),
    lambda _, steps: final_answer(steps),
  ),
  'logic': Domain(
    logic_text.is_problem,
    logic_text.true_answer,
    lambda problem, steps, _: logic_text.check_steps(problem, steps),
    logic_text.is_formed,
    lambda _, steps: final_answer(steps),
  ),
  'code': Domain(
    code_text.is_problem,
    code_text.true_answer,
    code_text.check_steps,
    code_text.is_formed,
    lambda problem, steps: code_text.answer_of(
      problem, steps, sandbox.Limits()
    ),
  ),
}


def _true_verdict(text: str) -> str:
  """Returns the index of the first wrong step of the chain asked about, or -1.

  Raises:
    UserError: nothing is known of the chain's domain.
  """
  question = questions.read_question(text)
  domain = domain_of(question.problem)
  if domain is None:
    raise UserError(
      f'{text[:60]!r}: the true verdict is not known, as the problem is of '
      f'none of these domains: {", ".join(DOMAINS)}'
    )
  problem, steps = question.problem, question.steps
  if question.style.of_outcome:
    right = [domain.answer_of(problem, steps) == domain.true_answer(problem)]
  else:
    right = domain.check_steps(problem, steps, sandbox.Limits())
  if question.style.whole:
    return str(right.index(False) if False in right else -1)
  return str(-1 if right[-1] else len(steps) - 1)


def _is_verdict(text: str, lines: Steps) -> bool:
  return questions.verdict_of(text, lines) is not None


CRITIQUES = Domain(
  questions.is_question,
  _true_verdict,
  None,
  _is_verdict,
  questions.verdict_of,
)


def domain_of(problem: str) -> Domain | None:
  """Returns the domain of a problem; None if it is of none of them."""
  domains = (*DOMAINS.values(), CRITIQUES)
  return next((each for each in domains if each.is_problem(problem)), None)
