"""Reads the files of a workdir for the report: JSON and lines of JSON.

Errors name the file and line. What the records mean is up to the section of
the page that shows them.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from prm_jax.report import values
from prm_jax.runtime import paths
from prm_jax.runtime.errors import UserError
from prm_jax.runtime.workdir import read_results

# What Python raises where a value has not the form that its reader expects.
MALFORMED = (
  *(LookupError, TypeError, ValueError, AttributeError),
  *(ArithmeticError, RecursionError),
)


def not_documented(path: object, error: Exception) -> UserError:
  """Returns the error for a file, or several, of which values are not right."""
  why = ' '.join(f'{type(error).__name__}: {error}'.split())
  return UserError(
    f'{path}: does not have the documented form ({why:.200}); the command that '
    'wrote it writes it again'
  )


def read_document(workdir: paths.Path) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the manifest and the results in a workdir's results.json.

  Raises:
    UserError: the file is missing or malformed.
  """
  path = workdir / 'results.json'
  if not path.is_file():
    raise UserError(f'{path}: no such file; evaluate the run first')
  document = read_results(workdir)
  for name in ('manifest', 'results'):
    if not isinstance(document.get(name), dict):
      raise UserError(f'{path}: expected an object under {name!r}')
  return document['manifest'], document['results']


def parse_object(text: bytes, where: object) -> dict[str, Any]:
  """Returns the JSON object of a line.

  Raises:
    UserError: the line does not hold a JSON object.
  """
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
    raise UserError(f'{where}: not JSON ({error}); write it again') from error
  if not isinstance(value, dict):
    raise UserError(f'{where}: expected a JSON object')
  return value


def read_records(path: paths.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields each line's place, for error messages, and its JSON object."""
  with path.open('rb') as lines:
    for number, line in enumerate(lines, 1):
      if line.strip():
        yield f'{path}:{number}', parse_object(line, f'{path}:{number}')


def count_records(path: paths.Path) -> int:
  """Counts the records of a file without parsing them."""
  with path.open('rb') as lines:
    return sum(bool(line.strip()) for line in lines)


def read_metrics(path: paths.Path) -> dict[str, list[tuple[int, float]]]:
  """Reads metric name -> (step, value) pairs, ascending in step.

  If a resumed run logged a step twice, the last values count. null is NaN.

  Raises:
    UserError: a line is not JSON or has no step.
  """
  logged: dict[str, dict[int, float]] = {}
  for where, record in read_records(path):
    step = record.get('step')
    if not isinstance(step, int):
      raise UserError(f'{where}: expected a whole number under step')
    for name, value in record.items():
      if name != 'step' and (value is None or values.is_number(value)):
        try:
          number = math.nan if value is None else float(value)
        except OverflowError:
          raise UserError(f'{where}: {name} is too large a number') from None
        logged.setdefault(name, {})[step] = number
  return {name: sorted(steps.items()) for name, steps in logged.items()}
