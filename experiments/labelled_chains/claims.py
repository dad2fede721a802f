"""The claims of labelled_chains."""

from collections.abc import Mapping
from typing import Any

from experiments.ablations import (
  BY_ORM,
  BY_PRM,
  NULL,
  WITHIN,
  intervals,
  values,
)
from experiments.findings import Claim, Finder, Found, baseline, judge, lead

COIN = 0.5


def null_of(document: Mapping[str, Any]) -> str:
  """Shows the null; it is the same for all arms, which share their tests."""
  return baseline(
    'random per text', values(document, next(iter(document['runs'])), NULL)
  )


def process_is_cheaper(rows: int) -> Finder:
  """Makes a finder that compares each PRM with the ORM some rows further on.

  Each row has five times the chains of the row before.
  """

  def find(document: Mapping[str, Any]) -> Found:
    arms = list(document['runs'])
    return judge(
      [
        lead(
          values(document, first, BY_PRM),
          values(document, second, BY_ORM),
          f'{first} and {second} chains' if rows else f'{first} chains',
        )
        for first, second in zip(arms, arms[rows:], strict=False)
      ],
      null_of(document),
    )

  return find


def orm_learns(document: Mapping[str, Any]) -> Found:
  """Compares how an ORM ranks the chains of a problem with a coin."""
  name, cases = f'{WITHIN}, ORM', []
  for arm in document['runs']:
    areas = values(document, arm, name)
    coin = areas and [COIN] * len(areas)
    paired = intervals(document, arm, name)
    cases.append(lead(areas, coin, f'{arm} chains', paired))
  return judge(cases, baseline('a coin', [COIN]))


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
  Claim(
    'An ORM has learned something: it ranks right chains above wrong ones of '
    'the same problem (AUC within problems)',
    'none',
    orm_learns,
  ),
)
