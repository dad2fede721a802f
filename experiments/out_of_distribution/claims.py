"""The claims of out_of_distribution."""

from collections.abc import Mapping
from typing import Any

from experiments import ablations
from experiments.findings import Claim, Finder, Found, compare_seeds
from experiments.out_of_distribution.run import RIGHT


def choice_pays(arm: str) -> Finder:
  """Makes a finder of whether a PRM chooses better than at random."""

  def find(document: Mapping[str, Any]) -> Found:
    chosen, random = (
      ablations.values(document, arm, name)
      for name in (ablations.BY_PRM, RIGHT)
    )
    return compare_seeds(chosen, random)

  return find


CLAIMS = (
  Claim(
    'A PRM trained on 5 steps chooses better than at random among chains of '
    '12 steps',
    'PRMs stay ahead on fresh exams (Lightman et al., 2023, section 5)',
    choice_pays('12 steps'),
  ),
  Claim(
    'A PRM chooses better than at random where the facts are others (modulo 9)',
    'none',
    choice_pays('modulo 9'),
  ),
)
