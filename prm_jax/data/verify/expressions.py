"""Parses arithmetic as people write it, and evaluates it in exact fractions.

Text is normalised, split into tokens and evaluated. `calculator.py` looks for
equations among the tokens of a step; `quantities.py` reads the values of final
answers. Nothing is passed to Python's own `eval`, and every size is bounded, so
that a hostile text takes microseconds.
"""

import dataclasses
import re
from fractions import Fraction

from prm_jax.data.verify import latex

# A text beyond these limits is unreadable, so that none is slow to evaluate.
# Real answers stay far below them.
MAX_DIGITS = 100
MAX_TOKENS = 200
MAX_DEPTH = 32
MAX_BITS = 4096

# Removes layout inside fractions, and adds the braces of \frac12.
_BEFORE_FRACTIONS = (
  (r'\\(?:left|right|displaystyle|[,;!:])', ''),
  (r'\\[dt]?frac\s*(\d)', r'\\frac{\1}'),
  (r'(\\[dt]?frac\s*\{[^{}]*\})\s*(\d)', r'\1{\2}'),
)
_SPELLINGS = (
  (r'\\text\w*\s*\{([^{}]*)\}', r' \1 '),
  (r'\\mathrm\s*\{([^{}]*)\}', r' \1 '),
  (r'\{,\}', ','),
  (r'\\(?:times|cdot)(?![a-z])', '*'),
  (r'\\div(?![a-z])', '/'),
  (r'\\approx(?![a-z])', '≈'),
  (r'\\([%$])', r'\1'),
  (r'[\u2212\u2013]', '-'),
  (r'[\u00d7·⋅∙]', '*'),
  (r'÷', '/'),
  (r'(?<=\d)½', ' 1/2'),
  (r'(?<=\d)¼', ' 1/4'),
  (r'(?<=\d)¾', ' 3/4'),
  (r'½', '1/2'),
  (r'¼', '1/4'),
  (r'¾', '3/4'),
  (r' ?\n ?', '\n'),
  # The ** of bold Markdown is no power.
  (r'(?<![\d)])\s*\*\*|\*\*(?!\s*[\d(-])', ' '),
  (r'\n(?=[=≈])', ' '),
)
# The content of a pair of braces, with one more pair inside: \frac{1}{2^{98}}.
_INSIDE = r'\{((?:[^{}]|\{[^{}]*\})*)\}'
_FRACTION = re.compile(rf'\\[dt]?frac\s*{_INSIDE}\s*{_INSIDE}')
# A result in a box, = \boxed{12}: a whole side of an equation, with a digit.
_BOXED_RESULT = re.compile(
  rf'([=≈] ?\$? ?)\\boxed\s*(?=\{{[^{{}}\d]{{0,20}}\d){_INSIDE}'
  r'(?! ?\$? ?[-+*/^(\d\\])'
)
# The whole number of a mixed number, 12 \frac{3}{5}, but not the 3 of x^3 or of
# 0.3. A point or a comma before a space ends a clause.
_WHOLE = re.compile(r'(?:^|[^\d.,^_\s]|[.,]\s)\s*[\d,]+\s*$')
_TOKEN = re.compile(
  r"""
  (?P<space>[^\S\n]+)
  |(?P<number>(?:\.?\d[\d.,:]*\d|\.?\d))
  |(?P<percent>%|percent\b)
  |(?P<relation>=>|[<>!~]=|==?|≈)
  |(?P<power>\*\*|\^)
  |(?P<rate>/\s*[A-Za-z]{2,})
  |(?P<hyphen>(?<=\d)-[A-Za-z]{2,}(?:-[A-Za-z]+)*)
  |(?P<operator>[-+*/])
  |(?P<open>[({])
  |(?P<close>[)}])
  |(?P<money>[$€£¥¢])
  |(?P<word>\\?[A-Za-z]+(?:['\u2019-][A-Za-z]+)*)
  |(?P<mark>.|\n)
  """,
  re.VERBOSE,
)
# No leading zeros: 0900 is a time.
_WELL_FORMED = re.compile(r'(?:[1-9]\d{0,2}(?:,\d{3})+|0|[1-9]\d*)?(?:\.\d+)?')


class Unreadable(Exception):
  """Says that a text is not arithmetic, or exceeds this module's limits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
  """Holds one token of a normalised text.

  Attributes:
    kind: number, percent, relation, power, operator, open, close, money, word,
      mark (punctuation), or bad (digits that are no number, such as 1,00 or
      2:30).
    text: as in the normalised text, where × and \\times are both *.
    start: index of its first character in the normalised text.
    spaced: False if it follows a value without a space, as in 3kg and 2(3).
  """

  kind: str
  text: str
  start: int
  spaced: bool

  @property
  def end(self) -> int:
    """Returns the index of the character after the token."""
    return self.start + len(self.text)


def normalise(text: str) -> str:
  """Rewrites LaTeX, Unicode signs and bold Markdown as plain arithmetic."""
  # Spaces are collapsed first, as the patterns are quadratic in long runs.
  lines = (' '.join(line.split()) for line in text.split('\n'))
  text = '\n'.join(filter(None, lines))
  text = latex.strip_layout(text)
  for pattern, replacement in _BEFORE_FRACTIONS:
    text = re.sub(pattern, replacement, text)
  for _ in range(MAX_DEPTH):
    text, found = _FRACTION.subn(_fraction, text)
    if not found:
      break
  for pattern, replacement in _SPELLINGS:
    text = re.sub(pattern, replacement, text)
  unboxed = _BOXED_RESULT.sub(r'\1\2 ', text)
  # A box elsewhere is a gap, or a symbol of the problem, as all may then be.
  return text if r'\boxed' in unboxed else unboxed


def _fraction(match: re.Match) -> str:
  above, below = (part.strip() for part in match.groups())
  # 2\frac{1}{2} is two and a half, which 2(1/2) would not be.
  if above.isdecimal() and below.isdecimal() and len(below) < MAX_DIGITS:
    before = match.string[max(match.start() - MAX_DIGITS, 0) : match.start()]
    if _WHOLE.search(before) and int(above) < int(below):
      return f' {above}/{below}'
  return f'(({above})/({below}))'


def tokenize(text: str) -> list[Token]:
  """Splits a normalised text into tokens."""
  found, spaced = [], False
  for match in _TOKEN.finditer(text):
    kind, written = match.lastgroup, match.group()
    if kind == 'space':
      spaced = True
      continue
    if kind in ('rate', 'hyphen'):  # 12/hour, 3-day
      kind = 'word'
    if kind == 'number' and (
      len(written) > MAX_DIGITS or not _WELL_FORMED.fullmatch(written)
    ):
      kind = 'bad'
    spaced |= not found or found[-1].kind not in ('number', 'bad', 'close')
    found.append(Token(kind, written, match.start(), spaced))
    spaced = False
  return found


def literal(token: Token) -> Fraction:
  """Returns the value of a token of kind number."""
  return Fraction(token.text.replace(',', ''))


def exact_value(text: str) -> Fraction:
  """Evaluates an arithmetic expression, such as '1 1/2 + 20% of 5', exactly.

  Currency signs are ignored.

  Raises:
    Unreadable: the text is not an expression, divides by zero, or exceeds the
      limits of this module.
  """
  found = [t for t in tokenize(normalise(text)) if t.kind != 'money']
  return evaluate(mark_operators(found))[0]


def mark_operators(found: list[Token]) -> list[Token]:
  """Turns an x between values, and "of" after % or a fraction, into operators.

  Both multiply. The x of 10x 3 and 10x(3) may be a variable: it becomes the
  operator 'x', which makes an expression ambiguous.
  """
  read = list(found)
  for i in range(1, len(read) - 1):
    before, token, after = read[i - 1 : i + 2]
    if token.kind != 'word' or after.kind not in ('number', 'open', 'money'):
      continue
    times = token.text in ('x', 'X') and before.kind in (
      'number',
      'percent',
      'close',
      'word',
    )
    share = token.text == 'of' and (
      before.kind == 'percent'
      or (
        i > 2
        and before.kind == read[i - 3].kind == 'number'
        and read[i - 2].text == '/'
      )
    )
    if times or share:
      text = '*' if times else 'of'
      glued = before.kind != 'word' and before.end == token.start
      if times and glued and (after.kind == 'open' or token.end < after.start):
        text = 'x'
      read[i] = dataclasses.replace(token, kind='operator', text=text)
  return read


def evaluate(found: list[Token]) -> tuple[Fraction, bool]:
  """Evaluates a whole expression, and tells whether it is ambiguous.

  Ambiguous are 6 / 2(3), 6 / 1/3, 2 1/3 (6), 2^3^2, 10x(3), 2 (3 + 4) in prose,
  100 - 20% and 1/2%, which is read as half a percent.

  Raises:
    Unreadable: as for `exact_value`.
  """
  if len(found) > MAX_TOKENS:
    raise Unreadable(f'{len(found)} tokens: more than {MAX_TOKENS}')
  parser = _Parser(found)
  result, _ = parser.parse_sum(0)
  if parser.at < len(found):
    raise Unreadable(f'{found[parser.at].text!r} is out of place')
  return result, parser.ambiguous


class _Parser:
  """Parses tokens by recursive descent.

  Each method parses what its name says from the position `at` on, and moves
  `at` behind it. It returns the value and whether that is a percentage.

  Attributes:
    at: index of the next token.
    ambiguous: whether what was parsed so far can be read in another way.
  """

  def __init__(self, found: list[Token]) -> None:
    self.tokens = found
    self.at = 0
    self.ambiguous = False

  def peek(self, ahead: int = 0) -> Token:
    """Returns the token `ahead` of `at`; an "end" token after all."""
    end = Token('end', '', -1, True)
    i = self.at + ahead
    return self.tokens[i] if i < len(self.tokens) else end

  def parse_sum(self, depth: int) -> tuple[Fraction, bool]:
    if depth > MAX_DEPTH:
      raise Unreadable(f'more than {MAX_DEPTH} parentheses deep')
    total, percent = self.parse_product(depth)
    while self.peek().text in ('+', '-'):
      sign = -1 if self.peek().text == '-' else 1
      self.at += 1
      term, also = self.parse_product(depth)
      # In 100 - 20%, the percentage may be of the 100 or of 1.
      self.ambiguous |= percent != also
      total, percent = _bounded(total + sign * term), percent and also
    return total, percent

  def parse_product(self, depth: int) -> tuple[Fraction, bool]:
    result, percent = self.parse_signed(depth)
    divided = False
    while True:
      token = self.peek()
      if token.text in ('*', '/', 'of', 'x') and token.kind == 'operator':
        self.at += 1
        self.ambiguous |= token.text == 'x'
        factor, _ = self.parse_signed(depth)
        if token.text == '/' and not factor:
          raise Unreadable('division by zero')
        self.ambiguous |= divided and token.text == '/'
        divided |= token.text == '/'
        result = result / factor if token.text == '/' else result * factor
      elif token.kind == 'open':
        self.ambiguous |= token.spaced or divided
        factor, _ = self.parse_signed(depth)
        result *= factor
      else:
        return result, percent
      result, percent = _bounded(result), False

  def parse_signed(self, depth: int) -> tuple[Fraction, bool]:
    token = self.peek()
    if token.kind == 'operator' and token.text in ('-', '+'):
      self.at += 1
      if depth > MAX_DEPTH:
        raise Unreadable('a pile of signs')
      result, percent = self.parse_signed(depth + 1)
      return (-result if token.text == '-' else result), percent
    base, percent = self.parse_postfix(depth)
    if self.peek().kind != 'power':
      return base, percent
    self.at += 1
    if depth > MAX_DEPTH:
      raise Unreadable('a tower of powers')
    # 2^3^2 has two readings; LaTeX's 2^35^2 may even mean 2^3 * 5^2.
    bare = self.peek().kind == 'number' and self.peek(1).kind == 'power'
    self.ambiguous |= bare
    exponent, _ = self.parse_signed(depth + 1)
    return _power(base, exponent), False

  def parse_postfix(self, depth: int) -> tuple[Fraction, bool]:
    result = self.parse_atom(depth)
    percent = self.peek().kind == 'percent'
    if percent:
      self.at += 1
      result /= 100
    return result, percent

  def parse_atom(self, depth: int) -> Fraction:
    token = self.peek()
    self.at += 1
    if token.kind == 'open':
      result, _ = self.parse_sum(depth + 1)
      if self.peek().kind != 'close':
        raise Unreadable('a parenthesis is open')
      self.at += 1
      return result
    if token.kind != 'number':
      raise Unreadable(f'{token.text!r} where a value should be')
    if below := self.parse_part_of_percent(token):
      return literal(token) / below
    part = self.parse_mixed(token)
    # 2 1/3 (6) is (2 + 1/3) * 6, or 2 * 1/3 * 6.
    self.ambiguous |= bool(part) and self.peek().kind == 'open'
    return literal(token) + part

  def parse_mixed(self, whole: Token) -> Fraction:
    """Reads the 1/2 of 1 1/2; returns 0 if there is no such fraction."""
    above, slash, below = (self.peek(i) for i in range(3))
    if not (
      above.kind == below.kind == 'number'
      and above.spaced
      and slash.text == '/'
      and whole.text.replace(',', '').isdigit()
      and above.text.isdigit()
      and below.text.isdigit()
      and int(above.text) < int(below.text)
    ):
      return Fraction(0)
    self.at += 3
    return Fraction(int(above.text), int(below.text))

  def parse_part_of_percent(self, above: Token) -> int:
    """Reads the /2 of 1/2%, half a percent; returns 0 if there is none."""
    slash, below, percent = (self.peek(i) for i in range(3))
    if not (
      percent.kind == 'percent'
      and below.kind == 'number'
      and slash.text == '/'
      and above.end == slash.start
      and slash.end == below.start
      and above.text.isdigit()
      and below.text.isdigit()
      and int(above.text) < int(below.text)
    ):
      return 0
    # 4/5% may be 4 / (5%), too. 12/50% is so, and 10/100% may be 10 / 100.
    self.ambiguous = True
    if int(below.text) > 9:
      return 0
    self.at += 2
    return int(below.text)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
  if exponent.denominator != 1:
    raise Unreadable('a root')
  if not base and exponent <= 0:
    raise Unreadable('zero to a power that is not positive')
  size = max(base.numerator.bit_length(), base.denominator.bit_length())
  if abs(exponent) * size > MAX_BITS:
    raise Unreadable('a power too large to write down')
  return base ** int(exponent)


def _bounded(number: Fraction) -> Fraction:
  bits = max(number.numerator.bit_length(), number.denominator.bit_length())
  if bits > MAX_BITS:
    raise Unreadable(f'a number of {bits} bits')
  return number
