"""Turns the sections of results.json about steps into what the page shows.

Calibration, warning signs, and what was not read. Each function takes one
section, as `evals` computed it and JSON holds it. It rejects a section that
does not have the documented form, and returns the texts, rows and figures that
the template shows. Sections of earlier versions lack some keys: what is made of
these is then left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import markupsafe

from prm_jax.report import figures
from prm_jax.report.ranking_rows import FEATURES, ranking_row
from prm_jax.report.values import (
  NOTHING,
  decimals,
  flatten_rows,
  fraction,
  interval,
  is_number,
  list_of,
  pair,
  percent,
  section_of,
)
from prm_jax.runtime.errors import UserError


def wilson(accuracy: float, count: int) -> tuple[float, float]:
  """Returns the 95% score interval of a share (Wilson, 1927).

  Args:
    accuracy: the share of successes, in [0, 1].
    count: number of independent trials, >= 1.
  """
  z = 1.959964
  middle = accuracy + z * z / (2 * count)
  spread = accuracy * (1 - accuracy) / count + z * z / (4 * count * count)
  scale = 1 + z * z / count
  half = z * math.sqrt(spread)
  return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def calibration(dataset: str, section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a data set's calibration, with a reliability diagram if binned."""
  where = f'calibration.{dataset}'
  if not isinstance(section, Mapping):
    raise UserError(f'{where}: expected an object')
  bins = _bins(section_of(section, 'reliability', where), where)
  figure = None
  if bins:
    label = 'Reliability diagram, mean score to share of right steps: '
    label += ', '.join(
      f'{b["score"]:.2f} to {b["accuracy"]:.2f} ({b["count"]} steps)'
      for b in bins
    )
    figure = markupsafe.Markup(figures.reliability(bins, label))
  loss, share = _loss(section, f'{where}.log_loss'), _share_right(bins)
  unsure = section_of(section, 'unsure', where)
  numbers = {
    'ece': fraction(section.get('ece'), f'{where}.ece'),
    'log_loss': loss,
    'constant_loss': math.nan if share is None else _entropy(share),
    'unsure': fraction(unsure.get('ece'), f'{where}.unsure.ece'),
    'unsure_share': fraction(unsure.get('share'), f'{where}.unsure.share'),
    'share_right': math.nan if share is None else share,
  }
  return numbers | {
    'dataset': dataset,
    'rows': _calibration_rows(section, numbers),
    'ranking': _step_ranking(section, where),
    'figure': figure,
    'bins': [
      (f'{b["score"]:.3f}', f'{b["accuracy"]:.3f}', f'{b["count"]:,}')
      for b in bins
    ],
  }


def _bins(diagram: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
  """Returns the bins of a reliability curve that hold steps."""
  if not diagram:
    return []
  where, bins = f'{where}.reliability', []
  counts = list_of(diagram, 'count', where, -1)
  scores = list_of(diagram, 'score', where, len(counts))
  shares = list_of(diagram, 'accuracy', where, len(counts))
  for count, score, share in zip(counts, scores, shares, strict=True):
    if not is_number(count) or count < 0:
      raise UserError(f'{where}.count holds {count!r}: expected a count')
    if not count:
      continue
    right = fraction(share, f'{where}.accuracy')
    mean = fraction(score, f'{where}.score')
    if math.isnan(right + mean):
      raise UserError(f'{where}: no number in a bin of {count} steps')
    bins.append(
      {
        'count': int(count),
        'score': mean,
        'accuracy': right,
        'interval': wilson(right, count),
      }
    )
  return bins


def _loss(section: Mapping[str, Any], where: str) -> float:
  loss = section.get('log_loss')
  if loss is None:
    return math.nan
  if not is_number(loss) or loss < 0:
    raise UserError(f'{where} is {loss!r}: expected a number >= 0')
  return float(loss)


def _share_right(bins: Sequence[Mapping[str, Any]]) -> float | None:
  total = sum(b['count'] for b in bins)
  right = sum(b['count'] * b['accuracy'] for b in bins)
  return min(1.0, right / total) if total else None


def _entropy(share: float) -> float:
  """Returns the log loss, in nats, of always saying the share of right."""
  return -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)


def _calibration_rows(
  section: Mapping[str, Any], numbers: Mapping[str, float]
) -> list[tuple[str, str]]:
  """Returns the rows of a calibration: what cannot flatter comes first."""
  rows = []
  if not math.isnan(numbers['log_loss']):
    rows.append(('log loss', decimals(numbers['log_loss'])))
    constant = decimals(numbers['constant_loss'])
    rows.append(('log loss of always saying the share of right ones', constant))
  if 'unsure' in section:
    share = percent(numbers['unsure_share'])
    rows += [
      (
        'calibration error of scores from 0.05 to 0.95',
        decimals(numbers['unsure']),
      ),
      ('steps with such a score', f'{share}%'),
    ]
  names = {
    'ece': 'expected calibration error, all steps',
    'brier': 'Brier score',
    'accuracy_until_first_error': 'step accuracy, up to the first error',
    'step_auroc': 'AUROC, steps',
    'first_error_auc': 'first-error AUC',
    'count': 'steps',
  }
  # The ranking shows the AUC, over the same steps and with an interval.
  done = {'reliability', 'log_loss', 'unsure', 'ranking', 'baselines'}
  if section.get('ranking'):
    done |= {'step_auroc', 'first_error_auc'}
  rest = {
    names.get(name, name): value
    for name, value in section.items()
    if name not in done
  }
  return rows + flatten_rows(rest)


def _step_ranking(
  section: Mapping[str, Any], where: str
) -> list[dict[str, Any]]:
  """Returns how the PRM ranks steps, then how features of the text do."""
  ours = section_of(section, 'ranking', where)
  if not ours:
    return []
  rows = [ranking_row(ours, f'{where}.ranking') | {'name': 'PRM', 'lead': True}]
  for name in section_of(section, 'baselines', where):
    values = section_of(section['baselines'], name, f'{where}.baselines')
    row = ranking_row(values, f'{where}.baselines.{name}')
    rows.append(row | {'name': FEATURES.get(name, name), 'lead': False})
  return rows


def heads(section: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns what each head is worth on each data set, in words."""
  rows = []
  for name, by_head in section.items():
    for head in section_of(section, name, 'heads'):
      where = f'heads.{name}.{head}'
      values = section_of(by_head, head, where)
      bounds = pair(values.get('ci95'), f'{where}.ci95')
      auc = section_of(values, 'auc', where).get('value')
      ranks = '' if auc is None else f'step AUC {decimals(auc)}, '
      seeds = len(list_of(values, 'seeds', where, -1))
      rows.append(
        (
          f'{name}: {head}',
          f'F1 {percent(fraction(values.get("f1"), where))} '
          f'{interval(bounds)}, {ranks}'
          f'{seeds} {"seed" if seeds == 1 else "seeds"}',
        )
      )
  return rows


def diagnostics(section: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns the warning signs of each data set, in words.

  Values without a description here are listed under their own keys.
  """
  rows = []
  for name, values in section.items():
    if not isinstance(values, Mapping):
      rows += flatten_rows({name: values})
      continue
    for key, value in values.items():
      known = WARNINGS.get(key)
      found = known(value) if known else None
      rows += [
        (f'{name}: {words}', shown) for words, shown in found or ()
      ] or flatten_rows({f'{name}.{key}': value})
  return rows


def _minimum_at_last(value: Any) -> list[tuple[str, str]]:
  value = value if isinstance(value, Mapping) else {}
  share, chance, count = (value.get(k) for k in ('share', 'chance', 'count'))
  if not is_number(share) or not is_number(chance):
    return [('chains of several steps', '0')]
  return [
    (
      'chains whose lowest score is that of the last step',
      f'{percent(share)}% of {count:,}; {percent(chance)}% by chance',
    )
  ]


def _wrong_process(value: Any) -> list[tuple[str, str]]:
  value = value if isinstance(value, Mapping) else {}
  rows = []
  for words, share, count in (
    ('right answers by wrong steps that are flagged', 'found', 'wrong'),
    ('right answers by right steps that are flagged', 'false_flags', 'right'),
  ):
    total = value.get(f'count_{count}_process') or 0
    known = value.get(share)
    shown = f'{percent(known)}% of {total:,}' if is_number(known) else NOTHING
    rows.append((words, shown))
  return rows


WARNINGS = {
  'minimum_at_last': _minimum_at_last,
  'right_answer_wrong_process': _wrong_process,
  'length_correlation': lambda value: [
    (
      'correlation of chain score and number of steps',
      f'{value:+.2f}' if is_number(value) else NOTHING,
    )
  ],
}


def unread(section: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns a row for each data set: the steps that the window cut off."""
  rows = []
  for name in section:
    steps, of_steps, chains, of_chains = _counts(section, name)
    rows.append(
      (
        name,
        f'{steps:,} of {of_steps:,} steps, in {chains:,} of {of_chains:,} '
        "chains, lie beyond the model's window. They have no score, and their "
        'chains lose to chains that were read whole',
      )
    )
  return rows


def coverage(section: Mapping[str, Any], name: str) -> str:
  """Says how much of a data set was read; '' if all of it was.

  Raises:
    UserError: the section does not have the documented form.
  """
  if name not in section:
    return ''
  steps, of_steps, chains, of_chains = _counts(section, name)
  if not of_steps or not of_chains:
    return ''
  return (
    f'{of_steps - steps:,} of the {of_steps:,} steps of {name} were read, and '
    f'{of_chains - chains:,} of its {of_chains:,} chains to their end.'
  )


def _counts(section: Mapping[str, Any], name: str) -> list[int]:
  values = section[name]
  counts = values if isinstance(values, Mapping) else {}
  found = [counts.get(k) for k in ('steps', 'of_steps', 'chains', 'of_chains')]
  if any(not isinstance(count, int) for count in found):
    raise UserError(
      f'unread.{name}: expected counts steps, of_steps, chains, of_chains'
    )
  return found
