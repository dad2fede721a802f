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

# It compares differences at so many digits: 2^{-98}\pi is not 2^{-99}\pi.
PRECISION = 50
DECIMALS = 12  # 1.414214 is not \sqrt{2}
MEMORY_BYTES = 4 << 30  # SymPy alone needs a few hundred megabytes


def main() -> None:
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  try:
    # After the limits above, which importing SymPy must keep to.
    # ruff: noqa: PLC0415
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Basic, Expr, Float, I, Integer, Symbol
  except ImportError as error:
    print(json.dumps({'missing': str(error)}), flush=True)
    return
  logging.disable(logging.CRITICAL)  # it warns that no timeout is set
  # Its units are any letters behind a number: 5 + 3t would be 8.
  spelling = NormalizationConfig(basic_latex=True, units=False, boxed='last')
  latex = [LatexExtractionConfig(normalization_config=spelling)]
  imaginary = {Symbol('i', real=real): I for real in (True, False)}

  def read(text: str) -> list:
    found = parse(
      f'\\boxed{{{text}}}', latex, 'no_fallback', parsing_timeout=None
    )
    return [x.xreplace(imaginary) if isinstance(x, Basic) else x for x in found]

  def same(one: list, other: list) -> bool:
    return verify(
      one,
      other,
      float_rounding=DECIMALS,
      numeric_precision=PRECISION,
      timeout_seconds=None,
    )

  def tiny(x: object) -> bool:
    value = x.evalf(5) if isinstance(x, Expr) and x.is_number else None
    return isinstance(value, Float) and bool(abs(value) < 10.0**-DECIMALS)

  # The first pair takes a second or more, which is no fault of the pair.
  same(read('\\frac{x}{2} + \\sqrt{2}'), read('x + 1'))
  print(json.dumps({'ready': True}), flush=True)
  for line in sys.stdin:
    answer, truth, seconds = json.loads(line)
    signal.alarm(int(seconds) + 2)
    try:
      a, b = read(answer), read(truth)
      # Small numbers have small differences.
      if a and b and tiny(a[0]) and tiny(b[0]):
        a, b = [a[0] / b[0]], [Integer(1)]
      # An interval equals an inequality in one order only.
      equal = bool(a and b) and (same(a, b) or same(b, a))
    except (MemoryError, RecursionError):
      equal = None
    signal.alarm(0)
    print(json.dumps({'equal': equal}), flush=True)


if __name__ == '__main__':
  main()
