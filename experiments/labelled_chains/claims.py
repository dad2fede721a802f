"""The claims of labelled_chains."""

from collections.abc import Mapping
from typing import Any

from experiments import ablations
from experiments.findings import Claim, Finder, Found, pairs
from experiments.tables import mean, percent


def process_is_cheaper(rows: int) -> Finder:
  """Makes a finder that compares each PRM with the ORM some rows further on.

  Each row has five times the chains of the row before.
  """

  def find(document: Mapping[str, Any]) -> Found:
    arms = list(document['runs'])
    compared = list(zip(arms, arms[rows:], strict=False))
    prm = [ablations.values(document, a, ablations.BY_PRM) for a, _ in compared]
    orm = [ablations.values(document, b, ablations.BY_ORM) for _, b in compared]
    first, second = compared[-1]
    return Found(
      '; '.join(
        f'{percent(mean(a))} ({first} chains) to {percent(mean(b))} ({second})'
        for (first, second), a, b in zip(compared, prm, orm, strict=True)
      ),
      f'each seed at {first} and {second}: {pairs(prm[-1], orm[-1])}',
      [
        a > b
        for ours, theirs in zip(prm, orm, strict=True)
        for a, b in zip(ours, theirs, strict=True)
      ],
    )

  return find


CLAIMS = (
  Claim(
    'With as many chains a PRM chooses better than an ORM (best of 16)',
    'at every number of chains (Lightman et al., 2023, figure 4)',
    process_is_cheaper(rows=0),
  ),
  Claim(
    'With at most as many labels a PRM chooses better than an ORM (best of 16)',
    'none',
    process_is_cheaper(rows=1),
  ),
)
