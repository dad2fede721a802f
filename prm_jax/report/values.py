"""Checks the numbers of results.json, and writes them as the page shows them.

The sections of the page start here. A number that does not have the documented
form is an error that names it; an absent one is shown as `NOTHING`.
"""

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

from prm_jax.runtime.errors import UserError

NOTHING = '\N{EN DASH}'  # shown where there is no value
Pair = tuple[float, float]


def is_number(value: Any) -> bool:
  """Returns whether a JSON value is a number; true and false are not."""
  return isinstance(value, int | float) and not isinstance(value, bool)


def fraction(value: Any, where: str) -> float:
  """Checks a fraction in [0, 1]; null becomes NaN: there is no value."""
  if value is None:
    return math.nan
  # Rounding errors may put a mean of ones slightly above 1.
  if not is_number(value) or value < -1e-9 or value > 1 + 1e-9:
    raise UserError(f'{where} is {value!r}: expected a fraction in [0, 1]')
  return value if math.isnan(value) else min(max(float(value), 0.0), 1.0)


def difference(value: Any, where: str) -> float:
  """Checks a difference of two fractions; null becomes NaN."""
  if value is None:
    return math.nan
  if not is_number(value) or not -1 - 1e-9 <= value <= 1 + 1e-9:
    raise UserError(f'{where} is {value!r}: expected a number in [-1, 1]')
  return float(value)


def section_of(section: Mapping[str, Any], name: str, where: str) -> Mapping:
  """Returns the object under a name; an absent one is empty."""
  value = section.get(name) or {}
  if not isinstance(value, Mapping):
    raise UserError(f'{where}.{name}: expected an object')
  return value


def list_of(
  section: Mapping[str, Any], name: str, where: str, length: int
) -> list[Any]:
  """Returns the list under a name; a length of -1 allows any."""
  values = section.get(name)
  if not isinstance(values, list) or length not in (-1, len(values)):
    many = 'a list' if length < 0 else f'a list of {length}'
    raise UserError(f'{where}.{name}: expected {many}')
  return values


def pair(value: Any, where: str, check: Any = fraction) -> Pair | None:
  """Checks an interval, whose ends `check` takes; null becomes None."""
  if value is None:
    return None
  if not isinstance(value, list) or len(value) != 2:
    raise UserError(f'{where} is {value!r}: expected [low, high]')
  return check(value[0], where), check(value[1], where)


def percent(value: float) -> str:
  """Formats a fraction in percent."""
  return NOTHING if math.isnan(value) else f'{100 * value:.1f}'


def points(value: float) -> str:
  """Formats a difference in percentage points, with its sign."""
  return NOTHING if math.isnan(value) else f'{100 * value:+.1f}'


def decimals(value: float) -> str:
  """Formats an AUC or a loss."""
  return NOTHING if math.isnan(value) else f'{value:.3f}'


def interval(bounds: Pair | None, write: Any = percent) -> str:
  """Formats an interval, whose ends `write` formats; '' for none."""
  if bounds is None or math.isnan(bounds[0] + bounds[1]):
    return ''
  return f'[{write(bounds[0])}, {write(bounds[1])}]'


def format_percent(value: float, bounds: Pair | None) -> str:
  """Formats a fraction and its interval as percentages: 85.5% [82.5, 87.5]."""
  return f'{percent(value)}% {interval(bounds)}'.rstrip()


def text(value: Any) -> str:
  """Formats any JSON value."""
  if value is None:
    return NOTHING
  if isinstance(value, float):
    return f'{value:.6g}'
  return value if isinstance(value, str) else json.dumps(value)


def flatten_rows(section: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns (name, text) rows of nested values, with names joined by dots."""
  rows = []
  for name, value in section.items():
    if isinstance(value, Mapping):
      rows += [
        (f'{name}.{below}', found) for below, found in flatten_rows(value)
      ]
    elif name == 'wall_seconds' and is_number(value):
      clock = datetime.timedelta(seconds=round(value))
      # A resumed run measures only what it took after its last interruption.
      rows.append((name, f'{text(value)} ({clock} since its last start)'))
    else:
      rows.append((name, text(value)))
  return rows
