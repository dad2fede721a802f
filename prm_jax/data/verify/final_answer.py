"""Finds the final answer that a chain states, as text for `answers.equal`.

Every pattern here reads a text once from left to right, so that the time is
linear in the length of what a policy wrote.
"""

import re
from collections.abc import Sequence

_MARK = re.compile(r'<<[^<>\n]*>>')  # GSM8K's calculator
_HASHES = re.compile(r'####')
_ANSWER_IS = re.compile(
  r'\banswers?\b[*_]*\s*(?:is|are|:|=)(?!\w)'
  # "I hope the answer is correct" states no answer.
  r'(?!\s*(?:in)?(?:correct|right|wrong|valid|reasonable|consistent)\b)'
  r'|^[#*_ ]*(?:the\s)?(?:final\s)?answer[*_ ]*$'
  r'|^(?-i:A):(?![^\n]*\n\s*(?-i:B)\b)',  # but not of the options A, B, C
  re.IGNORECASE | re.MULTILINE,
)
_EQUALS = re.compile(r'=|≈|\\approx\b')
# x = 2 or x = 3, before its last equals sign.
_EQUATIONS = re.compile(
  r'(?<![A-Za-z\\])(?:\$|\\\()?(?P<name>[A-Za-z])\s*=[^=\n]{1,40}?'
  r'(?:,? (?:and|or)|,) (?:\$|\\\()?(?P=name)\s*$'
)
# Bold answers, **14** or **168 ways**, but not **2. Add the numbers**.
_BOLD = re.compile(r'\*\*(?=[-+$\\\d.])(?!\d+[.:)]\s)(?=[^*\n]*\*\*)')
_BRACES = re.compile(r'\\boxed\s*\{|(?<!\\)[{}]')
_DISPLAYED = re.compile(r'\\\[(.*?)\\\]|\$\$(.*?)\$\$', re.DOTALL)
# A formula in \( \) or $ $; before a number, a single $ is money.
_FORMULA = re.compile(
  r'\\\((?P<round>(?:[^\\]|\\(?![()]))*+)\\\)'
  r'|(?<!\\)\$(?P<dollars>[^$]*)(?<!\\)\$(?!\d)'
)
_STRAY = re.compile(r'\\[][()]|(?<!\\)\$(?![-\d.])')
_NUMBER = re.compile(r'[-+$€£]*[\d.,\s]+%?')
_CLOSED = re.compile(r'\\[])]|(?<=[^\s\\])\$(?!\d)')
# The end of a sentence (not the dot of "Dr. Smith"), or the start of a clause
# that gives a reason or a consequence.
_END = re.compile(
  r'(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bDr)(?<!\bSt)[.]\s+(?=[A-Z\d\\$*(])'
  r'|[,;]?\s+\(?(?:because|since)\b'
  r'|[,;]\s+(?:as|so|which|therefore|thus|hence)\b'
)


def final_answer(steps: Sequence[str]) -> str | None:
  """Returns the answer that the last step states, or None if it states none.

  Looks for, in this order: text after a final `####`; a box; text after "answer
  is" or "Answer:"; text right of the last equals sign or in bold, whichever is
  later. Of several answers of one kind, the last counts; of equations for one
  name, such as x = 2 or x = 3, all. An answer ends with
  its formula or sentence, or before a "because".
  """
  text = _MARK.sub('', steps[-1])
  hashes, answer_is = _find_last(_HASHES, text), _find_last(_ANSWER_IS, text)
  box_start, box_end = _find_last_box(text)
  # #### before any other answer is the heading of a section.
  if hashes > max(answer_is, box_start):
    return _read_answer(text[hashes:])
  if box_end:
    return text[box_start:box_end]
  if answer_is:
    return _read_answer(text[answer_is:])
  equals, bold = _find_last(_EQUALS, text), _find_last(_BOLD, text)
  if bold > equals:
    return _read_answer(text[bold:].partition('**')[0])
  # Few characters are looked at, so that the time stays linear.
  start = max(0, equals - 80)
  if several := _EQUATIONS.search(text[start : max(equals - 1, 0)]):
    return _read_answer(text[start + several.start() :])
  return _read_answer(text[equals:], inside=True) if equals else None


def _find_last(pattern: re.Pattern, text: str) -> int:
  """Returns the end of the last match, or 0 if there is none."""
  return max((match.end() for match in pattern.finditer(text)), default=0)


def _find_last_box(text: str) -> tuple[int, int]:
  """Returns the start and end of the last closed \\boxed{}, or (0, 0)."""
  starts, boxes = [], [(0, 0)]
  for match in _BRACES.finditer(text):
    brace = match.group()
    if brace != '}':
      starts.append(match.start() if brace != '{' else None)
    elif starts and (start := starts.pop()) is not None:
      boxes.append((start, match.end()))
  return max(boxes)


def _read_answer(text: str, inside: bool = False) -> str | None:
  """Returns the answer at the start of a text, or None if it is empty.

  Args:
    inside: whether the text may begin inside a formula; the answer then ends
      with that formula.
  """
  before, text = text, text.lstrip(' \t\n*_:`')
  opening = _opening_mark(before[: len(before) - len(text)])
  if displayed := _DISPLAYED.match(text):
    return _trim(displayed[1] or displayed[2] or '')
  end = (text + '\n').find('\n')
  if (matrix := text.find('\\begin{', 0, end)) >= 0:
    end = (text + '\n').find('\n', max(text.find('\\end{', matrix), end))
  text = text[:end]
  if opening:
    # In **2**3** the first is a power, and in _x_1_ a subscript.
    closing = rf'(?<=\S){re.escape(opening)}(?![\w*`(])'
    text = re.sub(closing, '', text, count=1)
  if inside and (closed := _CLOSED.search(text)):
    text = text[: closed.start()]
  # Spaces are collapsed first, as the pattern is quadratic in long runs.
  text = _END.split(' '.join(text.split()), maxsplit=1)[0]
  formula = _FORMULA.match(text)
  if formula and text[formula.end() :].strip(' .').replace(' ', '').isalpha():
    # Words after a formula are its unit. They are kept for a plain number,
    # "$72$ dollars", and dropped for other formulas, "$32\pi$ cubic feet".
    held = formula['round'] or formula['dollars'] or ''
    if not _NUMBER.fullmatch(held):
      return _trim(held)
  text = _FORMULA.sub(r'\g<round>\g<dollars>', text)
  return _trim(_STRAY.sub('', text))


def _opening_mark(before: str) -> str:
  """Returns the **, *, _ or ` that ends a text and opens what follows."""
  mark = before[len(before.rstrip(before[-1:])) :]
  return mark if mark[:1] in tuple('*_`') and len(mark) < 4 else ''


def _trim(text: str) -> str | None:
  """Cuts at an unopened bracket, and strips punctuation; None if empty."""
  depth = 0
  for i, letter in enumerate(text):
    depth += (letter in '([{') - (letter in ')]}')
    if depth < 0 and i:
      text = text[:i]
      break
  text = text.strip(' \n*_,;:')
  if not text.endswith('...'):
    text = text.rstrip('. *')
  return text or None
