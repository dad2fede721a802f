"""The final answer that a chain states, as text for `answers.equal`.

Every pattern here reads a text once from left to right, so that a policy's
longest ramblings cost no more than their length.
"""

import re
from collections.abc import Sequence

_MARK = re.compile(r'<<[^<>\n]*>>')  # GSM8K's calculator
_HASHES = re.compile(r'####')
_SAID = re.compile(
  r'\banswers?\b[*_]*\s*(?:is|are|:|=)(?!\w)'
  # "I hope the answer is correct" states none.
  r'(?!\s*(?:in)?(?:correct|right|wrong|valid|reasonable|consistent)\b)'
  r'|^[#*_ ]*(?:the\s)?(?:final\s)?answer[*_ ]*$'
  r'|^(?-i:A):(?![^\n]*\n\s*(?-i:B)\b)',  # no options A, B, C
  re.IGNORECASE | re.MULTILINE,
)
_EQUALS = re.compile(r'=|≈|\\approx\b')
# **14** or **168 ways**, not **2. Add the numbers**
_BOLD = re.compile(r'\*\*(?=[-+$\\\d.])(?!\d+[.:)]\s)(?=[^*\n]*\*\*)')
_BRACES = re.compile(r'\\boxed\s*\{|(?<!\\)[{}]')
_DISPLAYED = re.compile(r'\\\[(.*?)\\\]|\$\$(.*?)\$\$', re.DOTALL)
# Signs around a formula; a dollar sign before a number may be money.
_FORMULA = re.compile(
  r'\\\((?P<round>(?:[^\\]|\\(?![()]))*+)\\\)'
  r'|(?<!\\)\$(?P<dollars>[^$]*)(?<!\\)\$(?!\d)'
)
_STRAY = re.compile(r'\\[][()]|(?<!\\)\$(?![-\d.])')
_NUMBER = re.compile(r'[-+$€£]*[\d.,\s]+%?')
_CLOSED = re.compile(r'\\[])]|(?<=[^\s\\])\$(?!\d)')
# Where a sentence ends, or goes on with its reason. "Dr. Smith" does not end.
_END = re.compile(
  r'(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bDr)(?<!\bSt)[.]\s+(?=[A-Z\d\\$*(])'
  r'|[,;]?\s+\(?(?:because|since)\b'
  r'|[,;]\s+(?:as|so|which|therefore|thus|hence)\b'
)


def final_answer(steps: Sequence[str]) -> str | None:
  """What the last step says the answer is; None where it says none.

  In this order: after a last `####`, in a box, after "answer is" or "Answer:",
  right of the last equals sign or in bold, whichever comes later. Of two
  answers of one kind the last counts; it goes to the end of its formula or
  sentence, or to a "because".
  """
  text = _MARK.sub('', steps[-1])
  hashes, said = _last(_HASHES, text), _last(_SAID, text)
  box_start, box_end = _last_box(text)
  # Four hashes before an answer are a heading.
  if hashes > max(said, box_start):
    return _stated(text[hashes:])
  if box_end:
    return text[box_start:box_end]
  if said:
    return _stated(text[said:])
  equals, bold = _last(_EQUALS, text), _last(_BOLD, text)
  if bold > equals:
    return _stated(text[bold:].partition('**')[0])
  return _stated(text[equals:], inside=True) if equals else None


def _last(pattern: re.Pattern, text: str) -> int:
  """Where the last match ends; 0 for none."""
  return max((match.end() for match in pattern.finditer(text)), default=0)


def _last_box(text: str) -> tuple[int, int]:
  """Where the box begins and ends that begins last and is closed; else 0, 0."""
  starts, boxes = [], [(0, 0)]
  for match in _BRACES.finditer(text):
    brace = match.group()
    if brace != '}':
      starts.append(match.start() if brace != '{' else None)
    elif starts and (start := starts.pop()) is not None:
      boxes.append((start, match.end()))
  return max(boxes)


def _stated(text: str, inside: bool = False) -> str | None:
  """What a text states first.

  Args:
    inside: it may begin inside a formula, at whose end the statement ends.
  """
  text = text.lstrip(' \t\n*_:')
  if displayed := _DISPLAYED.match(text):
    return _trimmed(displayed[1] or displayed[2])
  end = (text + '\n').find('\n')
  if (matrix := text.find('\\begin{', 0, end)) >= 0:
    end = (text + '\n').find('\n', max(text.find('\\end{', matrix), end))
  text = text[:end]
  if inside and (closed := _CLOSED.search(text)):
    text = text[: closed.start()]
  # Long runs of spaces would make the pattern quadratic.
  text = _END.split(' '.join(text.split()), maxsplit=1)[0]
  formula = _FORMULA.match(text)
  if formula and text[formula.end() :].strip(' .').replace(' ', '').isalpha():
    # "$72$ dollars" has a unit, of which "$32\pi$ cubic feet" is not in need.
    held = formula['round'] or formula['dollars'] or ''
    if not _NUMBER.fullmatch(held):
      return _trimmed(held)
  text = _FORMULA.sub(r'\g<round>\g<dollars>', text)
  return _trimmed(_STRAY.sub('', text))


def _trimmed(text: str) -> str | None:
  """Without spaces, marks and a bracket too many at the end; None if empty."""
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
