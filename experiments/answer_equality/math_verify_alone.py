"""Judges pairs of answers by math-verify's own parse and verify.

`prm_jax.data.verify.symbolic.Worker` runs this file: it reads pairs and prints
verdicts, one on each line. math-verify finds LaTeX in dollar signs or in a box;
the caller puts texts without either into one of them.
"""

import json
import logging
import signal
import sys

from math_verify import parse, verify


def main() -> None:
  logging.disable(logging.CRITICAL)
  verify(*(parse(x, parsing_timeout=None) for x in ('$x$', '$x + \\sqrt{2}$')))
  print(json.dumps({'ready': True}), flush=True)
  for line in sys.stdin:
    answer, truth, seconds = json.loads(line)
    signal.alarm(int(seconds) + 2)
    try:
      gold, given = (parse(x, parsing_timeout=None) for x in (truth, answer))
      equal = bool(verify(gold, given, timeout_seconds=None))
    except (MemoryError, RecursionError):
      equal = None
    signal.alarm(0)
    print(json.dumps({'equal': equal}), flush=True)


if __name__ == '__main__':
  main()
