"""Drops training chains whose problems are in an evaluation set.

Stands between the readers and the builder. Problems are compared by their
normalised text, so copies that differ in layout only are found; paraphrases
and changed numbers are not. Problems that a template makes are compared by
their wording: names and numbers change in them, the sentences do not.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prm_jax.data.chains import Chain
from prm_jax.data.readers import records
from prm_jax.runtime.errors import UserError

# LaTeX that only moves or sizes what it stands at, and the ways into maths.
_LAYOUT = re.compile(
  r'\\(?:(?:left|right|displaystyle|limits|quad|qquad|big|bigg)(?![a-z])'
  r'|[,;:!>()\[\]\s])'
  r'|[~$]'
)
_FRACTION = re.compile(r'\\[dt]frac(?![a-z])')
_THOUSANDS = re.compile(r'(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))')
# Between two digits a point or comma tells numbers apart: 1.5, (1,2).
_POINT = re.compile(r'(?<!\d)[.,:]|[.,:](?!\d)')
_SENTENCE = re.compile('[;?\'"`\u00b4\u2018-\u201f]')
_DASH = re.compile('[\u2010-\u2015\u2212]')
_FIELDS = ('problem', 'question', 'original_question', 'modified_question')


# Share of four-word runs from which two problems are of one template.
SAME_WORDING = 0.35


class Removed(NamedTuple):
  """What an evaluation set cost."""

  chains: int
  problems: int  # distinct after normalisation


def normalise(text: str) -> str:
  """The text without what can differ between two copies of one problem.

  NFKC and case folding; then no white space, no LaTeX spacing, sizing or math
  delimiters (`$`, `\\(`, `\\,`, `\\left`), `\\dfrac` as `\\frac`, one kind of
  dash, no thousands separators, no sentence punctuation. Operators, brackets,
  digits and the points within numbers stay: 1.5 is not 15, x+1 is not x-1.
  """
  text = unicodedata.normalize('NFKC', text).casefold()
  text = _FRACTION.sub(r'\\frac', text)
  text = _LAYOUT.sub('', text)
  text = _THOUSANDS.sub('', text)
  text = _DASH.sub('-', _SENTENCE.sub('', text))
  # White space goes last: in 'f(2), 3' it shows that the comma separates.
  return re.sub(r'\s+', '', _POINT.sub('', text))


def remove_contaminated(
  chains: Sequence[Chain], evaluation_problems: Mapping[str, Iterable[str]]
) -> tuple[list[Chain], dict[str, Removed]]:
  """The chains whose problem is in none of the evaluation sets.

  Args:
    chains: training chains.
    evaluation_problems: the problems of each evaluation set, by its name.

  Returns:
    The chains that may be trained on, in order, and what each set removed; a
    chain that is in two sets counts in both.

  Raises:
    UserError: an evaluation set has no problems, so nothing would be checked.
  """
  problems = [normalise(chain.problem) for chain in chains]
  dirty = set()
  removed = {}
  for name, texts in evaluation_problems.items():
    evaluated = {normalise(text) for text in texts}
    if not evaluated:
      raise UserError(
        f'evaluation set {name!r} has no problems; leave it out, or give it '
        'some'
      )
    hits = [problem for problem in problems if problem in evaluated]
    removed[name] = Removed(len(hits), len(set(hits)))
    dirty.update(hits)
  kept = [
    chain
    for chain, problem in zip(chains, problems, strict=True)
    if problem not in dirty
  ]
  return kept, removed


def _wording(text: str) -> set[tuple[str, ...]]:
  """The runs of four words of a text, numbers left out."""
  words = re.findall(r'[^\W\d_]+', text.casefold())
  return set(zip(words, words[1:], words[2:], words[3:], strict=False))


def same_wording(text: str, others: Iterable[str]) -> bool:
  """Whether a text shares the wording of one of the others.

  True from SAME_WORDING of the four-word runs of the shorter one on.
  """
  ours = _wording(text)
  for theirs in map(_wording, others):
    shorter = min(len(ours), len(theirs))
    if shorter and len(ours & theirs) > SAME_WORDING * shorter:
      return True
  return False


def read_problems(path: str | os.PathLike) -> list[str]:
  """The problems of an evaluation file: JSON lines or one JSON array.

  They are in the field `problem`, `question`, `original_question` or
  `modified_question`, in all of those that a record has.

  Raises:
    UserError: a record is bad or has none of these fields, or there is none.
  """
  problems = []
  for record in records.iterate(path):
    try:
      if isinstance(record.value, UserError):
        raise record.value
      if not isinstance(record.value, dict):
        raise UserError(
          f'{records.show(record.value)} where a JSON object belongs'
        )
      named = [name for name in _FIELDS if name in record.value]
      if not named:
        raise UserError(f'none of the fields {", ".join(_FIELDS)}')
      problems += [records.text(record.value, name) for name in named]
    except UserError as error:
      raise UserError(
        f'{path}:{record.line}: {error}; correct the record'
      ) from None
  if not problems:
    raise UserError(f'{path}: has no records; expected JSON or JSON lines')
  return problems
