"""Decides whether two final answers are equal.

Outcome labels, best-of-N and rewards call this. Numbers, units, tuples,
intervals, sets and words are compared exactly, here. The remaining pairs, such
as 2\\sqrt{2} and \\sqrt{8}, go to math-verify, which runs in a process that can
be killed. The whole text must be the answer: "it is 7, no, 8" equals neither 7
nor 8.
"""

import re
import time
from typing import NamedTuple

from prm_jax.data.verify import lists, quantities, spellings, symbolic

# A longer answer is equal only to the same text.
MAX_TEXT = 2_000
MAX_PARTS = 50
_NO_SOLUTION = (
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
_NAME = (
  r'(?P<name>(?:\\[A-Za-z]+|[A-Za-z]|[A-Z]{2})(?:_(?:\w|\{\w+\}))?'
  r'(?:\((?:[A-Za-z]|-?\d+)\))?|\([a-z](?:, ?[a-z]){1,2}\))'
)
_NAMED = re.compile(
  _NAME
  + r'\s*(?P<sign>=|\\in\b)\s*(?P<value>[^=<>,;]+|\d[\d,.]*\d|[^=<>]*[\])}])'
)
_NAMED_LAST = re.compile(r'(?P<value>[^=<>,;]+?)\s*(?P<sign>=)\s*' + _NAME)
# The left side of 18 + 24 = 42, and what a function is applied to in f(3) = 5.
_WORKED_OUT = re.compile(
  r'(?=[^=]*\d)(?=[^=]*(?:[-+*/^]|\\(?:times|cdot|div|frac)| x ))'
  r'(?:[\d\s.,()^{}*/+$€£%-]|\\(?:times|cdot|div|frac)(?![A-Za-z])'
  r'|(?<= )x(?= [\d$€£]))+='
  r'(?P<value>[^=<>]+)'
)
_APPLIED = re.compile(r'[A-Za-z]\(-?[\d./]+\)|\\[A-Za-z]+')
_RELATION = re.compile(r'[=<>]|\\(?:leq?|geq?|neq?|lt|gt)(?![A-Za-z])')
_SET_OPERATORS = re.compile(r'\\(?:cup|cap|mathbb|setminus)(?![A-Za-z])')
# Texts that would be calculated although they are no expressions: numbers side
# by side, sizes such as 2 x 6, feet and inches, ranges with a unit.
_NO_EXPRESSION = re.compile(
  r'(?<![_^\d.,])\d+(?:\.\d+)? \d+(?![\d/])|\d x \d|\d ?[\'"]'
  r'|^\d[\d.,]*-\d[\d.,]* [A-Za-z]'
)
# Read as a range where the difference is negative: 1990-1995.
_RANGE = re.compile(r'\d[\d.,]*-\d[\d.,]*')
# math-verify would drop these or guess their meaning.
_UNREADABLE = re.compile(r'[\d)}]_|\\approx|[\'"?!]{2}|[^\x20-\x7e]')


class Verdict(NamedTuple):
  """Says whether two answers are equal, and which comparison decided it.

  Attributes:
    how: 'text', 'number', 'parts', 'math-verify' or 'time limit'. A pair that
      reaches the time limit is not equal.
  """

  equal: bool
  how: str


def equal(answer: str, truth: str, seconds: float = 5.0) -> bool:
  """Returns whether an answer equals the true one; see `compare`."""
  return compare(answer, truth, seconds).equal


def compare(answer: str, truth: str, seconds: float = 5.0) -> Verdict:
  """Compares two final answers, plain text or LaTeX.

  - The last \\boxed{} counts, where there is one.
  - Numbers are compared exactly: 1/3 is not 0.33. 50% equals both 1/2 and 50,
    because a question may ask for a percentage.
  - Units must agree, or be missing on one side. Spellings of one unit are the
    same, but no unit is converted. The base of a numeral counts as its unit:
    2112_7 equals 2112, but neither 2112_6 nor 757.
  - x = 4 and 4 = x equal 4, and so does 1 + 3 = 4. It does not equal 1 + 2 = 3.
  - A list without brackets is a set. (1, 2) equals neither [1, 2] nor {1, 2}.
    1,234 is a number, not a list.
  - Case counts where an answer has one letter in both, as R - r, and in Greek
    letters.
  - A ratio or a date equals only itself: 2:3 is neither 2/3 nor 4:6, because
    problems ask for lowest terms.

  The order of the two answers does not matter.

  Args:
    answer: up to MAX_TEXT characters; a longer text equals only itself.
    seconds: wall time for the pair; at the limit the verdict is not equal.

  Raises:
    UserError: the pair needs math-verify, which is not installed.
  """
  deadline = time.monotonic() + seconds
  if len(answer) > MAX_TEXT or len(truth) > MAX_TEXT:
    return Verdict(answer.strip() == truth.strip(), 'text')
  try:
    a, b = spellings.clean(answer), spellings.clean(truth)
    # Cleaning may lengthen a text: a ½ becomes a \frac.
    if len(a) > MAX_TEXT or len(b) > MAX_TEXT:
      return Verdict(a == b, 'text')
    if not (_is_prose(a) or _is_prose(b)):
      a, b = spellings.separate_cases(a, b)
    return _compare(a, b, deadline, depth=0)
  except symbolic.TimedOut:
    return Verdict(False, 'time limit')


def _compare(a: str, b: str, deadline: float, depth: int) -> Verdict:
  if time.monotonic() > deadline:
    raise symbolic.TimedOut
  values = _strip_names(a, b) if a and b else None
  if values is None:
    return Verdict(False, 'text')
  a, b = values
  sides = _constant_sides(a), _constant_sides(b)
  if any(sides):
    return _compare_equations(a, b, sides, deadline, depth)
  numbers = quantities.read_quantity(a), quantities.read_quantity(b)
  as_text = any(
    _NO_EXPRESSION.search(x) or (n and n.value < 0 and _RANGE.fullmatch(x))
    for n, x in zip(numbers, (a, b), strict=True)
  )
  if all(numbers) and not as_text:
    return Verdict(quantities.same_quantity(*numbers), 'number')
  same = _comparison_key(a) == _comparison_key(b)
  if same or as_text:
    return Verdict(same, 'text')
  # A text that is a number is no list: 1,234.
  parts = [
    None if n else lists.read_parts(x)
    for n, x in zip(numbers, (a, b), strict=True)
  ]
  if any(parts):
    return _compare_parts(a, b, parts, deadline, depth)
  return _compare_expressions(a, b, deadline)


def _constant_sides(text: str) -> list[str] | None:
  """Returns both sides of an equation without a variable, as f(3) = 5."""
  sides = [side.strip() for side in text.split('=')]
  if len(sides) != 2 or not all(sides) or _RELATION.search(' '.join(sides)):
    return None
  return None if re.search('[A-Za-z]', _APPLIED.sub('', text)) else sides


def _compare_equations(
  a: str,
  b: str,
  sides: tuple[list[str] | None, list[str] | None],
  deadline: float,
  depth: int,
) -> Verdict:
  """Compares side by side what math-verify would only find true or false."""
  if _comparison_key(a) == _comparison_key(b):
    return Verdict(True, 'text')
  if not all(sides) or depth:
    return Verdict(False, 'text')
  pairs = zip(*sides, strict=True)
  same = all(_compare(x, y, deadline, depth + 1).equal for x, y in pairs)
  return Verdict(same, 'parts')


def _compare_parts(
  a: str,
  b: str,
  parts: list[tuple[str, list[str]] | None],
  deadline: float,
  depth: int,
) -> Verdict:
  described = _describes_set(a) or _describes_set(b)
  if all(parts) and depth < 3:
    same = _same_parts(*parts, deadline, depth)
    # Two unions were compared part by part. [0, 2] and [0, 1] \cup [1, 2] are
    # equal as sets only, which math-verify decides.
    if same or parts[0][0] == parts[1][0] or not described:
      return Verdict(same, 'parts')
  elif not described:
    return Verdict(False, 'parts')
  return _compare_expressions(a, b, deadline)


def _describes_set(text: str) -> bool:
  """Returns whether a text gives a set otherwise than by its elements."""
  return bool(_RELATION.search(text) or _SET_OPERATORS.search(text))


def _compare_expressions(a: str, b: str, deadline: float) -> Verdict:
  (a, unit_a), (b, unit_b) = quantities.split_unit(a), quantities.split_unit(b)
  related = [bool(_RELATION.search(x)) for x in (a, b)]
  if not quantities.units_agree(unit_a, unit_b):
    return Verdict(False, 'text')
  if _comparison_key(a) == _comparison_key(b):
    return Verdict(True, 'text')
  if (
    # The letters of a numeral are digits.
    any(unit.startswith('base') for unit in (unit_a, unit_b))
    or not all(lists.split_at_commas(x)[0] and not _is_prose(x) for x in (a, b))
    or any(_UNREADABLE.search(x) for x in (a, b))
    or any(quantities.DATE.fullmatch(x) for x in (a, b))
    # 2x + 3 = 5 does not equal 5. (The name of x = 5 has been removed.)
    or (any(related) and not all(related) and any('=' in x for x in (a, b)))
  ):
    return Verdict(False, 'text')
  # The comparisons above may have used the time up; they take microseconds.
  left = max(deadline - time.monotonic(), 0.01)
  same = symbolic.WORKER.equal(
    spellings.for_math_verify(a), spellings.for_math_verify(b), left
  )
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

  if max(len(items_a), len(items_b)) > MAX_PARTS:
    return False
  if {kind_a, kind_b} == {'set', '()'}:  # y = 2, x = 1 is (1, 2)
    items_a, items_b = _by_name(*a), _by_name(*b)
    kind_a = kind_b = '()'
  if {kind_a, kind_b} == {'set', 'amount'}:  # 5 feet, 6 inches
    kind_a = kind_b = 'amount'
  if kind_a != kind_b:
    return False
  if kind_a == 'ratio' and any(re.match(r'0\d', x) for x in items_a + items_b):
    # A time: 1:02 is not 1:2, but 6:00 pm is 6:00 p.m.
    digits = [[re.match(r'\d*', x)[0] for x in y] for y in (items_a, items_b)]
    if digits[0] != digits[1]:
      return False
  if kind_a in ('set', 'union'):
    return all(any(same(x, y) for y in items_b) for x in items_a) and all(
      any(same(x, y) for x in items_a) for y in items_b
    )
  return len(items_a) == len(items_b) and all(
    same(x, y) for x, y in zip(items_a, items_b, strict=True)
  )


def _by_name(kind: str, items: list[str]) -> list[str]:
  """Returns the items of a set in the order of their names; [] without them."""
  if kind != 'set':
    return items
  found = [_NAMED.fullmatch(x) or _NAMED_LAST.fullmatch(x) for x in items]
  named = {m['name']: x for m, x in zip(found, items, strict=True) if m}
  return [named[x] for x in sorted(named)] if len(named) == len(items) else []


def _strip_names(a: str, b: str) -> tuple[str, str] | None:
  """Removes "x =", "= x" or "2 * 3 =" from two answers.

  Returns:
    What is left; None if the names differ.
  """
  found = [_NAMED.fullmatch(x) or _NAMED_LAST.fullmatch(x) for x in (a, b)]
  if all(found):
    values = found[0]['value'].strip(), found[1]['value'].strip()
    if re.sub(r'[{}]', '', found[0]['name']) == re.sub(
      r'[{}]', '', found[1]['name']
    ):
      return values
    # x = 2y and y = x/2 may be one relation, solved for different names.
    return None if any(map(quantities.read_quantity, values)) else (a, b)
  texts = [a, b]
  found = [
    match or _WORKED_OUT.fullmatch(x)
    for match, x in zip(found, texts, strict=True)
  ]
  for i, match in enumerate(found):
    # y = 2x + 1 stays an equation if the other answer is one: 2x - y = -1.
    sign = match and match.groupdict().get('sign', '=')
    if match and not (sign == '=' and _RELATION.search(texts[1 - i])):
      texts[i] = match['value'].strip()
  return texts[0], texts[1]


def _is_prose(text: str) -> bool:
  """Returns whether a text has words of prose; it then equals only itself."""
  text = re.sub(r'\\(?:begin|end)\s*\{\w+\}|\\[A-Za-z]+', ' ', text)
  text = re.sub(r'\s+and\s+', ' ', text)
  found = re.findall(r'[A-Za-z]+', text)
  return any(
    (len(w) > 2 and w.lower() not in quantities.FUNCTIONS)
    or w.lower() in _SHORT_WORDS
    for w in found
  )


def _comparison_key(text: str) -> str:
  """Removes case, spaces and the parentheses of "(b)"."""
  # A space between digits stays: "2 3" is not 23, and 1, 234 is not 1,234.
  key = re.sub(r'(?<![\d,])\s+|\s+(?!\d)', '', text).casefold()
  if re.fullmatch(r'\([a-z]\)', key):
    key = key[1]
  return _NO_SOLUTION[0] if key in _NO_SOLUTION else key
