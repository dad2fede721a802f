r"""Normalises the spelling of answers for `answers.py`.

`clean` is applied first: it removes the box and the dollar signs, and rewrites
plain text, Unicode and the dialects of LaTeX in one way, so that 3√3, 3sqrt(3)
and 3\sqrt3 become 3\sqrt{3}. `for_math_verify` is applied last, to expressions
that go to math-verify: it rewrites what that library would misread. The time is
linear in the length of the text.
"""

import re
import unicodedata
from fractions import Fraction

from prm_jax.data.verify import units

_FRACTION_SIGNS = '½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞'
# Most of the signs that look like ASCII letters are in these tables.
# ruff: noqa: RUF001
_SIGNS = {
  **dict.fromkeys('\u2212\u2013', '-'),
  **dict.fromkeys('·⋅∙', r'\cdot '),
  '×': r'\times ',
  '÷': '/',
  'π': r'\pi ',
  'θ': r'\theta ',
  '∞': r'\infty ',
  '≤': r'\leq ',
  '≥': r'\geq ',
  '≠': r'\neq ',
  '≈': r'\approx ',
  '±': r'\pm ',
  '∪': r'\cup ',
  '∩': r'\cap ',
  '∈': r'\in ',
  '∅': r'\emptyset ',
  'ℝ': r'\mathbb{R}',
  '°': r'^{\circ}',
}
_RAISED = str.maketrans('⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉', '0123456789+-0123456789')
_TEXT_COMMAND = re.compile(
  r'\\(?:text(?:bf|it|rm|sf|normal)?|math(?:rm|bf|it)|boldsymbol|bm|mbox)\s*\{([^{}]*)\}'
)
_VALUE_END = re.compile(r'(?:[\d})]|\\pi)[\s\\,;~]*$')
_DELIMITERS = (
  (r'^\*\*(.*)\*\*(?=\.?$)', r'\1'),  # bold
  (r'^\$((?:\\.|[^$\\])+)\$(?=\.?$)', r'\1'),
  (r'(?<!\\)\\[()\[\]]|\$\$', ''),
  # $x = 1$ or $x = 2$, but not $5 or $6
  (r'(?<!\\)\$((?:\\.|[^$\\])+)(?<!\s)\$(?!\d)', r'\1'),
)
# Applied in this order.
_SPELLINGS = (
  (r'(?<=\d)(?:\{,\}(?:\\!)?|\\,|, ?\\!) ?(?=\d{3}(?!\d))', ''),
  (r'\{,\}', ','),
  (r'\\phantom\s*(?:\{[^{}]*\}|\S)', ''),
  (r'\\!|\\(?:rm|bf)(?![A-Za-z])', ''),
  (r'(?<!\\)\\[,;: ]|~|\\q?quad(?![A-Za-z])', ' '),
  (r'\\(?:left|right|displaystyle|[bB]igg?[lrm]?)(?![A-Za-z])', ''),
  (r'\\[dtc]frac(?![A-Za-z])', r'\\frac'),
  (r'\\[dt]binom(?![A-Za-z])', r'\\binom'),
  (r'\\([%$])', r'\1'),
  (r'\b[Pp]er cent\b', 'percent'),
  (r'\bUS\$|^(?:USD|US dollars) ?(?=\d)', '$'),
  (r'^Rs\.? ?(?=\d)', ''),
  (r'\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}', r'\\frac{\1}{\2}'),
  (r'\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}', r'\\binom{\1}{\2}'),
  (r'\\degree(?![A-Za-z])', r'^{\\circ}'),
  (r'\*\*', '^'),
  (r'<=', r'\\leq '),
  (r'>=', r'\\geq '),
  (r'(?<![\\A-Za-z])[pP]i(?![A-Za-z])', r'\\pi '),
  (r'(?<![\\A-Za-z])inf(?:inity)?(?![A-Za-z])', r'\\infty '),
  (r'√|(?<![\\A-Za-z])sqrt(?![A-Za-z])', r'\\sqrt '),
  # A matrix may be written as an array, or with brackets around the cells.
  (r'(\\\\)\s*\[\d+(?:pt|ex|em|mm)\]', r'\1'),
  (r'\\(begin|end)\{array\}(?:\{[clr|]*\})?', r'\\\1{matrix}'),
  (r'[(\[]\s*\\begin\{matrix\}', r'\\begin{pmatrix}'),
  (r'\\end\{matrix\}\s*[)\]]', r'\\end{pmatrix}'),
  (r'\\bigcup(?![A-Za-z])', r'\\cup '),
  (r'\\colon(?![A-Za-z])|(?<=\d)\s+to\s+(?=\d)', ':'),
  (r'^\s*[Aa]ll real numbers\s*\.?$', r'\\mathbb{R}'),
  (r'_\s*\{?\s*\(\s*(?:base\s*)?(\d+)\s*\)\s*\}?', r'_{\1}'),
  (r'_\{\s*base\s*(\d+)\s*\}|\s\(base (\d+)\)(?=\s*\.?$)', r'_{\1\2}'),
  # Superfluous braces: 20{\frac{1}{4}}.
  (r'(?<=\d)\s*\{(\\frac\{\d+\}\{\d+\})\}', r'\1'),
  (r'\s+', ' '),
  # Units are compared in lower case: a megawatt would be a milliwatt.
  (r'(?<=\d) ?M(?=(?:Wh?|V|J|Pa)\b)', ' mega'),
  (r'(?<=\d) ?m(?=Hz\b)', ' milli'),
  (r'(?<=[)\]}]) ?U ?(?=[(\[{\\])', r'\\cup '),
  (r' ?([_^]) ?', r'\1'),
  (r'(?<=\d) x (?=10\^)', r'\\times '),
  (r'\^(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))', r'^{\\circ}'),
  (r'^ ?\\approx(?![A-Za-z])', ''),
)
_NAME = re.compile(r'\\(?:begin|end|mathbb)\s*\{\w+\}|\\[A-Za-z]+|[A-Za-z]+')
_NEW_NAMES = 'kqvwzyjtprnb'  # neither units nor e, i, d, x
_COMMAND = re.compile(
  r'\\(?P<name>frac|binom|sqrt)(?![A-Za-z])\s*(?:\[[^\[\]]*\])?\s*|\^(?=\()'
)
_TWO_ARGUMENTS = ('frac', 'binom')
_DIGIT = re.compile(r'\\(?!frac|sqrt)[A-Za-z]+|[\dA-Za-z]')
_ARGUMENT = {
  **dict.fromkeys(_TWO_ARGUMENTS, _DIGIT),
  # LaTeX reads \sqrt12 as the root of 1, but people mean the root of 12.
  'sqrt': re.compile(r'\\(?!frac|sqrt)[A-Za-z]+|\d+(?:\.\d+)?|[A-Za-z]'),
}
_CLOSES = {'{': '}', '(': ')'}
# For math-verify, which reads only LaTeX.
_FOR_MATH_VERIFY = (
  (r'(?<![\\A-Za-z])(sin|cos|tan|ln|log)(?![A-Za-z])', r'\\\1 '),
  (r'\*', r'\\cdot '),
  (r'\^(-?\d{2,}|-\w)', r'^{\1}'),
  (r'_(\d{2,})', r'_{\1}'),
  (r'(?<=\d),(?=\d{3}(?!\d))', ''),
  # A mixed number. The 3 of x^3 or of 0.3 is not its whole number.
  (
    r'(?<![\d.,^_])(?<!\^\{)(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}',
    lambda m: (
      rf'({m[1]}+\frac{{{m[2]}}}{{{m[3]}}})' if int(m[2]) < int(m[3]) else m[0]
    ),
  ),
  # The same in plain text: 4 7/8.
  (
    r'(?<![\d.,^_/])(\d+) (\d+)/(\d+)(?![\d.])',
    lambda m: f'({m[1]}+{m[2]}/{m[3]})' if int(m[2]) < int(m[3]) else m[0],
  ),
  # 1/2 x is half of x; math-verify binds what is side by side first.
  (
    r'(?<![\d.,^_/])(\d+)/(\d+)(?=\s*(?:\\(?:pi|sqrt)|[A-Za-z(]))',
    r'\\frac{\1}{\2}',
  ),
  (r'(?<![\d.])(\d+(?:\.\d+)?)\^\{\\circ\}', r'(\1\\cdot\\frac{\\pi}{180})'),
  # math-verify reads the i of 2i as a real variable, unless a space precedes.
  (r'(?<![\\A-Za-z])i(?![A-Za-z])', ' i '),
)


def clean(text: str) -> str:
  """Returns an answer without box and dollar signs, in normalised spelling."""
  text = ' '.join(_unbox(text).split())
  for pattern, replacement in _DELIMITERS:
    text = re.sub(pattern, replacement, text)
  for sign, spelling in _SIGNS.items():
    text = text.replace(sign, spelling)
  text = re.sub(f'[{_FRACTION_SIGNS}]', _fraction_sign, text)
  for signs, mark in (('⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻', '^'), ('₀₁₂₃₄₅₆₇₈₉', '_')):
    text = re.sub(
      f'[{signs}]+',
      lambda m, mark=mark: f'{mark}{{{m[0].translate(_RAISED)}}}',
      text,
    )
  text = _TEXT_COMMAND.sub(_inline_text, text)
  for pattern, replacement in _SPELLINGS:
    text = re.sub(pattern, replacement, text)
  text = re.sub(r'(?<!\d)(\d*)\.(\d*)\\overline\{(\d+)\}', _repeating, text)
  text = ' '.join(_add_braces(text).split())
  text = re.sub(r'\^(\\frac\{[^{}]*\}\{[^{}]*\})', r'^{\1}', text)
  return (text.rstrip('.,; ') if not text.endswith('..') else '') or text


def separate_cases(a: str, b: str) -> tuple[str, str]:
  r"""Renames the R of two formulas with R and r, and the \Gamma beside \gamma.

  Later comparisons ignore case. They may where x + 1 is compared with X + 1,
  but not where one formula has a letter in both cases.
  """
  texts = [set(_NAME.findall(x)) for x in (a, b)]
  names = texts[0] | texts[1]
  lower = {name.lower() for name in names}
  free = [name for name in _NEW_NAMES if name not in lower]
  commands = {name for name in names if name.startswith('\\')}
  clashing = sorted(
    name
    for name in names - lower
    if (name in commands and name.lower() in commands)
    or (len(name) == 1 and any({name, name.lower()} <= x for x in texts))
  )
  new = dict(zip(clashing, free, strict=False))

  def rename(text: str) -> str:
    return _NAME.sub(lambda m: new.get(m[0], m[0]), text)

  return rename(a), rename(b)


def for_math_verify(text: str) -> str:
  """Rewrites a text from `clean` so that math-verify reads it correctly."""
  for pattern, replacement in _FOR_MATH_VERIFY:
    text = re.sub(pattern, replacement, text)
  return text


def _fraction_sign(match: re.Match) -> str:
  exact = Fraction(unicodedata.numeric(match[0])).limit_denominator(8)
  return rf'\frac{{{exact.numerator}}}{{{exact.denominator}}}'


def _inline_text(match: re.Match) -> str:
  """Returns the content of \\text{...}; a letter after a value is a unit."""
  words, before = match[1].strip(), match.string[: match.start()][-9:]
  if words in tuple('mglsh') and _VALUE_END.search(before):
    return f' {units.canonical(words)} '
  return f' {match[1]} '


def _repeating(match: re.Match) -> str:
  """Rewrites 0.1\\overline{6} as \\frac{15}{90}."""
  whole, fixed, period = match.groups()
  if len(match[0]) > 40:
    return match[0]
  once, twice = f'{whole}{fixed}', f'{whole}{fixed}{period}'
  above = int(twice) - int(once or '0')
  return rf'\frac{{{above}}}{{{"9" * len(period)}{"0" * len(fixed)}}}'


def _add_braces(text: str) -> str:
  """Rewrites \\frac12 and \\sqrt(2) as \\frac{1}{2} and \\sqrt{2}."""
  pairs, edits = _match_brackets(text), []
  for match in _COMMAND.finditer(text):
    name, at = match['name'], match.end()
    for _ in range(2 if name in _TWO_ARGUMENTS else 1):
      if at in pairs and text[at] == '{':
        at = pairs[at] + 1
      elif at in pairs and name not in _TWO_ARGUMENTS:
        edits += [(at, '{', 1), (pairs[at], '}', 1)]
      elif name and (argument := _ARGUMENT[name].match(text, at)):
        edits += [(at, '{', 0), (argument.end(), '}', 0)]
        at = argument.end()
      else:
        break
      at += text.startswith(' ', at)
  pieces, last = [], 0
  for at, insert, skip in sorted(edits, key=lambda edit: edit[0]):
    pieces += [text[last:at], insert]
    last = at + skip
  return ''.join([*pieces, text[last:]])


def _match_brackets(text: str) -> dict[int, int]:
  """Maps the index of each opening bracket to that of its closing one."""
  found, open_ = {}, []
  for i, letter in enumerate(text):
    if letter in '{(':
      open_.append(i)
    elif letter in '})' and open_ and _CLOSES[text[open_[-1]]] == letter:
      found[open_.pop()] = i
  return found


def _unbox(text: str) -> str:
  boxes = [match.end() for match in re.finditer(r'\\boxed\s*\{', text)]
  if not boxes:
    return text
  depth = 1
  for i in range(boxes[-1], len(text)):
    depth += (text[i] == '{') - (text[i] == '}')
    if depth == 0:
      return text[boxes[-1] : i]
  return text
