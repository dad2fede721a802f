r"""Other ways to write an answer of MATH with the same meaning.

Every function takes the answer as LaTeX and returns it in another form, or None
where it has nothing to change. They use no code of the judges: what they write
is equal by the rules of arithmetic and of LaTeX.
"""

import random
import re
from fractions import Fraction

from experiments.answer_equality.number_forms import (
  MIXED,
  Respelling,
  as_decimal,
  as_fraction,
  as_mixed,
  as_repeating,
  grouped,
  minus_moved,
  no_unit,
  other_unit,
  powers_of_ten,
  whole,
  with_zeros,
)

LIST = re.compile(r'[^,()\[\]{}]*(?:\{[^{},]*\}[^,()\[\]{}]*)*')
# This table replaces LaTeX by the Unicode signs that ruff warns of.
# ruff: noqa: RUF001
SIGNS = (
  (r'\\pi(?![a-z]) ?', 'π'),
  (r'\\infty(?![a-z])', '∞'),
  (r'\\cup(?![a-z])', '∪'),
  (r'\^\{?\\circ\}?', '°'),
  (r'\\leq?(?![a-z])', '≤'),
  (r'\\geq?(?![a-z])', '≥'),
  (r'\\sqrt\{(\d+)\}', r'√\1'),
  (r'(?<=[a-z)])\^2(?!\d)', '²'),
  (r'(?<=[a-z)])\^3(?!\d)', '³'),
  (r'\\cdot ', '·'),
  (r'-', '\u2212'),
)
PLAIN = (
  (r'\\(?:left|right|!|,)', ''),
  (r'\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}', r'((\1)/(\2))'),
  (r'\\sqrt\{([^{}]*)\}', r'sqrt(\1)'),
  (r'\\pi', 'pi'),
  (r'\\infty', 'inf'),
  (r'\\cup', 'U'),
  (r'\\cdot', '*'),
  (r'\^\{([^{}]*)\}', r'^(\1)'),
)
# What plain text cannot say, or what would be ambiguous beside a letter.
LATEX_ONLY = re.compile(r'\\|[{}]|pi[a-z0-9(]|[\d)a-z]\s*(?:sqrt|pi)')


def substituted(*rules: tuple[str, str]) -> Respelling:
  """Makes a respelling that applies rules; None where they change nothing."""

  def respell(text: str, _: random.Random) -> str | None:
    found = text
    for pattern, replacement in rules:
      found = re.sub(pattern, replacement, found)
    return found if found != text else None

  return respell


def around(*frames: str) -> Respelling:
  """Makes a respelling that puts the answer into one of some frames."""

  def respell(text: str, rng: random.Random) -> str | None:
    return rng.choice(frames).replace('ANSWER', text.strip())

  return respell


def as_decimals_inside(text: str, rng: random.Random) -> str | None:
  """Writes fractions in a point or a matrix as decimals."""
  if not re.match(r'\s*(?:\\left)?[(\[]|\s*\\begin', text):
    return None

  def replace(match: re.Match) -> str:
    standing = re.search(
      r'[(\[,&]\s*-?$|\\\\ ?-?$|\} -?$', text[: match.start()]
    )
    follows = re.match(r'\s*(?:\\right)?[)\],&]|\s*\\', text[match.end() :])
    exact = Fraction(int(match[1]), int(match[2]))
    ends = (exact * 1000).denominator == 1
    after = text[match.end() :].lstrip()
    bad = after.startswith(('\\pi', '\\sqrt'))
    return (
      str(float(exact))
      if standing and follows and ends and not bad
      else match[0]
    )

  found = re.sub(r'\\[dt]?frac\{(\d+)\}\{([1-9]\d*)\}', replace, text)
  return found if found != text else None


def items_of(text: str) -> list[str] | None:
  """Returns the items of a list without brackets; None for other texts."""
  text = text.strip()
  if (
    re.search(r'\\!|=|text|^[\\$-]*\d{1,3}(?:,\d{3})+$', text)
    or ',' not in text
  ):
    return None
  items = [item.strip() for item in re.sub(r'\\,', ' ', text).split(',')]
  fits = all(item and LIST.fullmatch(item) for item in items)
  return items if fits else None


def reordered(text: str, rng: random.Random) -> str | None:
  items = items_of(text)
  if not items or len(set(items)) < 2:
    return None
  shuffled = list(items)
  while shuffled == items:
    rng.shuffle(shuffled)
  return ', '.join(shuffled)


def other_list(text: str, rng: random.Random) -> str | None:
  items = items_of(text)
  if not items:
    return None
  first, last = ', '.join(items[:-1]), items[-1]
  several = ', '.join(items)
  return rng.choice(
    [
      rf'\{{{several}\}}',
      rf'\left\{{{several}\right\}}',
      rf'{first}\text{{ and }}{last}',
      rf'{first} \text{{ or }} {last}',
      f'{first} and {last}',
      f'{first}, and {last}',
      ', '.join(f'x = {item}' for item in items),
      ' or '.join(f'$x = {item}$' for item in items),
    ]
  )


def named(text: str, rng: random.Random) -> str | None:
  if '=' in text or r'\in' in text or 'text' in text or items_of(text):
    return None
  if re.search(r'[<>]|\\[lg]eq?(?![a-z])|\\[$%]|_', text):
    return None
  if re.search(r'(?<![\\a-z])[a-z](?![a-z])', re.sub('i', '', text)):
    return f'y = {text.strip()}' if 'y' not in text else None
  if len(text) > 40 or not re.search(r'\d', text):
    return None
  if r'\cup' in text or re.search(r'\\infty|^\s*\[|\]\s*$', text):
    return rf'x \in {text.strip()}'
  name = rng.choice(['x', 'n', r'\theta', 'A', 'k', 'a_1'])
  text = text.strip()
  last = f'{name}={text}' if ',' in text else f'{text} = {name}'
  return rng.choice([f'{name} = {text}', last, f'{name}={text}'])


def swapped_sides(text: str, _: random.Random) -> str | None:
  sides = text.split('=')
  return (
    f'{sides[1].strip()} = {sides[0].strip()}'
    if len(sides) == 2 and ',' not in text
    else None
  )


def sum_reordered(text: str, _: random.Random) -> str | None:
  """Writes a + b as b + a, for signs outside brackets and braces."""
  depth, cuts = 0, []
  if re.search(r'[,=<>:_&]|text|\\(?:begin|pm|[lg]eq?|cup|in)(?![a-z])', text):
    return None
  for k, letter in enumerate(text):
    depth += (letter in '({[') - (letter in ')}]')
    if depth == 0 and letter in '+-' and text[:k].strip(' '):
      cuts.append(k)
  if not cuts or any(
    text[:k].rstrip().endswith(('\\', '^', '/')) for k in cuts
  ):
    return None
  bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
  terms = [text[a:b].strip() for a, b in bounds]
  if not terms[0].startswith('-'):
    terms[0] = f'+ {terms[0]}'
  return ' '.join(reversed(terms)).removeprefix('+').strip()


def other_root(text: str, rng: random.Random) -> str | None:
  """Writes 3\\sqrt{2} as \\sqrt{18}, \\frac{5\\pi}{3} as \\frac{5}{3}\\pi."""
  if match := re.fullmatch(r'(\d+) ?\\sqrt\{(\d+)\}', text.strip()):
    above = int(match[1]) ** 2 * int(match[2])
    return rng.choice(
      [rf'\sqrt{{{above}}}', rf'{match[1]} \cdot {match[2]}^{{1/2}}']
    )
  root = r'(-?)\\[dt]?frac\{(\d*)(\\sqrt\{\d+\}|\\pi)\}\{(\d+)\}'
  if match := re.fullmatch(root, text.strip()):
    sign, factor, value, below = match.groups()
    return rng.choice(
      [
        rf'{sign}\frac{{{factor or 1}}}{{{below}}}{value}',
        rf'{sign}{factor}{value}/{below}',
        rf'\frac{{{sign}{factor}{value}}}{{{below}}}',
      ]
    )
  return None


def plain_text(text: str, _: random.Random) -> str | None:
  """Writes plain text: (3/4)*pi, 2*sqrt(3), (-inf, 2) U (3, inf)."""
  if re.search(r'\\(?:text|begin|mbox|[lg]eq?|overline|circ|%|\$)|_', text):
    return None
  if re.search(r'\d ?\\[dt]?frac', text):
    return None  # a mixed number
  found = re.sub(r'(?<=[\d)}]) ?(?=\\(?:sqrt|pi))', '*', text)
  for _ in range(3):
    for pattern, replacement in PLAIN:
      found = re.sub(pattern, replacement, found)
  found = re.sub(r'\(\((\d+)\)/\((\d+)\)\)$', r'\1/\2', found)
  return None if found == text or LATEX_ONLY.search(found) else found


def roomy(text: str, _: random.Random) -> str | None:
  if re.search(r'text|begin|\\!|\d,\d{3}(?!\d)', text):
    return None
  found = re.sub(r'\s*([-+,=])\s*', r' \1 ', text).strip()
  found = re.sub(r'(^|[(\[{,=^]) *- (?=[\d\\a-z])', r'\1-', found)
  return found if found != text else None


def tight(text: str, _: random.Random) -> str | None:
  if 'text' in text or 'mbox' in text:
    return None
  found = re.sub(r'(?<![A-Za-z\d\\]) +| +(?![A-Za-z\d])', '', text)
  return found if found != text else None


def spaced_by_latex(text: str, rng: random.Random) -> str | None:
  if 'text' in text or not re.search(r'[^\\] ', text):
    return None
  space = rng.choice([r'\,', r'\;', r'\ ', '~', r'\quad '])
  mixed = whole(MIXED, text)
  found = re.sub(r'(?<=[,=}\d]) (?=[^\\])', lambda _: space, text)
  return None if mixed or found == text else found


def worded(text: str, rng: random.Random) -> str | None:
  match = re.fullmatch(r'\\text\{([A-Za-z ]+)\}', text.strip())
  if match:
    return rng.choice([match[1], match[1].lower(), rf'\textbf{{{match[1]}}}'])
  match = re.fullmatch(r'\\text\{\(([A-Z])\)\}|([A-Z])', text.strip())
  letter = match and (match[1] or match[2])
  return (
    rng.choice([letter, f'({letter})', rf'\textbf{{({letter})}}'])
    if letter
    else None
  )


def other_base(text: str, rng: random.Random) -> str | None:
  match = re.fullmatch(r'(-?[\d.]+)_\{?(\d+)\}?', text.strip())
  if not match:
    return None
  low = match[2].translate(str.maketrans('0123456789', '₀₁₂₃₄₅₆₇₈₉'))
  return rng.choice(
    [
      f'{match[1]}_{{{match[2]}}}',
      f'{match[1]}{low}',
      rf'{match[1]}_{{\text{{{match[2]}}}}}',
      f'{match[1]} base {match[2]}',
    ]
  )


def union_reordered(text: str, _: random.Random) -> str | None:
  parts = re.split(r'\s*\\cup\s*', text.strip())
  return r' \cup '.join(reversed(parts)) if len(parts) > 1 else None


# The respellings by their names in the table.
EQUAL: dict[str, Respelling] = {
  'in $, \\( or \\[': around(
    '$ANSWER$', r'\(ANSWER\)', r'\[ANSWER\]', '$$ANSWER$$'
  ),
  'boxed': around(
    r'\boxed{ANSWER}', r'The answer is $\boxed{ANSWER}$.', r'$\boxed{ANSWER}$'
  ),
  'a full stop, bold or spaces': around(
    'ANSWER.', '**ANSWER**', ' ANSWER ', '$ANSWER$.'
  ),
  '\\displaystyle': around(r'\displaystyle ANSWER', r'$\displaystyle ANSWER$'),
  '\\dfrac, \\tfrac': substituted(
    (r'\\[dt]?frac', r'\\DFRAC'), (r'\\DFRAC', r'\\dfrac')
  ),
  '\\frac12': substituted((r'\\[dt]?frac\{(\d)\}\{(\d)\}', r'\\frac\1\2')),
  '\\left, \\right': substituted(
    (r'\\(?:left|right)', ''),
    (r'(?<!\\)([(\[])', r'\\left\1'),
    (r'(?<!\\)([)\]])', r'\\right\1'),
  ),
  'no \\left, \\right': substituted((r'\\(?:left|right) ?', '')),
  'braces': substituted(
    (r'\^(\d)(?!\d)', r'^{\1}'), (r'\\sqrt\{(\d)\}', r'\\sqrt\1')
  ),
  'Unicode': substituted(*SIGNS),
  'plain text': plain_text,
  'powers as **': substituted((r'(?<=[a-z)])\^(\d)(?!\d)', r'**\1')),
  'products with a sign': substituted(
    (r'(?<![\d_^{\\:c])(\d+) ?([a-z])(?![a-z.])', r'\1 \\cdot \2')
  ),
  'more spaces': roomy,
  'fewer spaces': tight,
  'LaTeX spaces': spaced_by_latex,
  'decimal of a fraction': as_decimal,
  'repeating decimal': as_repeating,
  'fraction, not reduced': as_fraction,
  'mixed number': as_mixed,
  'decimals inside': as_decimals_inside,
  'minus in the numerator': minus_moved,
  'thousands': grouped,
  'more or fewer zeros': with_zeros,
  'power of ten': powers_of_ten,
  'without its unit': no_unit,
  'unit in other letters': other_unit,
  'list in another order': reordered,
  'list with and, or, braces': other_list,
  'x = ...': named,
  'sides swapped': swapped_sides,
  'sum in another order': sum_reordered,
  'root or pi in another form': other_root,
  'brackets of a matrix': substituted((r'\{pmatrix\}', '{bmatrix}')),
  'word in other letters': worded,
  'base in other letters': other_base,
  'union in another order': union_reordered,
}
