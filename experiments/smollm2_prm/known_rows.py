"""Joins the rows of a workdir with those of another one, or another machine."""

from collections.abc import Collection, Mapping
from typing import Any

from experiments.smollm2_prm import recipes
from prm_jax.evals.scorers import DEV
from prm_jax.runtime.errors import UserError


def keep_rows(
  document: dict[str, Any], known: Mapping[str, Any], order: Collection[str]
) -> None:
  """Adds the rows of known results whose runs are not in this workdir.

  They may have been measured on another machine. Their leads are on the digit
  likelihood of the reading that they were measured beside.

  Args:
    order: all rows, in the order of the table.

  Raises:
    UserError: they are of other chains, or of other tokens.
  """
  about, before = document['manifest'], known['manifest']
  kept = {
    name: runs
    for name, runs in before['runs'].items()
    if name not in about['runs']
  }
  if not kept:
    return
  # Chains of dev are of each run's own draw.
  sets = (before['sets'].keys() & about['sets'].keys()) - {DEV}
  names = ('encoding_fingerprint', 'window')
  for name in (*names, *sorted(sets)):
    old, new = (
      each['sets'][name] if name in sets else each[name]
      for each in (before, about)
    )
    if old != new:
      raise UserError(
        f'the known rows of {", ".join(kept)} were measured with {name}={old}, '
        f'and those of this command with {new}; name another folder with '
        '--output'
      )
  about['runs'] |= kept
  results, old = document['results'], known['results']
  results['best_of_n'] |= {name: old['best_of_n'][name] for name in kept}
  for name, rows in old['localisation'].items():
    all_rows = results['localisation'][name] | {
      row: values for row, values in rows.items() if run_of(row) in kept
    }
    results['localisation'][name] = {
      row: all_rows[row] for row in order if row in all_rows
    }


def run_of(row: str) -> str:
  """Returns the run of a row, as the manifest names it."""
  if row.startswith('trained_'):
    return row.removeprefix('trained_')
  readings = (name for name in recipes.READINGS if name)
  found = (name for name in readings if row.endswith(f'_{name}'))
  return recipes.reading_folder(next(found, ''))
