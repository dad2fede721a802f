"""The claims of neutral_labels."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import ablations
from experiments.findings import (
  Case,
  Claim,
  Finder,
  Found,
  baseline,
  crossed,
  judge,
)
from experiments.neutral_labels.features import over_first
from experiments.neutral_labels.run import ARMS
from experiments.tables import percent
from prm_jax.evals import over_seeds

COIN = 0.5
# Arms are as good as each other if their AUC differs by less than this.
MARGIN = 0.02


def sets_of(document: Mapping[str, Any]) -> list[str]:
  """Returns the names of the tests' sets."""
  head = f'{ablations.AUC}, '
  return [
    name.removeprefix(head)
    for name in ablations.names_of(document)
    if name.startswith(head)
  ]


def errors_of(
  document: Mapping[str, Any], arm: str, name: str
) -> np.ndarray | None:
  """Returns the standard error over problems of a measure in each seed."""
  ci95 = ablations.intervals(document, arm, name)
  return ci95 and over_seeds.error_of(np.array(ci95))


def tells_steps_apart(document: Mapping[str, Any]) -> Found:
  """Compares the AUC of each arm with a coin's, on each set."""
  cases, nulls = [], [f'a coin {percent(COIN)}']
  for part in sets_of(document):
    name = f'{ablations.AUC}, {part}'
    for arm in document['runs']:
      leads = [x - COIN for x in ablations.values(document, arm, name)]
      effect = crossed(leads, errors_of(document, arm, name))
      cases.append(Case(effect, f'{arm}, {part}', '', len(leads)))
    arm = next(iter(document['runs']))
    length = ablations.values(document, arm, f'{ablations.LENGTH}, {part}')
    nulls.append(baseline(f'length of steps on {part}', length))
  return judge(cases, '; '.join(nulls))


def hardly_matters(document: Mapping[str, Any]) -> Found:
  """Compares neutral steps as right and as wrong, on each set.

  The errors of the two are taken for independent, although both judge the same
  steps, so the interval is too wide rather than too narrow.
  """
  cases = []
  for part in sets_of(document):
    name = f'{ablations.AUC}, {part}'
    good, bad = (
      ablations.values(document, arm, name) for arm in ('good', 'bad')
    )
    errors = [errors_of(document, arm, name) for arm in ('good', 'bad')]
    both = None if errors[0] is None else np.hypot(*errors)
    effect = crossed(np.subtract(good, bad).tolist(), both)
    cases.append(Case(effect, part, '', len(good)))
  return judge(cases, 'no difference', (-MARGIN, MARGIN))


def of_backbone(arm: str) -> Finder:
  """Makes a finder that compares two targets of heads on a backbone.

  Args:
    arm: what neutral steps count as, beside the first of `ARMS`.
  """

  def find(document: Mapping[str, Any]) -> Found:
    cases = []
    for part in document['sets']:
      name = over_first(part)
      leads = ablations.values(document, arm, name)
      effect = crossed(leads, errors_of(document, arm, name))
      cases.append(Case(effect, part, '', len(leads)))
    return judge(cases, 'no difference', (-MARGIN, MARGIN))

  return find


def backbone_reads(document: Mapping[str, Any]) -> Found:
  """Compares the head's AUC with that of the best row without training.

  As in `hardly_matters`, the errors of the two are taken for independent.
  """
  cases, nulls = [], []
  for part in document['sets']:
    name = f'{ablations.AUC}, {part}'
    known = {
      row: ablations.values(document, row, name)
      for row in document['runs']
      if row not in ARMS and ablations.values(document, row, name)
    }
    best = max(known, key=lambda row: sum(known[row]))
    ours = ablations.values(document, ARMS[0], name)
    leads = np.subtract(ours, known[best]).tolist()
    errors = [errors_of(document, row, name) for row in (ARMS[0], best)]
    effect = crossed(leads, np.hypot(*errors))
    cases.append(Case(effect, part, '', len(leads)))
    nulls.append(baseline(f'{best} on {part}', known[best]))
  return judge(cases, '; '.join(nulls))


CLAIMS = (
  Claim(
    'On human labels a PRM of 0.7M parameters tells right steps from wrong '
    'ones, whatever neutral steps count as (AUC above a coin)',
    'none',
    tells_steps_apart,
  ),
  Claim(
    'Whether neutral steps count as right or as wrong changes the AUC of steps '
    'by less than 2 points',
    'for a large PRM it hardly matters (Lightman et al., 2023)',
    hardly_matters,
  ),
  Claim(
    'On human labels a linear head on a pretrained backbone of 135M parameters '
    'tells right steps from wrong ones better than likelihood, length, digits '
    'or place without training do (AUC)',
    'none',
    backbone_reads,
    'features.json',
  ),
  Claim(
    'With a linear head on a pretrained backbone of 135M parameters, counting '
    'neutral steps as wrong instead of right changes the AUC by less than 2 '
    'points',
    'for a large PRM it hardly matters (Lightman et al., 2023)',
    of_backbone('bad'),
    'features.json',
  ),
)
