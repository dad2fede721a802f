"""A claim of the literature, what our results say of it, and whether it holds.

The claims.py of each experiment lists its claims with these types; the finders
that several experiments need are here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import ablations
from experiments.tables import mean, percent

HOLDS, PARTLY, FAILS = 'holds', 'partly', 'fails'


class Found(NamedTuple):
  """What our results say of a claim.

  Attributes:
    number: our number, with its unit.
    interval: its 95% interval, or the number of each seed; it says which.
    holds: for each case that the claim is about, whether it holds there.
  """

  number: str
  interval: str
  holds: Sequence[bool]

  @property
  def verdict(self) -> str:
    """Says whether the claim holds in all cases, in some or in none."""
    return HOLDS if all(self.holds) else PARTLY if any(self.holds) else FAILS


Finder = Callable[[Mapping[str, Any]], Found]  # takes a results.json


class Claim(NamedTuple):
  """A claim, and how the results of an experiment answer it.

  Attributes:
    text: the claim.
    literature: what others found, with its source.
    find: reads the answer from the results.
    results: name of the file with the results.
  """

  text: str
  literature: str
  find: Finder
  results: str = 'results.json'


def pairs(ours: Sequence[float], theirs: Sequence[float]) -> str:
  """Formats two numbers of each seed in percent, side by side."""
  return ', '.join(
    f'{percent(a)} to {percent(b)}' for a, b in zip(ours, theirs, strict=True)
  )


def compare_seeds(ours: Sequence[float], theirs: Sequence[float]) -> Found:
  """Finds whether a number is above another one, seed by seed."""
  return Found(
    f'{percent(mean(ours))} to {percent(mean(theirs))}',
    f'each seed: {pairs(ours, theirs)}',
    [a > b for a, b in zip(ours, theirs, strict=True)],
  )


def arm_leads(first: str, second: str, name: str) -> Finder:
  """Makes a finder of whether one arm of an ablation measures more."""

  def find(document: Mapping[str, Any]) -> Found:
    ours, theirs = (
      ablations.values(document, arm, name) for arm in (first, second)
    )
    return compare_seeds(ours, theirs)

  return find
