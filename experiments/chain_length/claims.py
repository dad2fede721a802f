"""What chain_length is asked, and how its results answer."""

from collections.abc import Mapping
from typing import Any

from experiments import ablations
from experiments.findings import Claim, Found, mean


def gap_grows(document: Mapping[str, Any]) -> Found:
  """PRM's lead over the ORM, the shortest chains and the longest."""
  gaps = {
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
  short, *_, long = gaps.values()
  return Found(
    '; '.join(f'{100 * mean(each):+.1f} ({arm})' for arm, each in gaps.items()),
    'each seed, first and last: '
    + ', '.join(
      f'{100 * a:+.1f} to {100 * b:+.1f}'
      for a, b in zip(short, long, strict=True)
    ),
    [b > a for a, b in zip(short, long, strict=True)],
  )


CLAIMS = (
  Claim(
    "A PRM's lead over an ORM grows with length (points, best of 16)",
    'alike on GSM8K (Uesato et al., 2022), apart on MATH (Lightman et al., '
    '2023)',
    gap_grows,
  ),
)
