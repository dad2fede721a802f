"""Makes table rows that say how scores rank right items above wrong ones."""

from collections.abc import Mapping
from typing import Any

from prm_jax.report.values import (
  decimals,
  fraction,
  interval,
  pair,
  section_of,
)

FEATURES = {
  'length': 'length of the step',
  'digits': 'digits in the step',
  'place': 'place in the chain',
}


def ranking_row(values: Mapping[str, Any], where: str) -> dict[str, Any]:
  """Returns the AUC over all problems, and within them, as texts.

  Args:
    values: what `evals.ranking.ranking` returned.
    where: its place, for error messages.

  Raises:
    UserError: a number does not have the documented form.
  """
  within = section_of(values, 'within_problem', where)
  inside = f'{where}.within_problem'
  auc = fraction(values.get('auc'), f'{where}.auc')
  pooled = interval(pair(values.get('ci95'), f'{where}.ci95'), decimals)
  return {
    'value': auc,
    'auc': decimals(auc),
    'interval': pooled,
    'within': decimals(fraction(within.get('value'), f'{inside}.value')),
    'within_interval': interval(
      pair(within.get('ci95'), f'{inside}.ci95'), decimals
    ),
    'problems': f'{within.get("problems") or 0:,}',
  }
