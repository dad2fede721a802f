r"""Writes and reads the plain question that a critic trained here is asked.

    check thinkprm | mod 10 : 7 * 3 + 4 | 7 * 3 = 1 | 1 + 4 = 5

The right verdict is known if the chain is of a domain in `domains/known`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from prm_jax.data.critiques.styles import STYLES, Style

_BAR = ' | '
_CHECK = 'check '


class Question(NamedTuple):
  """Holds what a question asks about.

  Attributes:
    name: key of `STYLES`.
  """

  name: str
  problem: str
  steps: tuple[str, ...]

  @property
  def style(self) -> Style:
    """Returns the style in which it is to be answered."""
    return STYLES[self.name]


def plain_question(name: str, problem: str, steps: Sequence[str]) -> str:
  """Writes the question about a chain, in words of its domain and few more."""
  return _BAR.join([_CHECK + name, problem, *steps])


def read_question(text: str) -> Question | None:
  """Returns the parts of a plain question; None if the text is none."""
  head, *parts = text.split(_BAR)
  name = head.removeprefix(_CHECK)
  if head == name or name not in STYLES or len(parts) < 2:
    return None
  return Question(name, parts[0], tuple(parts[1:]))


def is_question(text: str) -> bool:
  """Says whether a text is a plain question."""
  return text.startswith(_CHECK) and read_question(text) is not None


def verdict_of(text: str, lines: Sequence[str]) -> str | None:
  """Returns the verdict of a critique: the first wrong step's index, or -1.

  Args:
    text: the plain question.
    lines: the critique; None is returned if it gives no verdict.
  """
  question = read_question(text)
  first = question and question.style.first_wrong(lines, len(question.steps))
  return None if first is None else str(first)
