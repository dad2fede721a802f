"""What labelled_chains is asked, and how its results answer."""

from collections.abc import Mapping
from typing import Any

from experiments import ablations
from experiments.findings import Claim, Finder, Found, mean, percent


def process_is_cheaper(behind: int) -> Finder:
  """PRM beside the ORM with `behind` times five times as many chains."""

  def find(document: Mapping[str, Any]) -> Found:
    arms = list(document['runs'])
    pairs = list(zip(arms, arms[behind:], strict=False))
    prm, orm = (
      [ablations.values(document, pair[side], name) for pair in pairs]
      for side, name in enumerate((ablations.BY_PRM, ablations.BY_ORM))
    )
    return Found(
      '; '.join(
        f'{percent(mean(a))} ({first} chains) to {percent(mean(b))} ({second})'
        for (first, second), a, b in zip(pairs, prm, orm, strict=True)
      ),
      f'each seed at {pairs[-1][0]} and {pairs[-1][1]}: '
      + ', '.join(
        f'{percent(a)} to {percent(b)}'
        for a, b in zip(prm[-1], orm[-1], strict=True)
      ),
      [
        a > b
        for ours, theirs in zip(prm, orm, strict=True)
        for a, b in zip(ours, theirs, strict=True)
      ],
    )

  return find


CLAIMS = (
  Claim(
    'With equal chains a PRM chooses better than an ORM (best of 16)',
    'at every number of chains (Lightman et al., 2023, figure 4)',
    process_is_cheaper(0),
  ),
  Claim(
    'With at most as many labels, too',
    'none',
    process_is_cheaper(1),
  ),
)
