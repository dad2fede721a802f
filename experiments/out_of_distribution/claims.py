"""The claims of out_of_distribution."""

from collections.abc import Mapping
from typing import Any

from experiments.ablations import BY_PRM, NULL, intervals, over_null, values
from experiments.findings import Claim, Finder, Found, baseline, judge, lead
from experiments.out_of_distribution.run import RIGHT


def choice_pays(*arms: str) -> Finder:
  """Makes a finder of whether a PRM chooses better than the null."""

  def find(document: Mapping[str, Any]) -> Found:
    cases, shown = [], []
    for arm in arms:
      null = values(document, arm, NULL)
      paired = intervals(document, arm, over_null(BY_PRM))
      name, head = (arm, f'{arm}: ') if len(arms) > 1 else ('', '')
      cases.append(lead(values(document, arm, BY_PRM), null, name, paired))
      shown.append(baseline(f'{head}random per text', null))
      shown.append(baseline('a random chain', values(document, arm, RIGHT)))
    return judge(cases, '; '.join(shown))

  return find


CLAIMS = (
  Claim(
    'A PRM trained on 5 steps chooses better than a random score of each text '
    'among chains of 12 steps (best of 16)',
    'PRMs stay ahead on fresh exams (Lightman et al., 2023, section 5)',
    choice_pays('12 steps'),
  ),
  Claim(
    'A PRM chooses better than a random score of each text where the facts are '
    'others (best of 16; modulo 9, modulo 7)',
    'none',
    choice_pays('modulo 9', 'modulo 7'),
  ),
)
