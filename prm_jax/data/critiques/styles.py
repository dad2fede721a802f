r"""Defines how critics are asked, and reads their verdicts.

    problem, steps -> question -> critique: lines of text -> first wrong step

The styles follow published verifiers; the wording is ours.

    thinkprm     ThinkPRM (Khalifa et al., 2025): says \boxed{correct} or
                 \boxed{incorrect} of each step, up to the first wrong one, then
                 whether the solution is correct
    genprm       GenPRM (Zhao et al., 2025): analyses the last step, checks it
                 with Python that is run, and says \boxed{Yes} or \boxed{No}
    r_prm        R-PRM (She et al., 2025): analyses the last step, then whether
                 it is correct: Yes or No
    boxed_index  DeepCritic (Yang et al., 2025), ProcessBench (Zheng et al.,
                 2024): \boxed{index} of the first wrong step, from 0, or -1
    genrm        GenRM (Zhang et al., 2024): solves the problem, then says
                 whether the answer is correct, Yes or No; learned from outcomes
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

Lines = Sequence[str]

# Models also write \textbf{Correct}, **Correct** or a point behind it.
_BOXED = r'\\boxed\s*\{[\s*]*(?:\\text(?:bf|it|rm)?\s*\{[\s*]*)?'
_STEP_VERDICT = re.compile(_BOXED + r'(in)?correct[\s*.]*\}', re.IGNORECASE)
_YES_NO = re.compile(_BOXED + r'(yes|no)\b', re.IGNORECASE)
_CORRECT = re.compile(
  r'is the (?:step|answer) correct\s*'
  r'\(\s*yes\s*/\s*no\s*\)\s*\?[\s*]*(yes|no)\b',
  re.IGNORECASE,
)
_BOX = re.compile(r'\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}')
# Models also write \text{paragraph_2}, \text{Step }2, or the typographic minus
# sign U+2212.
_INDEX = re.compile(
  r'(?:\\text\s*\{)?\s*<?(?:paragraph|step)?[ _\\]*\}?\s*'
  r'([-\u2212]?[0-9]{1,6})'
  r'>?\}?\.?',
  re.IGNORECASE,
)


class Style(NamedTuple):
  """Says how a critic is asked and read.

  Attributes:
    task: what a language model is told; it may contain `{last}`, the number of
      the last step.
    whole: whether a critique judges every step of a chain; if not, only the
      last one, or what it ends with.
    lead: text after which the next words are one of `options`; '' where no word
      has the whole verdict.
    options: what a critic says of a right and of a wrong chain, or step.
    first_wrong: the lines of a critique and the number of steps -> the index of
      the first wrong step, -1 if there is none; None if it gives no verdict.
    first: number of the first step in the question.
    runs_code: whether a critique has Python whose output is inserted into it.
    of_outcome: whether the verdict is about the answer and not about steps.
  """

  task: str
  whole: bool
  lead: str
  options: tuple[str, str]
  first_wrong: Callable[[Lines, int], int | None]
  first: int = 1
  runs_code: bool = False
  of_outcome: bool = False


def last_index(text: str, steps: int) -> int | None:
  r"""Reads the step index in the last \boxed{} of a text.

  Returns:
    An index from -1 to steps - 1, or None if there is no box or its content is
    no such index.
  """
  boxes = _BOX.findall(text)
  match = _INDEX.fullmatch(boxes[-1].strip()) if boxes else None
  if not match:
    return None
  index = int(match[1].replace('\u2212', '-'))
  return index if -1 <= index < steps else None


def _first_boxed_incorrect(lines: Lines, steps: int) -> int | None:
  """Reads one box a step, in order.

  No verdict unless all steps are judged or one is judged wrong.
  """
  verdicts = [not m[1] for m in _STEP_VERDICT.finditer('\n'.join(lines))]
  if False in verdicts[:steps]:
    return verdicts.index(False)
  return -1 if len(verdicts) == steps else None


def _last_of(pattern: re.Pattern, lines: Lines, steps: int) -> int | None:
  """Reads the last Yes or No, which is about the last step."""
  found = pattern.findall('\n'.join(lines))
  if not found:
    return None
  return -1 if found[-1].lower() == 'yes' else steps - 1


STYLES = {
  'thinkprm': Style(
    'Check the solution of a problem, step by step. Go through the steps in '
    'order: for each, write "Step", its number, what it should have been, and '
    r'\boxed{correct} or \boxed{incorrect}. Stop after the first incorrect '
    'step. Then write "Is the solution correct ?" and yes or no.',
    whole=True,
    lead='Is the solution correct ?',
    options=(' yes', ' no'),
    first_wrong=_first_boxed_incorrect,
  ),
  'genprm': Style(
    'Check step {last} of the solution of a problem; the steps before it need '
    'no check. Write what it has to be between <analyze> and </analyze>. Then '
    'write one line of Python that prints whether it is right between <verify> '
    'and </verify>; its output will be shown to you. Then write <output> and '
    r'\boxed{Yes} if the step is right, or \boxed{No}.',
    whole=False,
    lead='<output>',
    options=(r' \boxed{Yes}', r' \boxed{No}'),
    first_wrong=lambda lines, steps: _last_of(_YES_NO, lines, steps),
    runs_code=True,
  ),
  'r_prm': Style(
    'Check step {last} of the solution of a problem; the steps before it need '
    'no check. Write what it has to be. Then write "Is the step correct '
    '(Yes/No) ?" and Yes or No.',
    whole=False,
    lead='Is the step correct (Yes/No) ?',
    options=(' Yes', ' No'),
    first_wrong=lambda lines, steps: _last_of(_CORRECT, lines, steps),
  ),
  'boxed_index': Style(
    'Check the solution of a problem, step by step, and stop at the first step '
    r'with a mistake. End with the number of that step in \boxed{}, such as '
    r'\boxed{2}, or with \boxed{-1} if there is no mistake.',
    whole=True,
    lead='',
    options=('', ''),
    first_wrong=lambda lines, steps: last_index('\n'.join(lines), steps),
    first=0,
  ),
  'genrm': Style(
    'Check the answer that the solution of a problem ends with. Solve the '
    'problem yourself, step by step, and compare the answers. Then write "Is '
    'the answer correct (Yes/No) ?" and Yes or No.',
    whole=False,
    lead='Is the answer correct (Yes/No) ?',
    options=(' Yes', ' No'),
    first_wrong=lambda lines, steps: _last_of(_CORRECT, lines, steps),
    of_outcome=True,
  ),
}


def worded_question(style: Style, problem: str, steps: Sequence[str]) -> str:
  """Writes the question to a language model that was not trained here."""
  numbered = '\n\n'.join(
    f'Step {i}: {step}' for i, step in enumerate(steps, style.first)
  )
  last = style.first + len(steps) - 1
  task = style.task.replace('{last}', str(last))
  return f'{task}\n\n[Problem]\n{problem}\n\n[Solution]\n{numbered}'
