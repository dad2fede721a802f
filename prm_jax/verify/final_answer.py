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


def final_answer(steps: Sequence[str]) -> str | None:
  """What the last step says the answer is; None where it says none.

  In this order: after `####`, in a box, after "answer is", right of the last
  equals sign.
  """
  lines = [line for line in steps[-1].splitlines() if line.strip()]
  for pattern in _STATED:
    for line in reversed(lines):
      found = pattern.findall(line)
      if found:
        return found[-1].strip().rstrip('.').strip() or None
  return None
