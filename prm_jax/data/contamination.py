"""Removes training chains whose problems occur in an evaluation set.

    readers -> chains -> remove_contaminated -> builder

Problems are compared by their normalised text. This finds copies that differ in
layout only, but not paraphrases or changed numbers. Problems made from a
template are compared by their wording (`same_wording`), because only names and
numbers change in them.
"""

import functools
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prm_jax.data.chains import Chain, source_problem
from prm_jax.data.readers import records
from prm_jax.runtime.errors import UserError

# These commands change spacing and size only, or begin and end maths.
_LAYOUT = re.compile(
  r'\\(?:(?:left|right|displaystyle|limits|quad|qquad|big|bigg)(?![a-z])'
  r'|[,;:!>()\[\]\s])'
  r'|[~$]'
)
_ESCAPED = re.compile(r'\\([$%#&_])')
_FRACTION = re.compile(r'\\[dt]frac(?![a-z])')
_THOUSANDS = re.compile(r'(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))')
# A point or comma between two digits is kept, as in 1.5 and (1,2).
_POINT = re.compile(r'(?<!\d)[.,:]|[.,:](?!\d)')
_SENTENCE = re.compile('[;?\'"`\u00b4\u2018-\u201f]')
_DASH = re.compile('[\u2010-\u2015\u2212]')
_FIELDS = (
  *records.PROBLEM_FIELDS,
  *('original_question', 'modified_question'),
  'Question',  # of Mr-Ben
)

# Two problems that share more than this part of their words are taken to come
# from one template. All 57 templates of the words domain pass with GSM8K's test
# problems, from which they were made, 7 with as many of its training problems,
# and none with ProcessBench's problems of MATH.
SAME_WORDING = 0.37


class Removed(NamedTuple):
  """Counts the chains removed because of one evaluation set."""

  chains: int
  problems: int  # distinct after normalisation


def normalise(text: str) -> str:
  """Removes from a text what may differ between two copies of a problem.

  Applies NFKC and case folding. Then removes white space, LaTeX spacing, sizing
  and math delimiters (`$`, `\\(`, `\\,`, `\\left`), thousands separators and
  sentence punctuation, and writes `\\dfrac` as `\\frac` and all dashes alike.
  Operators, brackets, digits and the points within numbers stay: 1.5 is not 15,
  and x+1 is not x-1.
  """
  text = unicodedata.normalize('NFKC', text).casefold()
  text = _FRACTION.sub(r'\\frac', text)
  text = _LAYOUT.sub('', text)
  text = _THOUSANDS.sub('', text)
  text = _DASH.sub('-', _SENTENCE.sub('', text))
  # White space goes last: in '2, 3' it shows that the comma separates.
  return re.sub(r'\s+', '', _POINT.sub('', text))


# A problem has several chains, and is compared again when they are split.
@functools.lru_cache(maxsize=2**15)
def compared(text: str) -> str:
  """Returns the normal form without separators and braces.

  `normalise` keeps the comma of '(1,2)' and not that of '(1, 2)', and LaTeX
  shows x^{a} as x^a. The split into train and dev hashes this form, so changing
  it would move problems from one to the other.
  """
  return re.sub('[,:{}]', '', normalise(text))


def _unescaped(text: str) -> str:
  """Returns `compared` of a text, where LaTeX's `\\$` is `$`, for example."""
  return compared(_ESCAPED.sub(r'\1', text))


def remove_contaminated(
  chains: Sequence[Chain], evaluation_problems: Mapping[str, Iterable[str]]
) -> tuple[list[Chain], dict[str, Removed]]:
  """Removes the chains whose problem is in one of the evaluation sets.

  Also those whose problem was changed from one in a set.

  Args:
    evaluation_problems: the problems of each evaluation set, by its name.

  Returns:
    The chains that may be trained on, in order, and the counts of what each set
    removed. A chain that is in two sets counts in both.

  Raises:
    UserError: an evaluation set has no problems, so nothing would be checked.
  """
  problems = [_unescaped(source_problem(chain)) for chain in chains]
  changed = [_unescaped(chain.problem) for chain in chains]
  contaminated: set[int] = set()
  removed = {}
  for name, texts in evaluation_problems.items():
    evaluated = {_unescaped(text) for text in texts}
    if not evaluated:
      raise UserError(
        f'evaluation set {name!r} has no problems; leave it out, or give it '
        'some'
      )
    hits = [
      i
      for i, own in enumerate(zip(problems, changed, strict=True))
      if not evaluated.isdisjoint(own)
    ]
    removed[name] = Removed(len(hits), len({problems[i] for i in hits}))
    contaminated.update(hits)
  kept = [c for i, c in enumerate(chains) if i not in contaminated]
  return kept, removed


def wording(text: str) -> set[str]:
  """Returns the words of a text; numbers are left out."""
  return set(re.findall(r'[^\W\d_]+', text.casefold()))


def same_wording(words: set[str], others: Iterable[set[str]]) -> bool:
  """Says whether a text has the wording of one of the other texts.

  Two texts do if they share more than SAME_WORDING of the words that either of
  them has.

  Args:
    words, others: `wording` of the text, and of the others.
  """
  return any(
    len(words & other) > SAME_WORDING * len(words | other) for other in others
  )


def read_evaluation_problems(path: str | os.PathLike) -> list[str]:
  """Reads the problems of an evaluation file: JSON lines or one JSON array.

  Takes every field `question`, `problem`, `input`, `original_question`,
  `modified_question` and `Question` that a record has.

  Raises:
    UserError: a record is bad or has none of these fields, or the file has no
      records.
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
      names = [name for name in _FIELDS if name in record.value]
      if not names:
        raise UserError(f'none of the fields {", ".join(_FIELDS)}')
      problems += [records.text(record.value, name) for name in names]
    except UserError as error:
      raise UserError(
        f'{path}:{record.line}: {error}; correct the record'
      ) from None
  if not problems:
    raise UserError(f'{path}: has no records; expected JSON or JSON lines')
  return problems
