"""Compares the results of an experiment with those that are committed.

A number of both is compared where it has a 95% interval. Two numbers agree
where their intervals meet.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

VALUES = ('value', 'mean', 'f1')  # names of the number that `ci95` belongs to
# Intervals over all seeds, which the first seed alone does not have.
POOLED = ('differences', 'times_less')
Path = tuple[str, ...]
Interval = tuple[float, float]


def intervals(
  document: Any, path: Path = ()
) -> Iterator[tuple[Path, float, Interval]]:
  """Yields every number of a results.json that has an interval.

  Yields:
    Where it stands, the number, and its interval.
  """
  if isinstance(document, list):
    for k, part in enumerate(document):
      yield from intervals(part, (*path, str(k)))
  if not isinstance(document, Mapping):
    return
  if 'seeds_end' in document:  # an arm of RL
    ends = (document['accuracy'][name][-1] for name in ('low', 'high'))
    yield (*path, 'first seed'), *_first_seed(document['seeds_end'], *ends)
    return
  if 'accuracy' in document and 'seeds' in document:  # a search
    ends = document['accuracy']['ci95']
    yield (*path, 'first seed'), *_first_seed(document['seeds'], *ends)
    return
  value = next((document[k] for k in VALUES if k in document), None)
  bounds = document.get('ci95')
  if isinstance(value, list) and bounds:
    for k, (number, ends) in enumerate(zip(value, bounds, strict=True)):
      yield (*path, str(k)), number, tuple(ends)
  elif value is not None and bounds:
    yield path, value, tuple(bounds)
  for name, part in document.items():
    if name not in POOLED:
      yield from intervals(part, (*path, name))


def _first_seed(
  seeds: Sequence[float], low: float, high: float
) -> tuple[float, Interval]:
  """Returns the first seed's number and interval.

  The interval is that of all seeds, as many times wider as one seed makes it.
  """
  half = (high - low) / 2 * len(seeds) ** 0.5
  return seeds[0], (seeds[0] - half, seeds[0] + half)


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
          'agrees': low <= was_high and was_low <= high,
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
