"""A claim, what a results.json says of it, and whether that holds.

Shared by the claims.py of the experiments, with the finders that several use.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import ablations

HOLDS, PARTLY, FAILS = 'holds', 'partly', 'fails'


class Found(NamedTuple):
  """Our side of a claim.

  Attributes:
    number: with its unit.
    interval: 95%, or each seed, as it says.
    holds: of each case the claim is asked of.
  """

  number: str
  interval: str
  holds: Sequence[bool]

  @property
  def verdict(self) -> str:
    return HOLDS if all(self.holds) else PARTLY if any(self.holds) else FAILS


Finder = Callable[[Mapping[str, Any]], Found]  # of a results.json


class Claim(NamedTuple):
  """What is claimed, and how an experiment's results answer it.

  Attributes:
    literature: what others found, with its source.
    find: what of the results answers it.
    results: the file that holds them.
  """

  text: str
  literature: str
  find: Finder
  results: str = 'results.json'


def percent(value: float) -> str:
  return f'{100 * value:.1f}'


def between(ci95: Sequence[float]) -> str:
  return ' to '.join(percent(bound) for bound in ci95)


def mean(values: Sequence[float]) -> float:
  return sum(values) / len(values)


def arm_leads(first: str, second: str, name: str) -> Finder:
  """Whether one arm of an ablation measures more than another, each seed."""

  def find(document: Mapping[str, Any]) -> Found:
    ours, theirs = (
      ablations.values(document, arm, name) for arm in (first, second)
    )
    pairs = [
      f'{percent(a)} to {percent(b)}' for a, b in zip(ours, theirs, strict=True)
    ]
    return Found(
      f'{percent(mean(ours))} to {percent(mean(theirs))}',
      f'each seed: {", ".join(pairs)}',
      [a > b for a, b in zip(ours, theirs, strict=True)],
    )

  return find
