"""The files of a workdir, for the report: JSON and JSON lines, or a clear line.

`page.py` reads through this; what the records mean is the business of the
section that shows them.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from prm_jax.report import sections
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError


def json_object(text: bytes, where: object) -> dict[str, Any]:
  """The object that a line holds.

  Args:
    where: names it in the error message.
  """
  try:
    value = json.loads(text)
  except ValueError as error:  # not JSON, or not UTF-8
    raise UserError(f'{where}: not JSON ({error}); write it again') from error
  if not isinstance(value, dict):
    raise UserError(f'{where}: expected a JSON object')
  return value


def records(path: paths.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Where each line stands, for an error message, and its object."""
  with path.open('rb') as lines:
    for number, line in enumerate(lines, 1):
      if line.strip():
        yield f'{path}:{number}', json_object(line, f'{path}:{number}')


def count(path: paths.Path) -> int:
  """How many records a file has, without reading what is in them."""
  with path.open('rb') as lines:
    return sum(bool(line.strip()) for line in lines)


def read_metrics(path: paths.Path) -> dict[str, list[tuple[int, float]]]:
  """Metric name -> (step, value) pairs, ascending in step.

  A step that was logged twice (a resumed run) counts as logged last; null is
  NaN.
  """
  logged: dict[str, dict[int, float]] = {}
  for where, record in records(path):
    step = record.get('step')
    if not isinstance(step, int):
      raise UserError(f'{where}: expected a whole number under step')
    for name, value in record.items():
      if name != 'step' and (value is None or sections.number(value)):
        number = math.nan if value is None else float(value)
        logged.setdefault(name, {})[step] = number
  return {name: sorted(values.items()) for name, values in logged.items()}
