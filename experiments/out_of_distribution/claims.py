"""What out_of_distribution is asked, and how its results answer."""

from collections.abc import Mapping
from typing import Any

from experiments import ablations
from experiments.findings import Claim, Finder, Found, mean, percent


def pays_on(arm: str) -> Finder:
  """Whether a PRM's choice is better than a chain at random, each seed."""

  def find(document: Mapping[str, Any]) -> Found:
    chosen, random = (
      ablations.values(document, arm, name)
      for name in (ablations.BY_PRM, 'right chains')
    )
    return Found(
      f'{percent(mean(chosen))} to {percent(mean(random))}',
      'each seed: '
      + ', '.join(
        f'{percent(a)} to {percent(b)}'
        for a, b in zip(chosen, random, strict=True)
      ),
      [a > b for a, b in zip(chosen, random, strict=True)],
    )

  return find


CLAIMS = (
  Claim(
    'A PRM of 5 steps chooses better than at random among chains of 12',
    'PRMs stay ahead on fresh exams (Lightman et al., 2023, section 5)',
    pays_on('12 steps'),
  ),
  Claim(
    'And where the facts are others (modulo 9)',
    'none',
    pays_on('modulo 9'),
  ),
)
