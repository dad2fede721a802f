"""The claims of smollm2_prm."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Case, Claim, Effect, Found, judge
from experiments.tables import percent

REFERENCE, NULL = 'digits', 'noise'
TEXT = {'length': 'few characters', 'digit_count': 'few digits'}


def both_sums_by_f1(document: Mapping[str, Any]) -> Found:
  """Compares the rule on digits and words with the digits alone, by F1."""
  cases, nulls = [], []
  for name, rows in document['results']['localisation'].items():
    ours, theirs = rows['untrained'], rows[REFERENCE]
    cases.append(_case(name, ours['lead'], ours['f1'], theirs['f1']))
    nulls.append(f'noise {percent(rows[NULL]["f1"])} ({name})')
  return judge(cases, '; '.join(nulls))


def both_sums_by_auc(document: Mapping[str, Any]) -> Found:
  """Compares the same by how they rank the steps up to the first error."""
  return _by_auc(document, 'untrained')


def calculator_by_auc(document: Mapping[str, Any]) -> Found:
  """Compares the rule on both sums with and without the calculator."""
  return _by_auc(document, 'checked', 'untrained')


def more_than_text_by_auc(document: Mapping[str, Any]) -> Found:
  """Compares the rule and the calculator with what a step's text tells."""
  cases, nulls = [], []
  for name, rows in document['results']['localisation'].items():
    row = rows['checked']
    for other, leads in row['lead_on_text'].items():
      theirs = rows[other]['auc']['value']
      case = f'{name}, {TEXT[other]}'
      cases.append(_case(case, leads['auc'], row['auc']['value'], theirs))
    nulls.append(f'noise {percent(rows[NULL]["auc"]["value"])} ({name})')
  return judge(cases, '; '.join(nulls))


def states_by_auc(document: Mapping[str, Any]) -> Found:
  """Compares the head that reads the hidden state, too."""
  return _by_auc(document, 'both')


def training_by_auc(document: Mapping[str, Any]) -> Found:
  """Compares the model after training with the rule that it starts as."""
  return _by_auc(document, 'trained_likelihood', 'untrained')


def adapters_by_auc(document: Mapping[str, Any]) -> Found:
  """Compares the model with adapters with the rule that it starts as."""
  return _by_auc(document, 'trained_lora_quarter', 'untrained')


def _by_auc(
  document: Mapping[str, Any], row: str, other: str = REFERENCE
) -> Found:
  cases, nulls = [], []
  for name, rows in document['results']['localisation'].items():
    if row not in rows:  # trained models do not score what is held out
      continue
    ours, theirs = rows[row]['auc'], rows[other]['auc']
    lead = ours['lead']
    if other != REFERENCE:
      lead = rows[row]['lead_on_rule']['auc']
    cases.append(_case(name, lead, ours['value'], theirs['value']))
    digits = rows['digit_count']['auc']['value']
    nulls.append(f'few digits {percent(digits)} ({name})')
  return judge(cases, '; '.join(nulls))


def _case(
  name: str, lead: Mapping[str, Any], ours: float, theirs: float
) -> Case:
  effect = Effect(lead['difference'], lead['ci95'])
  sides = f'{percent(ours)} to {percent(theirs)}'
  return Case(effect, name, sides, seeds=len(lead['seeds']))


CLAIMS = (
  Claim(
    "A 135M model's likelihood of a step's digits and words tells right steps "
    'from wrong ones better than that of the digits alone (AUC; a choice made '
    'after both were seen on the first two sets)',
    'none',
    both_sums_by_auc,
  ),
  Claim(
    "A 135M model's likelihood of a step's digits and words finds first errors "
    'better than that of the digits alone, where half of all chains is flagged '
    '(F1)',
    'none',
    both_sums_by_f1,
  ),
  Claim(
    'Steps in which a calculator finds a false equation, put below all others, '
    'make the ranking by both sums better (AUC; what the calculator reads was '
    'tested on half of the chains)',
    'none',
    calculator_by_auc,
  ),
  Claim(
    'The ranking by both sums and the calculator is better than one by a '
    "step's length or by the count of its digits (AUC)",
    'none',
    more_than_text_by_auc,
  ),
  Claim(
    'A head fitted on step labels that reads the hidden state, too, is better '
    'than the likelihood of the digits (AUC)',
    'none',
    states_by_auc,
  ),
  Claim(
    'A 135M model trained on step labels, with all its weights, ranks steps '
    'better than the rule on digits and words that it starts as (AUC)',
    'none',
    training_by_auc,
  ),
  Claim(
    'The same model trained by adapters of rank 16, on a quarter as many '
    'chains, ranks steps better than that rule (AUC)',
    'none',
    adapters_by_auc,
  ),
)
