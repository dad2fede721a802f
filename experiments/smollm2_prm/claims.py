"""The claims of smollm2_prm."""

from collections.abc import Mapping
from typing import Any

from experiments.findings import Case, Claim, Effect, Found, judge
from experiments.tables import percent

HEAD, SHALLOW = 'both', 'likelihood'
REFERENCE, NULL = 'digits', 'noise'


def head_beats_likelihood_by_f1(document: Mapping[str, Any]) -> Found:
  """Compares the head with the untrained likelihood, on each set."""
  cases, nulls = [], []
  for name, rows in document['results']['localisation'].items():
    ours, theirs = rows[HEAD], rows[REFERENCE]
    cases.append(_case(name, ours['lead'], ours['f1'], theirs['f1']))
    nulls.append(f'noise {percent(rows[NULL]["f1"])} ({name})')
  return judge(cases, '; '.join(nulls))


def head_beats_likelihood_by_auc(document: Mapping[str, Any]) -> Found:
  """Compares how both rank the steps up to the first error."""
  return _by_auc(document, HEAD)


def text_adds_to_likelihood(document: Mapping[str, Any]) -> Found:
  """Compares the head that reads no hidden state."""
  return _by_auc(document, SHALLOW)


def _by_auc(document: Mapping[str, Any], row: str) -> Found:
  cases, nulls = [], []
  for name, rows in document['results']['localisation'].items():
    ours, theirs = rows[row]['auc'], rows[REFERENCE]['auc']
    cases.append(_case(name, ours['lead'], ours['value'], theirs['value']))
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
    'A head on what a frozen 135M model makes of a step finds errors better '
    "than the model's own likelihood does (F1)",
    'none',
    head_beats_likelihood_by_f1,
  ),
  Claim(
    "Such a head tells right steps from wrong ones better than the model's own "
    'likelihood does (AUC)',
    'none',
    head_beats_likelihood_by_auc,
  ),
  Claim(
    'Length, digits and place of a step add to what its likelihood says (AUC)',
    'none',
    text_adds_to_likelihood,
  ),
)
