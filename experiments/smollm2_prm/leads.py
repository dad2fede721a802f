"""By how much rows lead on each other, paired on the same chains."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.smollm2_prm import recipes
from prm_jax.evals import scorers
from prm_jax.evals.scorers import Part

RULE = 'untrained'  # what the heads of trained models start as
UNTRAINED = (RULE, 'checked')
TEXT = ('length', 'digit_count')
RESAMPLES = 2000

# row -> its runs -> set -> how it was judged.
Rows = Mapping[str, Sequence[Mapping[str, scorers.Judged]]]


def compare(
  judged: Rows,
  parts: Mapping[str, Part],
  reference: str,
  seed: int,
) -> dict[str, dict[str, dict[str, Any]]]:
  """Compares all scorers that judged a set, on every set."""
  found = {}
  for name, part in parts.items():
    rows = {row: runs for row, runs in judged.items() if name in runs[0]}
    if reference in rows and len(rows) > 1:
      args = {name: part}, reference, seed, RESAMPLES
      found |= scorers.compare(rows, *args)
  return found


def add_leads_on_rule(
  found: Mapping[str, Mapping[str, dict[str, Any]]],
  judged: Rows,
  parts: Mapping[str, Part],
  seed: int,
) -> None:
  """Adds to rows their lead on the rule of what they started from.

  Args:
    found: set -> row -> numbers. A row without a reading of its start, which
      `--also` names, gets no lead.
  """
  starts = {
    f'trained_{name}': f'{RULE}_{recipe.start}' if recipe.start else RULE
    for name, recipe in recipes.RECIPES.items()
  }
  starts |= {
    row: row.replace('checked', RULE) for row in judged if 'checked' in row
  }
  for row, rule in starts.items():
    if {row, rule} <= judged.keys():
      for name, leads in _leads(judged, parts, row, rule, seed).items():
        found[name][row]['lead_on_rule'] = leads | {'rule': rule}


def add_leads_on_text(
  found: Mapping[str, Mapping[str, dict[str, Any]]],
  judged: Rows,
  parts: Mapping[str, Part],
  seed: int,
) -> None:
  """Adds to the rules without training their leads on what a text tells.

  Args:
    found: set -> row -> numbers.
  """
  for row in UNTRAINED:
    for other in TEXT:
      for name, leads in _leads(judged, parts, row, other, seed).items():
        found[name][row].setdefault('lead_on_text', {})[other] = leads


def _leads(
  judged: Rows,
  parts: Mapping[str, Part],
  row: str,
  other: str,
  seed: int,
) -> dict[str, dict[str, Any]]:
  """Returns the lead of a row on another on each set: set -> metric -> lead."""
  pair = {key: judged[key] for key in (other, row)}
  return {
    name: {'f1': rows[row]['lead'], 'auc': rows[row]['auc']['lead']}
    for name, rows in compare(pair, parts, other, seed).items()
  }
