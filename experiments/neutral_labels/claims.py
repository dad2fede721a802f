"""The claims of neutral_labels."""

from collections.abc import Mapping
from typing import Any

from experiments import ablations
from experiments.findings import Claim, Found
from experiments.tables import mean, percent


def tells_steps_apart(document: Mapping[str, Any]) -> Found:
  """Finds whether the AUC is above 0.5 on each set, for each arm and seed."""
  names = [
    name
    for name in ablations.names_of(document)
    if name.startswith(ablations.AUC)
  ]
  areas = {
    arm: [ablations.values(document, arm, name) for name in names]
    for arm in document['runs']
  }
  return Found(
    '; '.join(
      f'{", ".join(percent(mean(seeds)) for seeds in sets)} ({arm})'
      for arm, sets in areas.items()
    ),
    'seeds from '
    + '; '.join(
      f'{percent(min(map(min, sets)))} to {percent(max(map(max, sets)))}'
      for sets in areas.values()
    ),
    [min(seeds) > 0.5 for sets in areas.values() for seeds in sets],
  )


CLAIMS = (
  Claim(
    'On human labels a PRM of 0.7M parameters tells right steps from wrong '
    'ones, whatever neutral steps count as (AUC; gsm8k, math)',
    'for a large PRM it hardly matters (Lightman et al., 2023)',
    tells_steps_apart,
  ),
)
