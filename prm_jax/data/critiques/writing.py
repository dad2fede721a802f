r"""Writes exact critiques: every step is worked out anew, compared and judged.

    Question -> what its steps have to be -> critique in the question's style

    thinkprm     Step 1 : 7 * 3 = 1 , \boxed{correct}
                 Step 2 : 1 + 4 = 5 , \boxed{incorrect}
                 Is the solution correct ? no
    genprm       <analyze> 1 + 4 = 5 </analyze>
                 <verify> print ( ( 1 + 4 ) % 10 == 6 ) </verify>
                 [Code Output: False ]
                 <output> \boxed{No}
    r_prm        1 + 4 = 5
                 Is the step correct (Yes/No) ? No
    boxed_index  0 : 7 * 3 = 1
                 1 : 1 + 4 = 5
                 \boxed{1}
    genrm        7 * 3 = 1
                 1 + 4 = 5
                 Is the answer correct (Yes/No) ? No

The critic judges by what it has worked out itself, so one that miscalculates
gives a wrong verdict.
"""

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from prm_jax.data.critiques.questions import Question
from prm_jax.data.critiques.sentences import Sentences
from prm_jax.data.domains import arithmetic_text, logic_text
from prm_jax.data.verify.final_answer import final_answer
from prm_jax.runtime.errors import UserError

# What a critique has beside the words of its domain.
WORDS = (
  *('check', 'thinkprm', 'genprm', 'r_prm', 'boxed_index', 'genrm', '|'),
  *('Step', ':', ',', r'\boxed{correct}', r'\boxed{incorrect}', 'Is', 'the'),
  *('solution', 'step', 'answer', 'correct', '(Yes/No)', '?', 'yes', 'no'),
  *('Yes', 'No', r'\boxed{Yes}', r'\boxed{No}', '<analyze>', '</analyze>'),
  *('<verify>', '</verify>', '<output>', '[Code', 'Output:', ']', 'True'),
  *('False', 'error', 'print', '(', ')', '%', '=='),
  *(rf'\boxed{{{i}}}' for i in range(-1, 32)),
)
_DOMAINS = {'arithmetic': arithmetic_text, 'logic': logic_text}


def write(
  question: Question,
  mistaken: int,
  rng: np.random.Generator,
  solution: Sequence[str] = (),
) -> list[str]:
  """Returns the lines of a critique.

  Args:
    mistaken: index of the step that the critic works out wrongly; -1: none.
    rng: draws the wrong result.
    solution: right steps of a problem whose text does not show its domain.

  Raises:
    UserError: steps of the problem cannot be worked out, or not in this style.
  """
  _, problem, steps = question
  domain = Sentences(solution) if solution else _domain_of(problem)
  if question.style.of_outcome:
    believed = _right_chain(problem, domain)
  else:
    believed = domain.expected_steps(problem, steps)
  if 0 <= mistaken < len(believed):
    wrong = domain.mistaken_step(problem, believed[mistaken], rng)
    believed[mistaken] = wrong
  if question.style.of_outcome:
    agrees = final_answer(believed) == final_answer(steps)
    return [*believed, f'{question.style.lead} {_yes(agrees)}']
  agree = [a == b for a, b in zip(believed, steps, strict=True)]
  if not question.style.whole:
    return _of_last_step(question, believed[-1], agree[-1])
  return _of_all_steps(question, believed, agree)


def _domain_of(problem: str) -> ModuleType:
  for domain in _DOMAINS.values():
    if domain.is_problem(problem):
      return domain
  raise UserError(
    f'{problem[:60]!r}: exact critiques can be written of problems of these '
    f'domains alone: {", ".join(_DOMAINS)}, and words'
  )


def _right_chain(problem: str, domain: ModuleType | Sentences) -> list[str]:
  """Returns the right steps of a problem."""
  steps = []
  while following := domain.expected_steps(problem, [*steps, ''])[-1]:
    steps.append(following)
  return steps


def _yes(right: bool) -> str:
  return 'Yes' if right else 'No'


def _of_all_steps(
  question: Question, believed: Sequence[str], agree: Sequence[bool]
) -> list[str]:
  """Judges steps in order, up to the first that is not as believed."""
  first = agree.index(False) if False in agree else -1
  judged = len(agree) if first < 0 else first + 1
  numbered = list(enumerate(believed[:judged], question.style.first))
  if question.name == 'boxed_index':
    return [*(f'{i} : {step}' for i, step in numbered), rf'\boxed{{{first}}}']
  verdicts = (
    r'\boxed{correct}' if ok else r'\boxed{incorrect}' for ok in agree
  )
  lines = [
    f'Step {i} : {step} , {verdict}'
    for (i, step), verdict in zip(numbered, verdicts, strict=False)
  ]
  return [*lines, f'{question.style.lead} {"no" if first >= 0 else "yes"}']


def _of_last_step(question: Question, believed: str, agrees: bool) -> list[str]:
  """Judges the last step by what it has to be."""
  if question.name == 'r_prm':
    return [believed, f'{question.style.lead} {_yes(agrees)}']
  return [
    f'<analyze> {believed} </analyze>',
    f'<verify> {_python(question.problem, believed, question.steps[-1])} '
    '</verify>',
    f'[Code Output: {agrees} ]',
    rf'<output> \boxed{{{_yes(agrees)}}}',
  ]


def _python(problem: str, believed: str, step: str) -> str:
  """Returns Python that prints whether a step has the result of its operation.

  Raises:
    UserError: the problem is of another domain.
  """
  if not arithmetic_text.is_problem(problem):
    raise UserError(
      f'{problem[:60]!r}: the style genprm checks with Python, which can be '
      'written of problems of arithmetic alone; take another style'
    )
  operation = believed.partition(' = ')[0]
  result = step.rpartition(' = ')[2]
  modulus = arithmetic_text.read_problem(problem).modulus
  return f'print ( ( {operation} ) % {modulus} == {result} )'
