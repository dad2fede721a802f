"""Reads answers of several values: sets, tuples, ratios, matrices, amounts."""

import re

_THOUSANDS = re.compile(r'(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)')
_CLOSING = {'(': ')', '[': ']', '{': '}', '\\{': '\\}'}
_MATRIX = re.compile(
  r'\\begin\{(?P<kind>[pb]?matrix)\}(?P<cells>.*)\\end\{(?P=kind)\}'
)
_TWO_UNITS = re.compile(r'\d+ [a-z]{2,}(?: \d+ [a-z]{2,})+')


def read_parts(text: str) -> tuple[str, list[str]] | None:
  """Returns the kind of a list and its items, or None for a single value.

  The kind is 'set' for braces or no brackets, otherwise the two brackets, such
  as '[)'; or 'union', 'ratio', 'amount' as in 5 feet 6 inches, or 'matrix' with
  the lengths of its rows.
  """
  matrix = _MATRIX.fullmatch(text)
  if matrix:
    rows = [row.split('&') for row in matrix['cells'].split('\\\\')]
    rows = [row for row in rows if row not in ([' '], [''])]
    cells = [cell.strip() for row in rows for cell in row]
    return f'matrix {[len(row) for row in rows]}', cells
  brackets, inside = _strip_brackets(text)
  if brackets:
    kind, pieces = brackets, split_at_commas(inside)[1]
  else:
    kind, pieces = _split_without_brackets(text)
  if kind == 'set':
    pieces = [
      piece.replace('\\pm', sign, 1)
      for piece in pieces
      for sign in ('+-' if piece.count('\\pm') == 1 else '+')
    ]
  pieces = [piece.strip() for piece in pieces]
  # {5} is a set of one number, but (5) and 5 are numbers.
  single = len(pieces) == 1 and brackets != 'set'
  return None if single or not all(pieces) else (kind, pieces)


def _strip_brackets(text: str) -> tuple[str, str]:
  """Returns the kind of brackets around a text, '' for none, and the inside."""
  for opening in ('\\{', '{', '(', '['):
    if text.startswith(opening):
      for closing in ('\\}', '}', ')', ']'):
        inside = text[len(opening) : len(text) - len(closing)]
        if text.endswith(closing) and split_at_commas(inside)[0]:
          braces = '{' in opening and closing == _CLOSING[opening]
          return 'set' if braces else opening + closing, inside
      break
  return '', text


def _split_without_brackets(text: str) -> tuple[str, list[str]]:
  """Returns the kind of a list without brackets, and its items."""
  if _TWO_UNITS.fullmatch(text):
    return 'amount', re.split(r'(?<=[a-z]) (?=\d)', text)
  text = re.sub(r'\s*,?\s+(?:and|or)\s+', ', ', text)
  # With ", " between items, the comma of 1,234 is a thousands separator.
  if re.search(r',\s', text):
    text = _THOUSANDS.sub(lambda m: m[0].replace(',', ''), text)
  pieces = split_at_commas(text)[1]
  if len(pieces) == 1:
    for kind, mark in (('union', r'\\cup(?![A-Za-z])'), ('ratio', ':')):
      if re.search(mark, text):
        return kind, re.split(mark, text)
  return 'set', pieces


def split_at_commas(text: str) -> tuple[bool, list[str]]:
  """Splits at commas and semicolons outside of brackets.

  Returns:
    Whether every bracket is closed and none is closed before it opens, and the
    pieces; no pieces where a bracket closes before it opens.
  """
  depth, start, pieces = 0, 0, []
  for i, letter in enumerate(text):
    depth += (letter in '([{') - (letter in ')]}')
    if depth < 0:
      return False, []
    if letter in ',;' and depth == 0:
      pieces.append(text[start:i])
      start = i + 1
  return depth == 0, [*pieces, text[start:]]
