"""The claims of chain_length."""

from collections.abc import Mapping
from typing import Any

from experiments import ablations
from experiments.findings import Claim, Found
from experiments.tables import mean, points


def lead_grows(document: Mapping[str, Any]) -> Found:
  """Compares the PRM's lead over the ORM on the shortest and longest chains."""
  leads = {
    arm: [
      a - b
      for a, b in zip(
        ablations.values(document, arm, ablations.BY_PRM),
        ablations.values(document, arm, ablations.BY_ORM),
        strict=True,
      )
    ]
    for arm in document['runs']
  }
  shortest, *_, longest = leads.values()
  seeds = list(zip(shortest, longest, strict=True))
  return Found(
    '; '.join(f'{points(mean(seeds))} ({arm})' for arm, seeds in leads.items()),
    'each seed, first and last: '
    + ', '.join(f'{points(a)} to {points(b)}' for a, b in seeds),
    [b > a for a, b in seeds],
  )


CLAIMS = (
  Claim(
    "A PRM's lead over an ORM grows with the length of chains (points, best "
    'of 16)',
    'no lead on GSM8K (Uesato et al., 2022), a lead on MATH (Lightman et al., '
    '2023)',
    lead_grows,
  ),
)
