"""Turns the layout of LaTeX formulas into plain lines, for `expressions.py`.

LaTeX's operators stay: `expressions.py` reads them.
"""

import re

_LAYOUT = (
  # Line ends, displayed formulas, and the environments of several lines.
  (r'\\\\(?:\[[^][\n]{0,9}\])?', '\n'),
  (r'\\[][]', '\n'),
  (r'\$\$([^$]*)\$\$', r'\n\1\n'),
  (r'\\(?:begin|end) ?\{(?:align|equation|gather|split)(?:ed)?\*?\}', '\n'),
  # A line that continues the one before it, and formulas side by side.
  (r'(?m)^(?:[& ]|\\q?quad(?![a-z]))+(?=[-+*=])', ''),
  (r'\\q?quad(?![a-z])', ' , '),
  # The columns of aligned equations.
  (r'& ?(?=[=≈<>]|\\approx)|(?<=[=≈])&|(?<=[=≈] )&', ' '),
)
_FORMULA = re.compile(r'\\\(((?:[^\\]|\\(?![()]).)*+)\\\)', re.DOTALL)
# 0.1\overline{6}. A dot over a digit is not read: there may be a second dot.
_REPEATING = re.compile(
  r'(?<![\d.,])(\d{1,20})\.(\d{0,20})\\(?:overline|bar) ?\{?(\d{1,20})\}?'
)


def strip_layout(text: str) -> str:
  """Removes the signs around formulas, lines and columns.

  A formula that holds an equation gets a semicolon before it, so that the words
  before it are not read as part of it: "a total of \\(3 + 4 = 7\\)". A
  repeating decimal becomes a fraction.
  """
  for pattern, replacement in _LAYOUT:
    text = re.sub(pattern, replacement, text)
  text = _FORMULA.sub(_formula, text)
  text = re.sub(r'\\[()]', ' ', text)
  text = _REPEATING.sub(_fraction, text)
  text = re.sub(r'[^\S\n]+', ' ', text)
  return re.sub(r'\s*\n\s*', '\n', text)


def _formula(match: re.Match) -> str:
  inside = match.group(1)
  return f' ; {inside} ' if '=' in inside else f' {inside} '


def _fraction(match: re.Match) -> str:
  whole, fixed, repeated = match.groups()
  above = int(whole + fixed + repeated) - int(whole + fixed)
  below = (10 ** len(repeated) - 1) * 10 ** len(fixed)
  return f'({above}/{below})'
