"""Is this final answer the same as that one?

Outcome labels, best-of-N and rewards ask. Exact readings come first: numbers,
units, tuples, intervals, sets, words. What is left, such as 2\\sqrt{2} and
\\sqrt{8}, goes to math-verify in a process that can be killed. An answer is
read whole or not at all: "it is 7, no, 8" equals neither.
"""

import re
import time
from typing import NamedTuple

from prm_jax.data.verify import quantities, spellings, symbolic

# Longer answers are equal to nothing but themselves.
MAX_TEXT = 2_000
MAX_PARTS = 50
_NOTHING = (
  'nosolution',
  'nosolutions',
  'thereisnosolution',
  'therearenosolutions',
  'emptyset',
  '\\emptyset',
  '\\varnothing',
  '\\{\\}',
)
_SHORT_WORDS = frozenset(
  (
    *('or', 'is', 'it', 'if', 'no', 'so', 'to', 'of', 'in', 'on', 'at', 'an'),
    *('as', 'by', 'be', 'do', 'he', 'we', 'us', 'my', 'up'),
  )
)
_THOUSANDS = re.compile(r'(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)')
_CLOSING = {'(': ')', '[': ']', '{': '}', '\\{': '\\}'}
_NAME = (
  r'(?P<name>(?:\\[A-Za-z]+|[A-Za-z]|[A-Z]{2})(?:_(?:\w|\{\w+\}))?'
  r'(?:\([A-Za-z]\))?|\([a-z](?:, ?[a-z]){1,2}\))'
)
_NAMED = re.compile(
  _NAME
  + r'\s*(?P<sign>=|\\in\b)\s*(?P<value>[^=<>,;]+|\d[\d,.]*\d|[^=<>]*[\])}])'
)
_NAMED_LAST = re.compile(r'(?P<value>[^=<>,;]+?)\s*(?P<sign>=)\s*' + _NAME)
_RELATION = re.compile(r'[=<>]|\\(?:leq?|geq?|neq?|lt|gt)(?![A-Za-z])')
_RANGES = re.compile(r'\\(?:cup|cap|mathbb|setminus)(?![A-Za-z])')
_MATRIX = re.compile(
  r'\\begin\{(?P<kind>[pb]?matrix)\}(?P<cells>.*)\\end\{(?P=kind)\}'
)
# What math-verify would drop or guess at.
_UNREADABLE = re.compile(r'[\d)}]_|\\approx|[\'"?!]{2}|[^\x20-\x7e]')


class Verdict(NamedTuple):
  """Are two answers equal, and what decided it.

  Attributes:
    how: text, number, parts, math-verify, or time limit (then not equal).
  """

  equal: bool
  how: str


def equal(answer: str, truth: str, seconds: float = 5.0) -> bool:
  """Is the answer the same as the true one? See `compare`."""
  return compare(answer, truth, seconds).equal


def compare(answer: str, truth: str, seconds: float = 5.0) -> Verdict:
  """Compares two final answers, plain text or LaTeX.

  The content of the last \\boxed counts where there is one. Numbers are
  compared exactly: 1/3 is not 0.33. 50% equals both 1/2 and 50, which a
  question for a percentage allows. A unit may be missing on one side, not
  differ, but for its spelling; none is converted, and the base of a numeral is
  one: 2112_7 is 2112, but not 2112_6 or 757. x = 4 and 4 = x are 4. A list
  without brackets is a set; (1, 2) is neither [1, 2] nor {1, 2}, and 1,234 is
  no list. A ratio or a date equals itself only: 2:3 is neither 4:6, as problems
  ask for lowest terms, nor 2/3. The order of the two does not matter.

  Args:
    seconds: wall time for the pair; after it, they are not equal.

  Raises:
    UserError: math-verify is needed and not installed.
  """
  deadline = time.monotonic() + seconds
  if len(answer) > MAX_TEXT or len(truth) > MAX_TEXT:
    return Verdict(answer.strip() == truth.strip(), 'text')
  try:
    a, b = spellings.clean(answer), spellings.clean(truth)
    if len(a) > MAX_TEXT or len(b) > MAX_TEXT:  # a ½ becomes a \frac
      return Verdict(a == b, 'text')
    return _compare(a, b, deadline, depth=0)
  except symbolic.TimedOut:
    return Verdict(False, 'time limit')


def _compare(a: str, b: str, deadline: float, depth: int) -> Verdict:
  if time.monotonic() > deadline:
    raise symbolic.TimedOut
  values = _peel(a, b) if a and b else None
  if values is None:
    return Verdict(False, 'text')
  a, b = values
  numbers = quantities.quantity(a), quantities.quantity(b)
  if all(numbers):
    return Verdict(quantities.same(*numbers), 'number')
  if _words(a) == _words(b):
    return Verdict(True, 'text')
  # 1,234 is a number before it is a list.
  parts = [
    None if n else _parts(x) for n, x in zip(numbers, (a, b), strict=True)
  ]
  if any(parts):
    return _compare_parts(a, b, parts, deadline, depth)
  return _compare_expressions(a, b, deadline)


def _compare_parts(
  a: str,
  b: str,
  parts: list[tuple[str, list[str]] | None],
  deadline: float,
  depth: int,
) -> Verdict:
  ranges = _is_range(a), _is_range(b)
  if all(parts) and depth < 3:
    same = _same_parts(*parts, deadline, depth)
    # Two unions, part by part; [0, 2] and [0, 1] \cup [1, 2] as sets.
    if same or parts[0][0] == parts[1][0] or not any(ranges):
      return Verdict(same, 'parts')
  elif not any(ranges):
    return Verdict(False, 'parts')
  return _compare_expressions(a, b, deadline)


def _is_range(text: str) -> bool:
  """Is it a set of numbers, but not its elements one by one?"""
  return bool(_RELATION.search(text) or _RANGES.search(text))


def _compare_expressions(a: str, b: str, deadline: float) -> Verdict:
  (a, unit_a), (b, unit_b) = quantities.measured(a), quantities.measured(b)
  related = [bool(_RELATION.search(x)) for x in (a, b)]
  if not quantities.agree(unit_a, unit_b):
    return Verdict(False, 'text')
  if _words(a) == _words(b):
    return Verdict(True, 'text')
  if (
    not all(_depths(x)[0] and not _wordy(x) for x in (a, b))
    or any(_UNREADABLE.search(x) for x in (a, b))
    or any(quantities.DATE.fullmatch(x) for x in (a, b))
    # 2x + 3 = 5 is not 5, though x = 5 is.
    or (any(related) and not all(related) and any('=' in x for x in (a, b)))
  ):
    return Verdict(False, 'text')
  # Always a little: the reading before it took almost none.
  left = max(deadline - time.monotonic(), 0.01)
  same = symbolic.WORKER.equal(spellings.latex(a), spellings.latex(b), left)
  return Verdict(same, 'math-verify')


def _same_parts(
  a: tuple[str, list[str]],
  b: tuple[str, list[str]],
  deadline: float,
  depth: int,
) -> bool:
  (kind_a, items_a), (kind_b, items_b) = a, b

  def same(x: str, y: str) -> bool:
    return _compare(x, y, deadline, depth + 1).equal

  if kind_a != kind_b or max(len(items_a), len(items_b)) > MAX_PARTS:
    return False
  if kind_a in ('set', 'union'):
    return all(any(same(x, y) for y in items_b) for x in items_a) and all(
      any(same(x, y) for x in items_a) for y in items_b
    )
  return len(items_a) == len(items_b) and all(
    same(x, y) for x, y in zip(items_a, items_b, strict=True)
  )


def _parts(text: str) -> tuple[str, list[str]] | None:
  """What kind of list it is, and its items.

  The kind is 'set' for braces or no brackets, or the brackets; or a union, a
  ratio, or a matrix and its columns.
  """
  matrix = _MATRIX.fullmatch(text)
  if matrix:
    rows = [row.split('&') for row in matrix['cells'].split('\\\\')]
    rows = [row for row in rows if row not in ([' '], [''])]
    cells = [cell.strip() for row in rows for cell in row]
    return f'matrix {[len(row) for row in rows]}', cells
  kind, inside = 'set', text
  for opening in ('\\{', '{', '(', '['):
    if text.startswith(opening):
      for closing in ('\\}', '}', ')', ']'):
        body = text[len(opening) : len(text) - len(closing)]
        if text.endswith(closing) and _depths(body)[0]:
          braces = '{' in opening and closing == _CLOSING[opening]
          kind, inside = 'set' if braces else opening + closing, body
          break
      break
  bare = kind == 'set' and inside is text
  if bare:
    inside = re.sub(r'\s*,?\s+(?:and|or)\s+', ', ', inside)
    if re.search(r',\s', inside):  # so 1,234 is one of several numbers
      inside = _THOUSANDS.sub(lambda m: m[0].replace(',', ''), inside)
  pieces = _depths(inside)[1]
  if bare and len(pieces) == 1:
    for name, mark in (('union', r'\\cup(?![A-Za-z])'), ('ratio', ':')):
      if len(pieces) == 1 and re.search(mark, inside):
        kind, pieces = name, re.split(mark, inside)
  if kind == 'set':
    pieces = [
      piece.replace('\\pm', sign, 1)
      for piece in pieces
      for sign in ('+-' if piece.count('\\pm') == 1 else '+')
    ]
  pieces = [piece.strip() for piece in pieces]
  single = len(pieces) == 1 and (kind != 'set' or bare)
  return None if single or not all(pieces) else (kind, pieces)


def _depths(text: str) -> tuple[bool, list[str]]:
  """Never closes more than it opened? And the pieces between outer commas."""
  depth, start, pieces = 0, 0, []
  for i, letter in enumerate(text):
    depth += (letter in '([{') - (letter in ')]}')
    if depth < 0:
      return False, []
    if letter in ',;' and depth == 0:
      pieces.append(text[start:i])
      start = i + 1
  return depth == 0, [*pieces, text[start:]]


def _peel(a: str, b: str) -> tuple[str, str] | None:
  """Two texts without the x = before or after them; None if names differ."""
  found = [_NAMED.fullmatch(x) or _NAMED_LAST.fullmatch(x) for x in (a, b)]
  if all(found):
    values = found[0]['value'].strip(), found[1]['value'].strip()
    if re.sub(r'[{}]', '', found[0]['name']) == re.sub(
      r'[{}]', '', found[1]['name']
    ):
      return values
    # x = 2y and y = x/2 have other names for one relation.
    return None if any(map(quantities.quantity, values)) else (a, b)
  texts = [a, b]
  for i, match in enumerate(found):
    # y = 2x + 1 beside 2x - y = -1 stays an equation.
    if match and not (match['sign'] == '=' and _RELATION.search(texts[1 - i])):
      texts[i] = match['value'].strip()
  return texts[0], texts[1]


def _wordy(text: str) -> bool:
  """Is it language? Then only the same words are equal to it."""
  text = re.sub(r'\\(?:begin|end)\s*\{\w+\}|\\[A-Za-z]+', ' ', text)
  text = re.sub(r'\s+and\s+', ' ', text)
  found = re.findall(r'[A-Za-z]+', text)
  return any(
    (len(w) > 2 and w.lower() not in quantities.FUNCTIONS)
    or w.lower() in _SHORT_WORDS
    for w in found
  )


def _words(text: str) -> str:
  """Text without case, spaces and a lone letter's parentheses."""
  # "2 3" is not 23, and 1, 234 is not 1,234.
  key = re.sub(r'(?<![\d,])\s+|\s+(?!\d)', '', text).casefold()
  if re.fullmatch(r'\([a-z]\)', key):
    key = key[1]
  return _NOTHING[0] if key in _NOTHING else key
