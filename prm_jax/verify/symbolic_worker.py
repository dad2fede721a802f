"""The process that `symbolic.py` starts: pairs in, verdicts out, one a line.

Run as a file, never imported: it must not load the package (and so JAX), only
math-verify. What hangs here is killed from outside; should the parent die
first, the alarm ends it.
"""

import json
import logging
import resource
import signal
import sys

MEMORY_BYTES = 4 << 30  # SymPy alone needs a few hundred megabytes


def main() -> None:
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  try:
    from math_verify import LatexExtractionConfig, parse, verify  # noqa: PLC0415
  except ImportError as error:
    print(json.dumps({'missing': str(error)}), flush=True)
    return
  logging.disable(logging.CRITICAL)  # it warns that no timeout is set
  print(json.dumps({'ready': True}), flush=True)
  latex = [LatexExtractionConfig()]

  def read(text: str) -> list:
    return parse(
      f'\\boxed{{{text}}}', latex, 'no_fallback', parsing_timeout=None
    )

  for line in sys.stdin:
    answer, truth, seconds = json.loads(line)
    signal.alarm(int(seconds) + 2)
    try:
      gold, given = read(truth), read(answer)
      equal = bool(gold and given) and verify(gold, given, timeout_seconds=None)
    except (MemoryError, RecursionError):
      equal = None
    signal.alarm(0)
    print(json.dumps({'equal': equal}), flush=True)


if __name__ == '__main__':
  main()
