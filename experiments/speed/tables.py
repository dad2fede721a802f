"""The table of README.md, and the notes below it, from results.json."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.tables import table


def rate_row(model: str, row: Mapping[str, Any]) -> list[str]:
  """Makes one row of the table."""
  ratio, share = row['ratio'], row['share_of_peak']
  training = row['unit'] == 'tokens_per_second'
  digits, unit = (0, 'tokens/s') if training else (1, 'candidates/s')
  return [
    model,
    f'{row["what"]}, {unit}',
    row['dtype'],
    *(f'{row[side]["median"]:,.{digits}f}' for side in ('ours', 'theirs')),
    f'{ratio["median"]:.2f} [{ratio["min"]:.2f}, {ratio["max"]:.2f}]',
    *(f'{100 * share[side]:.0f}%' for side in ('ours', 'theirs')),
  ]


def notes_of(model: str, found: Mapping[str, Any]) -> list[str]:
  """Says what the rows of one model were measured on."""
  notes = []
  for name, task in found['workload'].items():
    low, middle, high = np.percentile(task['lengths'], (0, 50, 100))
    notes.append(
      f'- {model}, {name}: {len(task["lengths"])} candidates after a prompt '
      f'of {task["prompt_tokens"]} tokens; {low:.0f} to {high:.0f} tokens '
      f'with it, median {middle:.0f}; all together '
      f'{sum(task["lengths"]) / task["unique_tokens"]:.2f} times as many as '
      'the different beginnings have.'
    )
  for row in found['rows']:
    if 'largest_score_difference' in row:
      rate = row['tokens_per_second']
      notes.append(
        f'- {model}, {row["what"]}, {row["dtype"]}: largest difference of a '
        f'step score {row["largest_score_difference"]:.1e}; '
        f'{rate["ours"]["median"]:,.0f} (ours) and '
        f'{rate["theirs"]["median"]:,.0f} (theirs) real tokens/s.'
      )
    elif 'peak_gflops' in row:
      peak, filled = row['peak_gflops'], row['fill']
      notes.append(
        f'- {model}, {row["what"]}, {row["dtype"]}: non-padding tokens '
        f'{100 * filled["ours"]:.0f}% (ours), {100 * filled["theirs"]:.0f}% '
        f'(theirs); matmul peak {peak["ours"]:.0f} (ours) and '
        f'{peak["theirs"]:.0f} (theirs) GFLOP/s.'
      )
  arguments = found['arguments']
  notes.append(
    f'- {model}: {found["threads"]} thread(s), seconds of '
    f'{arguments["clock"]} time, {arguments["rounds"]} rounds, '
    f'{arguments["steps"]} steps.'
  )
  return notes


def render(document: Mapping[str, Any]) -> str:
  """Makes the table, and the notes below it."""
  heads = (
    'model | what | dtype | ours | theirs | ratio [min, max] | '
    'share of peak, ours | theirs'
  )
  rows, notes = [], []
  for model, found in document['models'].items():
    rows += [rate_row(model, row) for row in found['rows']]
    notes += notes_of(model, found)
  return '\n'.join([table(heads, rows), '', *notes])
