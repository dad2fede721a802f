"""math-verify's own parse and verify, on texts as they are.

Run as a file by `prm_jax.data.verify.symbolic.Worker`: pairs in, verdicts out,
one a line. Its README hands it a text that holds LaTeX in dollar signs or a
box; what stands in neither is put there by whoever asks.
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
