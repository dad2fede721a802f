"""Compares pairs with math-verify, as the child process of `symbolic.py`.

It is run as a file and never imported, so that it loads math-verify but neither
this package nor JAX. The parent kills it when a pair takes too long; if the
parent has died, an alarm ends it.

Reads lines of JSON [answer, truth, seconds]; writes {"ready": true} or
{"missing": why} once, then {"equal": true, false, or null if out of memory}.
"""

import json
import logging
import resource
import signal
import sys

# Digits to which differences are evaluated: 2^{-98}\pi is not 2^{-99}\pi.
PRECISION = 50
DECIMALS = 12  # to which floats are rounded: 1.414214 is not \sqrt{2}
MEMORY_BYTES = 4 << 30  # SymPy alone needs a few hundred megabytes


def main() -> None:
  """Judges pairs from standard input until it is closed."""
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  try:
    # Imported here, so that the limits above hold for the import, too.
    # ruff: noqa: PLC0415
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Basic, Expr, Float, I, Integer, Symbol
  except ImportError as error:
    print(json.dumps({'missing': str(error)}), flush=True)
    return
  logging.disable(logging.CRITICAL)  # math-verify warns of the missing timeout
  # With units=True any letters after a number are dropped: 5 + 3t would be 8.
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

  # The first pair takes a second or more, whichever it is.
  same(read('\\frac{x}{2} + \\sqrt{2}'), read('x + 1'))
  print(json.dumps({'ready': True}), flush=True)
  for line in sys.stdin:
    answer, truth, seconds = json.loads(line)
    signal.alarm(int(seconds) + 2)
    try:
      a, b = read(answer), read(truth)
      # The difference of two tiny numbers is tiny; their quotient tells more.
      if a and b and tiny(a[0]) and tiny(b[0]):
        a, b = [a[0] / b[0]], [Integer(1)]
      # math-verify finds an interval equal to an inequality in one order only.
      equal = bool(a and b) and (same(a, b) or same(b, a))
    except (MemoryError, RecursionError):
      equal = None
    signal.alarm(0)
    print(json.dumps({'equal': equal}), flush=True)


if __name__ == '__main__':
  main()
