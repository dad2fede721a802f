"""Compares the results of an experiment with those that are committed.

A number of both is compared where it has a 95% interval. Two numbers agree
where their intervals meet.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROUNDING = 1e-9  # between intervals that still meet: sums in another order
VALUES = ('value', 'mean', 'f1')  # names of the number that `ci95` belongs to
Path = tuple[str, ...]
Interval = tuple[float, float]


def intervals(
  document: Any, path: Path = (), seeds: Sequence[int] = ()
) -> Iterator[tuple[Path, float, Interval]]:
  """Yields every number of a results.json that has an interval.

  Args:
    document: a results.json, or a part of it.
    path: where the part stands.
    seeds: seeds of the whole, for parts that list a number for each.

  Yields:
    Where it stands, the number, and its interval over problems.
  """
  if isinstance(document, list):
    for k, part in enumerate(document):
      yield from intervals(part, (*path, str(k)), seeds)
  if not isinstance(document, Mapping):
    return
  if 'accuracy' in document and 'seeds' in document:  # a search
    ends = document['accuracy']['ci95']
    yield from _each_seed(path, seeds, document['seeds'], ends)
    return
  seeds = document.get('seeds', seeds)
  value = next((document[k] for k in VALUES if k in document), None)
  bounds = document.get('ci95')
  if isinstance(value, list) and bounds:
    for k, (number, ends) in enumerate(zip(value, bounds, strict=True)):
      yield (*path, str(k)), number, tuple(ends)
  elif value is not None and bounds:
    yield path, value, tuple(bounds)
  for name, part in document.items():
    yield from intervals(part, (*path, name), seeds)


def _each_seed(
  path: Path,
  seeds: Sequence[int],
  values: Sequence[float],
  ends: Sequence[float],
) -> Iterator[tuple[Path, float, Interval]]:
  """Yields each seed's number and interval.

  The interval is that of the problems of all seeds, as many times wider as one
  seed makes it.
  """
  half = (ends[1] - ends[0]) / 2 * len(values) ** 0.5
  for seed, value in zip(seeds, values, strict=True):
    yield (*path, str(seed)), value, (value - half, value + half)


def compare(committed: Any, again: Any) -> list[dict[str, Any]]:
  """Returns a row for each number that both have."""
  before = {path: (value, ends) for path, value, ends in intervals(committed)}
  rows = []
  for path, value, (low, high) in intervals(again):
    if path in before:
      was, (was_low, was_high) = before[path]
      rows.append(
        {
          'where': ' / '.join(path),
          'committed': [was, was_low, was_high],
          'again': [value, low, high],
          'agrees': max(low, was_low) <= min(high, was_high) + ROUNDING,
        }
      )
  return rows


def disagreements(rows: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns a line for each number that does not agree."""
  lines = []
  for row in rows:
    if not row['agrees']:
      was, now = (
        f'{value:.3f} [{low:.3f}, {high:.3f}]'
        for value, low, high in (row['committed'], row['again'])
      )
      lines.append(f'{row["where"]}: committed {was}, now {now}')
  return lines


def agreement(rows: Sequence[Mapping[str, Any]]) -> str:
  """Says how many numbers agree."""
  return f'{sum(row["agrees"] for row in rows)} of {len(rows)}'


def is_good(result: Mapping[str, Any]) -> bool:
  """Tells whether numbers were compared and all of them agree."""
  rows = result.get('numbers', [])
  return bool(rows) and all(row['agrees'] for row in rows)
