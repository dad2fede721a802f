"""Is this final answer the same as that one?

Outcome labels, best-of-N and rewards ask. Exact readings come first: numbers,
units, tuples, intervals, sets, words. What is left, such as 2\\sqrt{2} and
\\sqrt{8}, goes to math-verify in a process that can be killed. An answer is
read whole or not at all: "it is 7, no, 8" equals neither.
"""

import re
import time
from fractions import Fraction
from typing import NamedTuple

from prm_jax.verify import expressions, symbolic, units

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
  '∅',
  '\\{\\}',
)
_SPELLINGS = (
  (r'\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}', r' \1 '),
  (r'\\(?:left|right|displaystyle)(?![a-z])', ''),
  (r'(?<=\d)(?:\{,\}|\\,)(?=\d{3})', ''),
  (r'(?<!\\)\\[,;:! ]', ' '),
  (r'\\[dt]frac', r'\\frac'),
  (r'\^\s*\{?\s*\\circ\s*\}?|°', ' degrees'),
  (r'\\([%$])', r'\1'),
  (r'\u2212', '-'),
  (r'∞', r'\\infty'),
)
# For math-verify, which reads LaTeX only.
_PLAIN = (
  (r'(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)', r'\\sqrt{\1}'),
  (r'(?<![\\A-Za-z])(pi|sin|cos|tan|ln|log)(?![A-Za-z])', r'\\\1 '),
  (r'\*', r'\\cdot '),
)
_DELIMITERS = (('$$', '$$'), ('$', '$'), ('\\(', '\\)'), ('\\[', '\\]'))
_SCALES = {'thousand': 10**3, 'million': 10**6, 'billion': 10**9, 'dozen': 12}
# Units that people write together with the number; other letters are algebra.
_GLUED = frozenset(
  (
    *('km', 'cm', 'mm', 'kg', 'mg', 'ml', 'lb', 'lbs', 'oz', 'ft', 'mi', 'yd'),
    *('hr', 'hrs', 'min', 'mins', 'sec', 'mph', 'kmh', 'am', 'pm', 'usd'),
  )
)
_FUNCTIONS = frozenset(
  ('sqrt', 'pi', 'sin', 'cos', 'tan', 'log', 'exp', 'infty', 'mod')
)
_SHORT_WORDS = frozenset(
  (
    *('or', 'is', 'it', 'if', 'no', 'so', 'to', 'of', 'in', 'on', 'at', 'an'),
    *('as', 'by', 'be', 'do', 'he', 'we', 'us', 'my', 'up'),
  )
)
_QUANTITY = re.compile(
  r'(?P<value>.*?[\d)}%½¼¾])(?P<gap>\s*)'
  r'(?P<unit>[A-Za-z][A-Za-z ./-]*(?:\^[23])?)?'
)
_POWER_OF_TEN = re.compile(r'(?<=\d)[eE]([-+]?\d{1,3})(?!\d)')
_CLOSING = {'(': ')', '[': ']', '{': '}', '\\{': '\\}'}


class Verdict(NamedTuple):
  """Are two answers equal, and what decided it.

  Attributes:
    how: text, number, parts, math-verify, or time limit (then not equal).
  """

  equal: bool
  how: str


class Quantity(NamedTuple):
  """A number and its unit, as `units.canonical` has it: '' for none, or %."""

  value: Fraction
  unit: str


def equal(answer: str, truth: str, seconds: float = 5.0) -> bool:
  """Is the answer the same as the true one? See `compare`."""
  return compare(answer, truth, seconds).equal


def compare(answer: str, truth: str, seconds: float = 5.0) -> Verdict:
  """Compares two final answers, plain text or LaTeX.

  The content of the last \\boxed counts where there is one. Numbers are
  compared exactly: 1/3 is not 0.33. 50% equals both 1/2 and 50, which a
  question for a percentage allows. A unit may be missing on one side, not
  differ, but for its spelling; none is converted. A list without brackets is a
  set; (1, 2) is neither [1, 2] nor {1, 2}.

  Args:
    seconds: wall time for the pair; after it, they are not equal.

  Raises:
    UserError: math-verify is needed and not installed.
  """
  deadline = time.monotonic() + seconds
  if len(answer) > MAX_TEXT or len(truth) > MAX_TEXT:
    return Verdict(answer.strip() == truth.strip(), 'text')
  try:
    return _compare(_clean(answer), _clean(truth), deadline, depth=0)
  except symbolic.TimedOut:
    return Verdict(False, 'time limit')


def _compare(a: str, b: str, deadline: float, depth: int) -> Verdict:
  if time.monotonic() > deadline:
    raise symbolic.TimedOut
  if not a or not b:
    return Verdict(False, 'text')
  (name_a, a), (name_b, b) = _peel(a), _peel(b)
  number_a, number_b = quantity(a), quantity(b)
  if name_a and name_b and name_a != name_b:
    verdict = Verdict(False, 'text')
  elif number_a and number_b:
    verdict = Verdict(_same_quantity(number_a, number_b), 'number')
  elif _words(a) == _words(b):
    verdict = Verdict(True, 'text')
  elif not all(_depths(x)[0] and not _wordy(x) for x in (a, b)):
    verdict = Verdict(False, 'text')
  else:
    verdict = _compare_parts(a, b, deadline, depth)
  return verdict


def _compare_parts(a: str, b: str, deadline: float, depth: int) -> Verdict:
  parts = _parts(a), _parts(b)
  if all(parts) and depth < 3:
    return Verdict(_same_parts(*parts, deadline, depth), 'parts')
  if any(parts) and (quantity(a) or quantity(b)):
    return Verdict(False, 'parts')
  # Always a little: the reading before it took almost none.
  left = max(deadline - time.monotonic(), 0.01)
  same = symbolic.WORKER.equal(_latex(a), _latex(b), left)
  return Verdict(same, 'math-verify')


def quantity(text: str) -> Quantity | None:
  """Reads '$1,000', '3 1/2 cups', '2^10', '12.5%'; None for anything else."""
  match = _QUANTITY.fullmatch(text)
  if not match:
    return None
  value, unit = match['value'], (match['unit'] or '').strip(' .').lower()
  glued = unit and not match['gap']
  if unit in _FUNCTIONS or (glued and unit.replace('.', '') not in _GLUED):
    return None
  if len(unit) == 1 and unit not in 'mglsh':
    return None
  money = re.search(r'[$€£¥¢]', value)
  if money and (len(re.findall(r'[$€£¥¢]', value)) > 1):
    return None
  if money:
    value = value.replace(money.group(), '', 1)
    unit = ' '.join([units.MONEY[money.group()], unit]).strip()
  if unit == 'percent':
    value, unit = f'{value}%', ''
  try:
    exact = expressions.value(_POWER_OF_TEN.sub(r'*10^(\1)', value))
  except expressions.Unreadable:
    return None
  for name, factor in _SCALES.items():
    if name in unit.split(' '):
      exact *= factor
      unit = ' '.join(word for word in unit.split(' ') if word != name)
  return Quantity(exact, '%' if value.endswith('%') else units.canonical(unit))


def _same_quantity(a: Quantity, b: Quantity) -> bool:
  percents = [a.unit, b.unit].count('%')
  if percents == 1:
    percent, other = (a, b) if a.unit == '%' else (b, a)
    alike = other.value in (percent.value, percent.value * 100)
    return alike and not other.unit
  return a.value == b.value and units.agree(a.unit, b.unit)


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
  if kind_a == 'set':
    return all(any(same(x, y) for y in items_b) for x in items_a) and all(
      any(same(x, y) for x in items_a) for y in items_b
    )
  return len(items_a) == len(items_b) and all(
    same(x, y) for x, y in zip(items_a, items_b, strict=True)
  )


def _parts(text: str) -> tuple[str, list[str]] | None:
  """The brackets ('set' for braces or none) and what the commas separate."""
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
  pieces = _depths(inside)[1]
  if kind == 'set' and inside is text:
    pieces = [p for piece in pieces for p in re.split(r'\s+and\s+', piece)]
  pieces = [piece.strip() for piece in pieces]
  single = len(pieces) == 1 and (kind != 'set' or inside is text)
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


def _peel(text: str) -> tuple[str, str]:
  """'x = 3' as ('x', '3')."""
  match = re.fullmatch(
    r'([A-Za-z])\s*(?:=|\\in\b)\s*([^=<>,;]+|[^=<>]*[\])])', text
  )
  return match.groups() if match else ('', text)


def _wordy(text: str) -> bool:
  """Is it language? Then only the same words are equal to it."""
  text = re.sub(r'\\(?:begin|end)\s*\{\w+\}|\\[A-Za-z]+', ' ', text)
  text = re.sub(r'\s+and\s+', ' ', text)
  found = re.findall(r'[A-Za-z]+', text)
  return any(
    (len(w) > 2 and w.lower() not in _FUNCTIONS) or w.lower() in _SHORT_WORDS
    for w in found
  )


def _words(text: str) -> str:
  """Text without case, spaces and a lone letter's parentheses."""
  # "2 3" is not 23.
  key = re.sub(r'(?<!\d)\s+|\s+(?!\d)', '', text).casefold()
  if re.fullmatch(r'\([a-z]\)', key):
    key = key[1]
  return _NOTHING[0] if key in _NOTHING else key


def _latex(text: str) -> str:
  for pattern, replacement in _PLAIN:
    text = re.sub(pattern, replacement, text)
  return text


def _clean(text: str) -> str:
  """The answer itself: no box, no dollar signs around it, one spelling."""
  text = ' '.join(_unboxed(text).split())
  text = re.sub(r'^\*\*(.*)\*\*$', r'\1', text)  # bold
  for opening, closing in _DELIMITERS:
    size = len(opening) + len(closing)
    if len(text) > size and text.startswith(opening) and text.endswith(closing):
      text = _unboxed(text[len(opening) : -len(closing)])
  for pattern, replacement in _SPELLINGS:
    text = re.sub(pattern, replacement, text)
  text = ' '.join(text.split())
  return text.rstrip('.').strip() if not text.endswith('..') else text


def _unboxed(text: str) -> str:
  start = text.rfind('\\boxed{')
  if start < 0:
    return text
  start += len('\\boxed{')
  depth = 1
  for i in range(start, len(text)):
    depth += (text[i] == '{') - (text[i] == '}')
    if depth == 0:
      return text[start:i]
  return text
