"""The claims of chain_length."""

from collections.abc import Mapping
from typing import Any

from experiments.ablations import BY_ORM, BY_PRM, NULL, values
from experiments.findings import (
  MISSING,
  Case,
  Claim,
  Finder,
  Found,
  judge,
  over,
)
from experiments.tables import mean, percent, points


def lead_grows(over_what: str, name: str) -> Finder:
  """Makes a finder of whether a PRM's lead grows with the length of chains.

  Args:
    over_what: measure that best of 16 by the PRM is compared with.
    name: its name.
  """

  def find(document: Mapping[str, Any]) -> Found:
    leads, nulls = {}, []
    for arm in document['runs']:
      ours, theirs = (values(document, arm, it) for it in (BY_PRM, over_what))
      nulls.append(percent(mean(theirs)) if theirs else MISSING)
      leads[arm] = theirs and [a - b for a, b in zip(ours, theirs, strict=True)]
    shortest, *_, longest = leads.values()
    shown = ', '.join(
      f'{points(mean(seeds))} at {arm}' for arm, seeds in leads.items() if seeds
    )
    growth = shortest and [
      b - a for a, b in zip(shortest, longest, strict=True)
    ]
    case = Case(growth and over(growth, limit=2), '', shown, len(growth or ()))
    return judge([case], f'{name} {", ".join(dict.fromkeys(nulls))}')

  return find


CLAIMS = (
  Claim(
    "A PRM's lead over a random score of each text grows with the length of "
    'chains (best of 16, shortest to longest)',
    'none',
    lead_grows(NULL, 'random per text'),
  ),
  Claim(
    "A PRM's lead over an ORM grows with the length of chains (best of 16, "
    'shortest to longest)',
    'no lead on GSM8K (Uesato et al., 2022), a lead on MATH (Lightman et al., '
    '2023)',
    lead_grows(BY_ORM, 'ORM'),
  ),
)
