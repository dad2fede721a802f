"""The final answer that a chain states, as text for `answers.equal`."""

import re
from collections.abc import Sequence

# The last that matches counts; LaTeX boxes are opened by `answers`.
_STATED = (
  re.compile(r'####\s*(.+)'),
  re.compile(r'(\\boxed\s*\{.*\})'),
  re.compile(r'answer\s*(?:is|:|=)\s*:?\s*(.+)', re.IGNORECASE),
  re.compile(r'=\s*([^=]+)$'),
)
# Where a sentence ends, or goes on with its reason. "Dr. Smith" does not end.
_END = re.compile(
  r'(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bDr)(?<!\bSt)[.]\s+(?=[A-Z])'
  r'|[,;]?\s+\(?(?:because|since)\b'
  r'|[,;]\s+(?:as|so|which|therefore|thus|hence)\b'
)


def final_answer(steps: Sequence[str]) -> str | None:
  """What the last step says the answer is; None where it says none.

  In this order: after `####`, in a box, after "answer is", right of the last
  equals sign; up to the end of the sentence, or to a "because".
  """
  lines = [line for line in steps[-1].splitlines() if line.strip()]
  for pattern in _STATED:
    for line in reversed(lines):
      found = pattern.findall(line)
      if found:
        stated = found[-1]
        if '\\boxed' not in stated:
          stated = _END.split(stated, maxsplit=1)[0]
        return stated.strip().rstrip('.').strip() or None
  return None
